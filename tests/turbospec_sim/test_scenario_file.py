from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.turbospec_sim.scenarios import document
from turbospec import UserError
from turbospec_sim.scenario_file import find_scenario, read_scenario, shipped_scenarios

NAMES = (
    "ttft-k15", "no-acceptance-baseline", "no-acceptance-eagle3", "healthy-eagle3", "draft-model-batch1",
    "draft-model-batch100", "parallel-drafter", "rush-hour", "drift", "mixed-tenants", "two-languages",
    "adaptive-verification-4", "adaptive-verification-64", "changing-machine", "cold-start", "noise-bursts",
    "lagging-drafter", "code-edits", "agents-and-chat", "parallel-drafter-and-lookup", "drafter-wakes-up",
    "full-cache", "kv-bound", "drafter-confidence",
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(document(), indent=1))  # JSON is YAML
    return path


def test_all_scenarios_are_shipped_valid_and_say_what_they_show() -> None:
    shipped = shipped_scenarios()
    assert set(NAMES) <= set(shipped)
    for path in shipped.values():
        read_scenario(path)
        assert path.read_text().startswith("# ")


def test_settings_change_fields_and_are_checked_like_the_file(file: Path) -> None:
    made = read_scenario(
        file,
        [
            "server.max_num_seqs=1024",
            "policy=off",
            "slo.p99_ttft_ms=500",
            "workload.classes.0.acceptance.rate=0.5",
            "rates=[1, 2]",
        ],
    )
    assert made.server.max_num_seqs == 1024
    assert made.policy == "off"
    assert made.slo is not None
    assert made.slo.p99_ttft_ms == 500
    assert made.rates == (1.0, 2.0)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("server.max_num_seq=3", r"--set server.max_num_seq=3: .*unknown field; did you mean `max_num_seqs`\?"),
        ("server.max_num_seqs=0", "--set server.max_num_seqs=0: server.max_num_seqs: .*greater than or equal to 1"),
        ("server.max_num_seqs=many", "valid integer"),
        ("server.max_num_seqs", "field=value"),
        ("server..x=1", "field=value"),
        ("policy.x=1", "single value"),
        ("workload.classes.1.name=b", "has 1 entries"),
        ("workload.classes.first.name=b", "has 1 entries"),
        ("rates=[0]", "--set rates=.*greater than or equal to 0.000001"),
        ("latency.source=guess", "unknown source `guess`"),
        ("workload.arrivals.process=weekly", "unknown process `weekly`"),
        ("drafter.max_draft=33", "less than or equal to 32"),
        ("latency.host_seconds=1e308", "less than or equal to 1000000"),
        ("latency.graph_sizes=[1,1]", "must rise"),
        ("workload.requests=100000000", "less than or equal to 10000000"),
        ("workload.classes.0.share=1e-300", "greater than or equal to"),
        ('workload.arrivals={"process": "day", "curve": [5e-324]}', "the curve is 0 everywhere"),
        ('workload.arrivals={"process": "bursts", "on_seconds": 1e-300, "off_seconds": 1}', "greater than or equal"),
        (
            'workload.classes.0.acceptance={"process": "markov", "good": [1], "bad": [0], "good_tokens": 1e300,'
            ' "bad_tokens": 2}',
            "good_tokens: .*less than or equal",
        ),
        ("workload.classes.99999999999999999999999999.name=b", "has 1 entries"),
        ("server.max_num_seqs=" + "9" * 400, "the number 9+… is out of range"),
        ("server.max_num_seqs=NaN", "NaN is not JSON"),
        ("x" * 5000 + "=1", r"--set x{60}…: x{60}…: unknown field"),
        ("server.max_num_seqs=" + '"' + "y" * 5000 + '"', r"valid integer \(got \"y{59}…\)"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, words: str, file: Path) -> None:
    with pytest.raises(UserError, match=words):
        read_scenario(file, [setting])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("max_num_seqs:", "max_num_seq:", r"server.max_num_seq: unknown field; did you mean `max_num_seqs`\?"),
        ("max_draft: 5", "max_draft: five", "drafter.max_draft: input should be a valid integer"),
        ("gpu: h100", "gpu: h900", "latency.gpu: no GPU is called `h900`"),
        ("rates: [24.0]", "rates: [-1]", "rates.0: input should be greater than or equal to 0.000001"),
        ("process: drift", "process: slide", "unknown process `slide`"),
        ("process: poisson", "burstiness: 3", "process: missing; add"),
        ("before: [", "before: [1.5, ", "less than or equal to 1"),
        ("p50: 400, ", "", "give either `mean` and `sigma`"),
    ],
)
def test_an_error_names_file_line_and_field(old: str, new: str, words: str, tmp_path: Path) -> None:
    text = shipped_scenarios()["drift"].read_text()
    assert old in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=words) as error:
        read_scenario(path)
    line = 1 + text[: text.index(old)].count("\n")
    assert str(error.value).startswith(f"{path}:{line}: ")


