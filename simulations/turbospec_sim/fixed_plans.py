"""The policies that `best_static` chooses from in hindsight: fixed draft lengths of fixed sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from turbospec.interface import StepOutcome, StepPlan, StepView
from turbospec.policy.lookup_first import plan_lookup_first
from turbospec_sim.scenario import Scenario

LEAST_SCORES = (0, 4, 8)
"""Minimum scores that are tried where the look-up comes first: none, TensorRT-LLM's minimum match, twice that."""
FIELDS = ("draft_length", "lookup_length", "lookup_score")
"""Of a row: what was chosen in hindsight; None for other policies, and for look-ups where there are none."""


class FixedPlans(NamedTuple):
    """A policy whose plans depend on nothing but what the look-up finds."""

    draft_length: int
    """K of the drafter, for requests that do not draft from the look-up."""
    lookup_length: int = 0
    """Longest draft of the look-up; 0: it is never taken."""
    lookup_score: int = 0
    """Least score at which the look-up is taken."""

    def plan(self, view: StepView) -> StepPlan:
        return plan_lookup_first(view, self.lookup_score, self.lookup_length, self.draft_length)

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""


def fixed_plans(scenario: Scenario) -> list[FixedPlans]:
    """All that `best_static` tries in a scenario: each source alone at each length, and the look-up at its full length
    before each length of the drafter."""
    lengths, longest = range(scenario.drafter.max_draft + 1), scenario.max_lookup
    tried = [FixedPlans(length) for length in lengths]
    tried += [FixedPlans(0, length) for length in range(1, longest + 1)]
    if longest:
        tried += [FixedPlans(length, longest, score) for score in LEAST_SCORES for length in lengths if length]
    return tried


def chosen(fixed: FixedPlans | None) -> dict[str, int | None]:
    """The `FIELDS` of a run's row; None for a policy that was not chosen in hindsight."""
    if fixed is None:
        return dict.fromkeys(FIELDS)
    return dict(zip(FIELDS, fixed if fixed.lookup_length else (fixed.draft_length, None, None), strict=True))


def chosen_in_words(row: Mapping[str, Any]) -> str:
    """What was chosen in hindsight, such as `K=3`; empty for other policies."""
    length, lookup, score = (row[name] for name in FIELDS)
    if length is None:
        return ""
    if lookup is None:
        return f"K={length}"
    matching = f" from score {score}" if score else ""
    otherwise = f", else K={length}" if length else ""
    return f"look-up K={lookup}{matching}{otherwise}"
