"""Serving goes on after a step that failed: with Ctrl-C, out of memory on a GPU, an error of a drafter or a policy."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.turbospec_engine.harness import DEVICE, FixedPlans
from turbospec import UserError
from turbospec_engine import Engine, EngineConfig, SamplingParams

MODELS = Path(__file__).parents[2] / "models"
PROMPTS = ([40, 50, 60], [70, 80])
PARAMS = SamplingParams(max_tokens=30, ignore_eos=True)
pytestmark = pytest.mark.skipif(
    not (MODELS / "eagle3/model.safetensors").is_file(), reason="models/ holds no checkpoints"
)


def config(**settings: Any) -> EngineConfig:
    fixed = {"device": DEVICE, "max_model_len": 128, "max_num_seqs": 4, "max_draft": 4}
    return EngineConfig(MODELS / "target", **(fixed | settings))


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    outputs = Engine(config(drafter=None), FixedPlans(longest=0)).generate(PROMPTS, PARAMS)
    return [output.token_ids for output in outputs]


def interrupt(owner: object, method: str, calls: Collection[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the method raise KeyboardInterrupt after it has run, in these of its calls, counted from 1."""
    run, numbers = getattr(owner, method), count(1)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        done = run(*args, **kwargs)
        if next(numbers) in calls:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(owner, method, interrupted)


@pytest.mark.parametrize(("emit", "longest"), [("before_draft", 4), ("after_draft", 1)])
@pytest.mark.parametrize("failing", ["verify", "draft", "finish", "observe"])
@pytest.mark.parametrize("drafter", ["drafter", "eagle3", "peagle", "dflash"])
def test_no_token_is_lost_and_no_request_is_stuck(
    expected: list[tuple[int, ...]],
    drafter: str,
    failing: str,
    longest: int,
    emit: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans, failures = FixedPlans(longest=longest), 0
    engine = Engine(config(drafter=MODELS / drafter, emit=emit), plans)
    tokens: dict[str, list[int]] = {engine.add_request(prompt, PARAMS): [] for prompt in PROMPTS}
    phases: dict[str, tuple[object, str, Collection[int]]] = {
        "verify": (engine.target, "forward", (4, 5)),
        "draft": (engine.drafter, "propose", (4, 5)),
        "finish": (engine, "_finish", (1, 2)),
        "observe": (plans, "observe", (4, 5)),
    }
    interrupt(*phases[failing], monkeypatch)
    while engine.has_work():
        try:
            for output in engine.step():
                tokens[output.request_id] += output.new_token_ids
        except KeyboardInterrupt:
            failures += 1
    assert failures == 2
    assert [tuple(each) for each in tokens.values()] == expected


def test_a_prompt_of_one_token_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it was drafted yet: the drafter's KV cache still holds no token, and not less."""
    engine = Engine(config(drafter=MODELS / "drafter"), FixedPlans(longest=2))
    engine.add_request([40], PARAMS)
    interrupt(engine.target, "forward", (1,), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert [request.draft_computed for request in engine.scheduler.running] == [0]


def test_outputs_of_aborted_requests_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = FixedPlans(longest=2)
    engine = Engine(config(drafter=MODELS / "drafter"), plans)
    first, second = (engine.add_request(prompt, SamplingParams(max_tokens=1)) for prompt in PROMPTS)
    interrupt(plans, "observe", (1,), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert engine.has_work()
    with pytest.raises(UserError, match="idle engine"):
        engine.generate([[1]])
    engine.abort(first)
    assert [output.request_id for output in engine.step()] == [second]
    assert not engine.has_work()
    assert engine.step() == []
