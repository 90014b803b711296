from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.turbospec_sim.replay.traces import written
from tests.turbospec_sim.scenarios import LookupPolicy, scenario, serve, state_of
from turbospec import UserError
from turbospec.interface import Phase
from turbospec.observability.trace import DecisionTrace, TraceStep, read_trace
from turbospec_sim.replay.arrivals import estimate_arrivals
from turbospec_sim.replay.recording import record
from turbospec_sim.replay.reused_plans import with_reused_plan_steps
from turbospec_sim.replay.server import drafter_of, server_of

LOOKUP = {
    "repeat_tokens": {"distribution": "geometric", "mean": 20},
    "gap_tokens": {"distribution": "geometric", "mean": 20},
}
BUSY = {"rates": [60.0], "server__max_num_seqs": 4}


@pytest.fixture
def steps(tmp_path: Path) -> list[TraceStep]:
    made = scenario(server__emit="before_draft", drafter={"max_draft": 5, "batch": False}, **BUSY)
    return written(tmp_path / "trace.jsonl", made, "static-3")


@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
def test_requests_are_recovered(emit: str, tmp_path: Path) -> None:
    made = scenario(server__emit=emit, **BUSY)
    steps = written(tmp_path / "trace.jsonl", made, "static-3")
    offered = state_of(made).offered
    recording = record(steps)
    known = np.isin(np.arange(60), sorted({number for step in steps for number in step.request_ids}))
    more = offered["output_tokens"] > 1
    assert recording.size == known.sum()
    # With `after_draft` a request whose only token comes from its prefill is in no view.
    assert known.tolist() == ([True] * 60 if emit == "before_draft" else more.tolist())
    seen = offered[known & more]
    kept = recording.output_tokens > 1
    assert recording.output_tokens[kept].tolist() == seen["output_tokens"].tolist()
    assert recording.prompt_tokens[kept].tolist() == seen["prompt_tokens"].tolist()
    assert recording.cut_short == recording.begun_before == 0


def test_arrivals_are_early_enough_and_exact_for_the_head_of_a_queue(steps: list[TraceStep]) -> None:
    offered = state_of(scenario(**BUSY)).offered
    found = record(steps).arrivals
    late = found - (offered["sent"] - offered["sent"][0])
    assert late.min() > -0.05
    assert np.quantile(np.abs(late), 0.9) < 0.05
    first_seen = {}
    for step in steps:
        for number in step.request_ids:
            first_seen.setdefault(number, step.now)
    assert max(first_seen[n] - offered["sent"][n] for n in range(60)) > 0.5  # else this shows nothing


def test_a_queue_whose_head_may_have_come_back_tells_nothing(steps: list[TraceStep]) -> None:
    def three(second: list[int]) -> list[TraceStep]:
        rows = [[1, 2], second, [1, 2, 3]]
        return [
            replace(
                steps[0],
                now=10.0 * line,
                waiting_requests=1,
                waiting_seconds=4.0,
                **{
                    name: numbers if name == "request_ids" else [0] * len(numbers)
                    for name in (
                        "request_ids", "phase", "class_ids", "context_tokens", "emitted_tokens", "tokens_left",
                        "drafter_lag_tokens", "draft_limits", "planned", "proposed", "drafted", "accepted", "emitted",
                        "truncated",
                    )
                },
            )
            for line, numbers in enumerate(rows)
        ]  # fmt: skip

    assert estimate_arrivals(three([1, 2])[1:], [0, 0, 1], [1, 1, 1]).tolist() == [6.0, 6.0, 6.0]
    assert estimate_arrivals(three([1])[1:], [0, 0, 1], [1, 1, 1]).tolist() == [10.0, 10.0, 20.0]


def test_tokens_are_known_as_they_were_judged(steps: list[TraceStep]) -> None:
    tokens = record(steps).tokens
    for step in steps:
        for row, number in enumerate(step.request_ids):
            at = tokens.lines[number, 0] + step.emitted_tokens[row]
            drafted, accepted = step.drafted[row], step.accepted[row]
            if drafted:
                assert tokens.drafted[at] == drafted
                assert tokens.certain[at : at + accepted].tolist() == list(range(1, accepted + 1))
                if accepted < drafted and not step.truncated[row]:
                    assert tokens.possible[at + accepted] == accepted


def test_a_trace_that_begins_and_ends_midway_says_so(steps: list[TraceStep]) -> None:
    middle = record(steps[30:60])
    assert middle.begun_before > 0
    assert middle.cut_short > 0
    assert middle.prompt_tokens.min() > 0
    emitted = sum(sum(step.emitted) for step in steps[30:60])
    assert int(middle.output_tokens.sum()) == pytest.approx(emitted, abs=middle.begun_before)


