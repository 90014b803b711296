from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.turbospec_sim.scenarios import LookupPolicy, Steps, closed, serve, state_of
from turbospec.interface import Policy, Source
from turbospec.policy.static import StaticPolicy
from turbospec_sim.repeats import lookup_acceptance
from turbospec_sim.state import EngineState

GEOMETRIC: dict[str, Any] = {
    "repeat_tokens": {"distribution": "geometric", "mean": 20},
    "gap_tokens": {"distribution": "geometric", "mean": 10},
    "min_match": 1,
}
LOGNORMAL: dict[str, Any] = {
    "repeat_tokens": {"distribution": "lognormal", "mean": 20, "sigma": 0.8},
    "gap_tokens": {"distribution": "lognormal", "p50": 5, "p99": 40, "low": 2},
    "min_match": 3,
}
FALSE = {"false_match": 0.25, "false_acceptance": 0.4}
ORDERS = ("before_draft", "after_draft")
Seen = dict[tuple[int, int], tuple[int, int, int, bool]]
"""By request and output position: score, length, accepted tokens of the look-up's draft, and whether there was one."""


def served(lookup: dict[str, Any], policy: Policy, *, seed: int = 0, **changes: Any) -> tuple[EngineState, Steps]:
    made = closed(
        8,
        workload__requests=40,
        chat__output_tokens={"distribution": "constant", "tokens": 300},
        chat__lookup=lookup,
        **changes,
    )
    state, steps = state_of(made, seed), Steps()
    serve(state, policy, steps)
    return state, steps


def seen(steps: Steps) -> Seen:
    found: Seen = {}
    for view, plan, outcome in steps.seen:
        assert view.lookup is not None
        for row, request in enumerate(view.request_ids.tolist()):
            if view.phase[row] and outcome.emitted[row]:
                of_lookup = plan.sources is not None and plan.sources[row] == Source.LOOKUP and outcome.drafted[row] > 0
                found[request, int(view.emitted_tokens[row])] = (
                    int(view.lookup.scores[row]),
                    int(view.lookup.lengths[row]),
                    int(outcome.accepted[row]),
                    bool(of_lookup and not outcome.truncated[row]),
                )
    return found


def runs_of(scores: Seen, request: int) -> list[tuple[int, int]]:
    """(begin, end) of a request's repeats, with a `min_match` of 1 and every position seen."""
    ends: list[tuple[int, int]] = []
    for position in range(1, 299):
        score, following = scores[request, position][0], scores[request, position + 1][0]
        if score and following <= score:
            # The last position with a match is the one right after the repeat's end.
            ends.append((position - score, position))
    return ends


@pytest.mark.parametrize("lookup", [GEOMETRIC, LOGNORMAL | {"min_match": 1}])
def test_repeats_and_gaps_have_their_lengths(lookup: dict[str, Any]) -> None:
    _, steps = served(lookup, StaticPolicy(0))
    scores = seen(steps)
    runs = [runs_of(scores, request) for request in range(40)]
    repeats = [end - begin for row in runs for begin, end in row if begin > 0]
    gaps = [after[0] - before[1] for row in runs for before, after in pairwise(row)]
    # The output's end cuts long ones short.
    assert np.mean(repeats) == pytest.approx(19, abs=2.5)
    assert np.mean(gaps) == pytest.approx(10 if lookup is GEOMETRIC else 7.2, abs=1.2)


@pytest.mark.parametrize("order", ORDERS)
def test_the_policy_changes_neither_what_repeats_nor_what_matches(order: str) -> None:
    lookup = LOGNORMAL | FALSE
    policies = (StaticPolicy(0), StaticPolicy(3), LookupPolicy(15, 2), LookupPolicy(4))
    runs = [seen(served(lookup, policy, server__emit=order)[1]) for policy in policies]
    for other in runs[1:]:
        common = runs[0].keys() & other.keys()
        assert len(common) > 500
        assert all(runs[0][place][0] == other[place][0] for place in common)
    # A shorter draft at the same place is accepted as far as a longer one, up to its own length.
    common = [place for place in runs[2].keys() & runs[3].keys() if runs[2][place][3] and runs[3][place][3]]
    assert len(common) > 100
    assert all(runs[3][place][2] == min(runs[2][place][2], 4, runs[3][place][1]) for place in common)


