import numpy as np
import pytest

from tests.turbospec.factories import make_outcome, make_view
from turbospec import UserError
from turbospec.controller import Controller, GuardConfig
from turbospec.interface import Phase
from turbospec.policy import find_policy, load_controller, load_policy, read_policy, shipped_policies

SHIPPED = [
    "acceptance-gate", "adaptive", "bandit", "batch-table", "confidence", "ema-tiers", "goodput",
    "heuristic", "lookup-first", "off", "static-1", "static-15", "static-2", "static-3", "static-5", "static-8",
    "vllm-adaptive-verification",
]  # fmt: skip


def test_ships_a_file_for_every_policy():
    assert sorted(shipped_policies()) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_are_valid_and_begin_with_when_to_use_them(name):
    path = shipped_policies()[name]
    read_policy(path)
    comment = path.read_text().split("version:")[0]
    assert all(line.startswith("#") for line in comment.splitlines())
    assert "Use it " in comment


@pytest.mark.parametrize("name", SHIPPED)
def test_every_plan_keeps_the_contract(name):
    controller = Controller(load_policy(name, seed=1), guard=GuardConfig(max_decision_seconds=60.0))
    rng = np.random.default_rng(0)
    for step in range(200):
        n = int(rng.integers(0, 70))
        phase = rng.choice([Phase.PREFILL, Phase.FIRST_DECODE, Phase.DECODE], n, p=[0.1, 0.1, 0.8]).astype(np.int64)
        limits = np.where(phase == Phase.PREFILL, 0, rng.integers(0, 8, n))
        view = make_view(
            n,
            step=step,
            max_draft=7,
            now=0.01 * step,
            request_ids=np.sort(rng.choice(500, n, replace=False)),
            phase=phase,
            draft_limits=limits,
            drafter_lag_tokens=rng.integers(0, 5, n),
            prefill_tokens=int((phase == Phase.PREFILL).sum()) * 10,
        )
        drafted = controller.plan(view).draft_lengths
        accepted = rng.binomial(drafted, 0.6)
        confidence = rng.random((n, 7))
        controller.observe(
            make_outcome(
                view,
                drafted,
                accepted,
                emitted=np.where(phase == Phase.PREFILL, 0, accepted + 1),
                truncated=rng.random(n) < 0.1,
                confidence=confidence,
            )
        )
    assert controller.stats.last_fault == ""


def test_by_name_and_by_path(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("version: 1\npolicy: static\ndraft_length: 4\n")
    for source in (path, str(path)):
        assert load_policy(source).plan(make_view(1)).draft_lengths.tolist() == [4]
    assert load_policy("static-3").plan(make_view(1)).draft_lengths.tolist() == [3]


def test_a_bare_name_is_a_shipped_policy_before_it_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "off").write_text("nonsense")
    (tmp_path / "mine").write_text("version: 1\npolicy: off\n")
    assert find_policy("off") == shipped_policies()["off"]
    assert read_policy(find_policy("mine")).model_dump()["policy"] == "off"


def test_an_unknown_name_suggests_a_shipped_one():
    with pytest.raises(
        UserError, match=r"^no policy is called `adaptve`; did you mean `adaptive`\? \(or give a file's path\)$"
    ):
        load_policy("adaptve")


@pytest.mark.parametrize("seconds", [".nan", ".inf", "1e300", "0"])
def test_a_guard_has_finite_limits(tmp_path, seconds):
    path = tmp_path / "p.yaml"
    path.write_text(f"version: 1\npolicy: adaptive\nguard: {{max_decision_seconds: {seconds}}}\n")
    with pytest.raises(UserError, match=r"p\.yaml:3: guard\.max_decision_seconds: "):
        read_policy(path)


def test_controller_takes_the_guard_of_the_file(tmp_path):
    path = tmp_path / "guarded.yaml"
    path.write_text("version: 1\npolicy: off\nguard: {fallback_draft_length: 2}\n")
    assert load_controller(path).guard.fallback_draft_length == 2