def as_overlapping_steps_tell(steps: list[TraceStep]) -> list[TraceStep]:
    """What vLLM's steps show. Plans are made before the last drafts are judged: of those, they count one token."""
    brought: dict[int, int] = {}
    told: list[TraceStep] = []
    for step in steps:
        late = [brought.get(number, 0) for number in step.request_ids]
        prompts = [phase == Phase.PREFILL for phase in step.phase]
        told.append(
            replace(
                step,
                emitted_tokens=[
                    1 if prompt else emitted - less
                    for prompt, emitted, less in zip(prompts, step.emitted_tokens, late, strict=True)
                ],
                tokens_left=[
                    left - 1 if prompt else left + less
                    for prompt, left, less in zip(prompts, step.tokens_left, late, strict=True)
                ],
            )
        )
        brought = {number: max(out - 1, 0) for number, out in zip(step.request_ids, step.emitted, strict=True)}
    return told


@pytest.mark.parametrize("policy", ["static-3", "adaptive"])
def test_positions_follow_what_was_emitted_where_plans_come_too_early_to_know(policy: str, tmp_path: Path) -> None:
    made = scenario(server__emit="after_draft", server__max_num_batched_tokens=128, **BUSY)
    steps = written(tmp_path / "trace.jsonl", made, policy)
    known, told = record(steps), record(as_overlapping_steps_tell(steps))
    assert any(Phase.PREFILL in step.phase for step in steps)
    for name in ("output_tokens", "prompt_tokens", "max_tokens", "arrivals"):
        assert getattr(told, name).tolist() == getattr(known, name).tolist()
    for name in ("certain", "possible", "drafted"):
        assert getattr(told.tokens, name).tolist() == getattr(known.tokens, name).tolist()
    assert told.begun_before == 0


@pytest.mark.parametrize(
    ("drafter", "emit"),
    [
        ({"max_draft": 5, "batch": False}, "before_draft"),
        ({"max_draft": 5, "batch": True}, "after_draft"),
        ({"max_draft": 5, "batch": True, "first_pass_every_step": True}, "after_draft"),
        ({"max_draft": 4, "batch": True, "kind": "parallel"}, "after_draft"),
    ],
)
def test_the_engine_is_recognised(drafter: dict[str, object], emit: str, tmp_path: Path) -> None:
    made = scenario(drafter=drafter, server__emit=emit, **BUSY)
    steps = written(tmp_path / "trace.jsonl", made, "static-3")
    found = drafter_of(steps)
    assert found.model_dump() == made.drafter.model_dump()
    server = server_of(steps, record(steps))
    assert (server.max_num_seqs, server.emit) == (4, emit)


def test_prompts_that_are_drafted_on_count_as_what_the_drafter_was_fed(tmp_path: Path) -> None:
    """A drafter that works as vLLM's takes a prompt along in its first pass."""
    made = scenario(server__emit="after_draft", drafter={"max_draft": 5, "batch": True}, **BUSY)
    steps = written(tmp_path / "trace.jsonl", made, "static-3")
    fed = sum(sample.catch_up_tokens for sample in record(steps).samples)
    assert fed == pytest.approx(record(steps).prompt_tokens.sum(), rel=0.1)


def test_an_engine_that_nobody_waited_for_has_no_cap(tmp_path: Path) -> None:
    steps = written(tmp_path / "trace.jsonl", scenario(rates=[0.5], workload__requests=5), "off")
    assert server_of(steps, record(steps)).max_num_seqs == 1024


def test_requests_that_wait_for_something_else_than_a_slot_show_no_cap(tmp_path: Path) -> None:
    made = scenario(rates=[1000.0], workload__requests=40, server__max_num_batched_tokens=64)
    steps = written(tmp_path / "trace.jsonl", made, "off")
    largest = max(len(step.request_ids) for step in steps)
    assert any(step.waiting_requests for step in steps)
    elsewhere = [replace(step, waiting_requests=0) if len(step.request_ids) == largest else step for step in steps]
    assert server_of(elsewhere, record(elsewhere)).max_num_seqs == 1024


@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
def test_the_token_budget_is_recognised_and_no_sign_of_batch_slots(emit: str, tmp_path: Path) -> None:
    made = scenario(server__max_num_batched_tokens=64, server__emit=emit)
    steps = written(tmp_path / "trace.jsonl", made, "static-3")
    found = server_of(steps, record(steps))
    assert found.max_num_batched_tokens == 64
    assert found.max_num_seqs >= made.server.max_num_seqs