def test_another_seed_has_other_repeats_and_the_same_seed_the_same() -> None:
    one, same, other = (seen(served(GEOMETRIC, StaticPolicy(0), seed=seed)[1]) for seed in (1, 1, 2))
    assert one == same
    assert np.mean([one[place][0] == other[place][0] for place in one]) < 0.6


def test_a_draft_is_right_up_to_the_repeats_end_and_goes_on_past_it() -> None:
    state, steps = served(GEOMETRIC, LookupPolicy(15))
    every = seen(served(GEOMETRIC, StaticPolicy(0))[1])
    ends = {request: [end for _, end in runs_of(every, request)] for request in range(40)}
    judged = past = 0
    for (request, position), (_, length, accepted, is_judged) in seen(steps).items():
        end = next((end for end in ends[request] if end >= position), None)
        if is_judged and end is not None and every[request, position][0]:
            judged += 1
            past += end - position < length
            assert accepted == min(length, end - position)
    assert judged > 300
    assert past > 100
    assert state.max_draft == 15


def test_a_repeat_is_found_after_its_first_tokens_and_not_sooner() -> None:
    scores = {place: found[0] for place, found in seen(served(LOGNORMAL, StaticPolicy(0))[1]).items()}
    assert min(score for score in scores.values() if score) == 3
    assert sum(score == 3 for score in scores.values()) > 100


def test_false_matches_have_their_rate_score_and_acceptance() -> None:
    # Gaps that never end: whatever is found is false.
    lookup = {
        "repeat_tokens": {"distribution": "geometric", "mean": 1},
        "gap_tokens": {"distribution": "geometric", "mean": 1e9},
        "min_match": 2,
    } | FALSE
    found = seen(served(lookup, StaticPolicy(0))[1])
    rate = np.mean([score > 0 for score, *_ in found.values()])
    score = np.mean([score for score, *_ in found.values() if score])
    drafts = [accepted for _, _, accepted, judged in seen(served(lookup, LookupPolicy(15))[1]).values() if judged]
    assert rate == pytest.approx(0.25, abs=0.02)
    assert score == pytest.approx(2 + 0.4 / 0.6, abs=0.1)
    assert np.mean(drafts) == pytest.approx(0.4 / 0.6, abs=0.1)


@pytest.mark.parametrize("lookup", [GEOMETRIC, LOGNORMAL])
def test_the_oracles_acceptance_is_how_often_tokens_are_accepted(lookup: dict[str, Any]) -> None:
    state, steps = served(lookup, LookupPolicy(6))
    request = np.zeros(1, state.requests.dtype)[0]
    kind = state.acceptance.classes[0]
    expected = np.zeros(6)
    accepted = np.zeros(6)
    tried = 0
    for score, length, taken, is_judged in seen(steps).values():
        if is_judged and length >= 6:
            # In a repeat since output position 0.
            request["repeating"], request["stretch_until"], request["emitted"] = 1, 10**6, score
            out = np.zeros(6)
            lookup_acceptance(request, kind, 6, out)
            expected += np.cumprod(out)
            accepted += np.arange(6) < taken
            tried += 1
    assert tried > 300
    assert accepted / tried == pytest.approx(expected / tried, abs=0.06)


@pytest.mark.parametrize("order", ORDERS)
def test_only_drafts_of_the_drafter_have_passes(order: str) -> None:
    state, steps = served(GEOMETRIC, LookupPolicy(15), server__emit=order)
    drafted = accepted = 0
    for view, plan, outcome in steps.seen:
        assert plan.sources is outcome.sources
        assert outcome.draft_rows.size == outcome.draft_seconds == 0
        rows = int((1 + outcome.drafted[view.decoding]).sum())
        if not outcome.prefill_tokens and (outcome.emitted > 0).all():
            assert outcome.tokens_batched == rows
        drafted, accepted = drafted + int(outcome.drafted.sum()), accepted + int(outcome.accepted.sum())
    assert accepted > 0.3 * drafted > 0
    assert state.totals["draft_seconds"][0] == 0.0