def test_what_is_wrong_without_a_setting_is_not_the_settings_fault(file: Path) -> None:
    file.write_text(json.dumps(document(rates=None)))
    with pytest.raises(UserError, match=f"^{file}:.*rates"):
        read_scenario(file, ["server.max_num_seqs=64"])


def test_open_loops_need_rates_and_closed_ones_take_none(file: Path) -> None:
    with pytest.raises(UserError, match="`rates` is missing"):
        read_scenario(file, ["rates=[]"])
    with pytest.raises(UserError, match="`rates` has no meaning for closed arrivals"):
        read_scenario(file, ['workload.arrivals={"process": "closed", "concurrency": 2}'])


@pytest.mark.parametrize(
    ("policy", "read"), [("adaptive", "adaptive"), ("mine.yaml", "{folder}/mine.yaml"), ("a/b", "{folder}/a/b")]
)
def test_a_policys_file_is_looked_for_beside_the_scenario(policy: str, read: str, file: Path) -> None:
    assert read_scenario(file, [f"policy={policy}"]).policy == read.format(folder=file.parent)


def test_scenarios_are_found_by_name_and_path() -> None:
    assert find_scenario("drift") == shipped_scenarios()["drift"]
    assert find_scenario("here/drift.yaml") == Path("here/drift.yaml")
    with pytest.raises(UserError, match="did you mean `rush-hour`"):
        find_scenario("rush-hours")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("seed: 0x" + "f" * 5000, "mine.yaml:1: .*out of range"),
        ("seed: " + "9" * 5000, "mine.yaml:"),
        ("description: .nan", "mine.yaml:"),
        ("seed: .inf", "mine.yaml:"),
    ],
)
def test_numbers_out_of_range_are_one_line(line: str, words: str, file: Path) -> None:
    file.write_text(line + "\n" + json.dumps(document(), indent=1)[1:-1].replace("\n ", "\n").replace(',\n"', '\n"'))
    with pytest.raises(UserError, match=words) as error:
        read_scenario(file)
    assert len(str(error.value)) < 300


def test_a_scenario_names_the_files_that_it_reads(file: Path) -> None:
    made = read_scenario(
        file,
        [
            'workload.classes.0.acceptance={"process": "trace", "file": "a.jsonl"}',
            'latency={"source": "profile", "file": "p.json"}',
            'workload.arrivals={"process": "trace", "file": "t.csv"}',
            "rates=[]",
        ],
    )
    assert {path.name for path in made.files} == {"a.jsonl", "p.json", "t.csv"}


LOOKUP = {
    "repeat_tokens": {"distribution": "geometric", "mean": 20, "low": 8},
    "gap_tokens": {"distribution": "lognormal", "mean": 10, "sigma": 1.0},
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"gap_tokens": {"distribution": "geometri", "mean": 2}},
            "unknown distribution `geometri`; did you mean `geometric`",
        ),
        ({"gap_tokens": {"mean": 2}}, "add `distribution: <geometric|lognormal>`"),
        (
            {"repeat_tokens": {"distribution": "geometric", "mean": 4, "low": 8}},
            "`mean` .* is below `low`",
        ),
        ({"repeat_token": 3}, "lookup.repeat_token: unknown field; did you mean `repeat_tokens`"),
        ({"false_acceptance": 1.0}, "lookup.false_acceptance: .*less than or equal to 0.99"),
        ({"drafter_acceptance": []}, "lookup.drafter_acceptance"),
    ],
)
def test_a_wrong_lookup_is_named(changes: dict[str, Any], words: str, file: Path) -> None:
    file.write_text(json.dumps(document(chat__lookup=LOOKUP), indent=1))
    assert read_scenario(file).max_lookup == 15
    file.write_text(json.dumps(document(chat__lookup=LOOKUP | changes), indent=1))
    with pytest.raises(UserError, match=words):
        read_scenario(file)