def test_traces_that_cannot_be_replayed_are_named(steps: list[TraceStep]) -> None:
    with pytest.raises(UserError, match="comes twice"):
        record([*steps, *steps])
    half = len(steps) // 2
    restarted = [replace(step, step=step.step + 10**6) if place < half else step for place, step in enumerate(steps)]
    with pytest.raises(UserError, match="step numbers begin again"):
        record(restarted)
    with pytest.raises(UserError, match="took any time"):
        record([replace(step, step_seconds=0.0) for step in steps])
    with pytest.raises(UserError, match="emitted a token"):
        record(steps[:1] if not any(steps[0].emitted) else [replace(steps[0], emitted=[0] * len(steps[0].emitted))])


def test_steps_that_a_trace_lacks_are_counted(steps: list[TraceStep]) -> None:
    assert record(steps).missing_steps == 0
    assert record([*steps[:20], *steps[40:]]).missing_steps == 20
    assert record([*steps[:20], *steps[21:]]).missing_steps == 0, "a step whose requests have all ended has no line"


def test_time_between_steps_is_known_and_idle_time_is_not_it(steps: list[TraceStep]) -> None:
    assert record(steps).seconds_between == pytest.approx(0.0, abs=1e-6)
    later = [replace(step, now=step.now + 1e-3 * place) for place, step in enumerate(steps)]
    assert record(later).seconds_between == pytest.approx(1e-3, rel=0.01)
    paused = [replace(step, now=step.now + 60.0 * (place > 50)) for place, step in enumerate(later)]
    assert record(paused).seconds_between == pytest.approx(1e-3, rel=0.02)


HUGE = 10**12


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("emitted_tokens", 10**8, "more than 20,000,000 output tokens"),
        ("context_tokens", HUGE, "a prompt of 1,000,000,000,"),
        ("tokens_left", HUGE, "at most 1,000,000,000,"),
        ("request_ids", 0, "has a request twice"),
    ],
)
def test_what_no_engine_wrote_is_refused(field: str, value: int, words: str, steps: list[TraceStep]) -> None:
    begun = next(place for place, step in enumerate(steps) if len(step.request_ids) > 2 and min(step.phase) > 0)
    last = len(steps) if field == "tokens_left" else begun + 1  # the last line of a request says how many are left
    changed = [replace(step, **{field: [value] * len(step.request_ids)}) for step in steps[begun:last]]
    with pytest.raises(UserError, match=words):
        record([*steps[:begun], *changed, *steps[last:]])


def test_steps_without_time_are_refused(steps: list[TraceStep]) -> None:
    with pytest.raises(UserError, match="no step of the trace took any time"):
        record([replace(step, step_seconds=5e-324) for step in steps])
    with pytest.raises(UserError, match="no step of the trace took any time"):
        record([])


def test_a_gap_that_no_engine_leaves_is_not_restored(steps: list[TraceStep]) -> None:
    moved = [replace(step, step=step.step + HUGE * (place > 5)) for place, step in enumerate(steps)]
    moved[6] = replace(moved[6], reused_plan_steps=HUGE, reused_plan_tokens=HUGE)
    assert len(with_reused_plan_steps(moved)) == len(steps)


def test_a_step_of_many_tokens_fits_the_server(steps: list[TraceStep]) -> None:
    moved = [replace(step, tokens_batched=HUGE) for step in steps]
    assert server_of(moved, record(moved)).max_num_batched_tokens == 10**9


def test_a_trace_with_drafts_of_two_sources_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with DecisionTrace(path) as trace:
        serve(state_of(scenario(chat__lookup=LOOKUP, **BUSY)), LookupPolicy(15, 3), trace)
    steps = list(read_trace(path))
    assert any(step.lookup_lengths is not None and max(step.lookup_lengths) > 5 for step in steps)
    with pytest.raises(UserError, match="drafts of a look-up beside the drafter, which cannot be replayed"):
        record(steps)


def test_a_lookup_that_was_not_taken_leaves_the_drafter_its_own_limit(tmp_path: Path) -> None:
    steps = written(tmp_path / "trace.jsonl", scenario(chat__lookup=LOOKUP, **BUSY), "static-3")
    assert {step.max_draft for step in steps} == {15}
    assert record(steps).size > 50
    assert drafter_of(steps).max_draft == 5