@pytest.mark.parametrize("order", ORDERS)
def test_the_views_limits_are_each_sources_own(order: str) -> None:
    _, steps = served(GEOMETRIC, LookupPolicy(15, 5), server__emit=order, drafter__max_lookup=9)
    lengths, limits = [], []
    for view, _, _ in steps.seen:
        assert view.lookup is not None
        assert view.max_draft == 9
        found = view.lookup.lengths
        assert (found <= np.maximum(view.tokens_left - 1, 0)).all()
        assert ((found == 0) | (view.lookup.scores > 0)).all()
        assert (found[~view.decoding] == 0).all()
        lengths += found.tolist()
        limits += view.draft_limits.tolist()
    assert (max(lengths), max(limits)) == (9, 5)


def lags_after_lookups(batch: bool) -> list[tuple[int, int, int]]:
    """Drafter KV lag before a request's draft of the look-up, after it, and the tokens emitted between."""
    _, steps = served(GEOMETRIC, LookupPolicy(15, 3), drafter__batch=batch)
    lags: list[tuple[int, int, int]] = []
    before: dict[int, tuple[int, int]] = {}
    for view, plan, _ in steps.seen:
        assert plan.sources is not None
        for row, request in enumerate(view.request_ids.tolist()):
            lag, emitted = int(view.drafter_lag_tokens[row]), int(view.emitted_tokens[row])
            if request in before:
                lags.append((before[request][0], lag, emitted - before[request][1]))
            before.pop(request, None)
            if view.decoding[row] and plan.sources[row] == Source.LOOKUP:
                before[request] = lag, emitted
    return lags


def test_requests_that_draft_from_the_lookup_lag_unless_a_pass_takes_the_batch_along() -> None:
    ragged, batch = lags_after_lookups(False), lags_after_lookups(True)
    assert all(after == before + emitted for before, after, emitted in ragged if before)
    assert sum(after > before for before, after, _ in ragged) > 100
    assert np.mean([after > 0 for before, after, _ in batch if before == 0]) < 0.1


def test_a_drafter_may_be_accepted_otherwise_in_repeats() -> None:
    lookup = GEOMETRIC | {"drafter_acceptance": [1.0]}
    _, steps = served(lookup, StaticPolicy(1), chat__acceptance={"process": "iid", "rate": 0.0})
    every = seen(served(GEOMETRIC, StaticPolicy(0))[1])
    inside = {(request, place) for request in range(40) for run in runs_of(every, request) for place in range(*run)}
    judged = steps.acceptances()
    ended = {request: max(end for _, end in runs_of(every, request)) for request in range(40)}
    assert all(ok == (place in inside) for place, ok in judged.items() if 1 <= place[1] < ended[place[0]])
    assert 0.4 < np.mean([*judged.values()]) < 0.8


def test_a_lookup_costs_its_requests_host_time() -> None:
    free, dear = (
        served(GEOMETRIC, StaticPolicy(0), latency__lookup_request_seconds=seconds)[0] for seconds in (0.0, 1e-3)
    )
    rows = free.totals["decode_rows"][0]
    more = dear.totals["host_seconds"][0] - free.totals["host_seconds"][0]
    assert more == pytest.approx(rows * 1e-3, rel=0.1)


def test_no_lookup_is_offered_where_no_class_has_one_or_its_limit_is_0() -> None:
    for made in (closed(2), closed(2, chat__lookup=GEOMETRIC, drafter__max_lookup=0)):
        state, steps = state_of(made), Steps()
        serve(state, StaticPolicy(2), steps)
        assert state.max_draft == 5
        assert all(view.lookup is None for view, _, _ in steps.seen)
