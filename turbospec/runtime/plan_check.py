"""Checks a policy's plan before any host sees it."""

from __future__ import annotations

import operator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from turbospec.interface import MAX_COUNT, MAX_VALID_STEPS, IntArray, Source, StepPlan, StepView
from turbospec.runtime.kernels import compile_for, compiled

FAULTS = (
    "",
    "draft_lengths has another length than the view",
    "draft_lengths must lie between 0 and the view's draft_limits, or the look-up's lengths where it is the source",
    "draft_lengths must not exceed padded_length",
    "the policy changed the view's draft_limits",
    f"valid_steps is not between 1 and {MAX_VALID_STEPS}",
    f"predicted_tokens or predicted_seconds is neither NaN nor between 0 and {MAX_COUNT}",
    "sources has another length than the view",
    "sources has a value that is no Source",
    "append_limits has another length than the view, or a value that is not between 0 and the view's max_draft",
    "draft_lengths of the drafter must not exceed passes",
)
"""What is wrong with a plan, by the result of `_plan_fault`."""
DRAFTER, LOOKUP = Source.DRAFTER.value, Source.LOOKUP.value
ONE_SOURCE = np.zeros(0, np.int64)
MAX_REASON_CHARACTERS = 400


class PlanFault(Exception):
    """A policy returned something that is no plan for the view."""


def checked_plan(plan: object, view: StepView, limits: IntArray) -> StepPlan:
    """A copy of a plan, so that the policy cannot change it later.

    Args:
        plan: what the policy returned.
        view: that it was asked to plan; the policy may have changed its arrays.
        limits: (n,) a copy of the view's draft limits from before the policy saw it. It becomes the array of a plan
            without sources.

    Raises:
        PlanFault: it is no plan for the view.
    """
    if type(plan) is not StepPlan and not isinstance(plan, StepPlan):
        raise PlanFault(f"a {type(plan).__name__} was returned, not a StepPlan")
    lengths, tokens, seconds, reason = plan.draft_lengths, plan.predicted_tokens, plan.predicted_seconds, plan.reason
    padded, probe, valid_steps, passes = plan.padded_length, plan.probe, plan.valid_steps, plan.passes
    if not (
        float is type(tokens) is type(seconds)
        and int is type(padded) is type(valid_steps) is type(passes)
        and type(probe) is bool
        and type(reason) is str
        and reason.isascii()
        and reason.isprintable()
        and len(reason) <= MAX_REASON_CHARACTERS
    ):
        tokens, seconds = _number("predicted_tokens", tokens), _number("predicted_seconds", seconds)
        padded, valid_steps = _integer("padded_length", padded), _integer("valid_steps", valid_steps)
        passes = _integer("passes", passes)
        probe, reason = _flag("probe", probe), _one_line(reason)
    if padded and padded not in view.graph_lengths:
        raise PlanFault(f"padded_length is {padded}, not one of the view's {view.graph_lengths}")
    if passes and passes not in view.drafter_graph_lengths:
        raise PlanFault(f"passes is {passes}, not one of the view's {view.drafter_graph_lengths}")
    after, sources = view.draft_limits, plan.sources
    if sources is not None:
        if view.lookup is None:
            raise PlanFault("sources is given, but the view has no lookup")
        sources = _integers("sources", sources)
        limits = limits.copy()
        fault = _sources_fault(sources, view.lookup.lengths, after, limits)
        if fault:
            raise PlanFault(FAULTS[fault])
        after = limits
    appended = plan.append_limits
    if appended is not None:
        if view.lookup is None or not view.lookup.appends or padded:
            raise PlanFault("append_limits is given, but the engine appends nothing, or the plan has a padded_length")
        appended = _integers("append_limits", appended)
        if len(appended) != len(limits) or not ((appended >= 0) & (appended <= view.max_draft)).all():
            raise PlanFault(FAULTS[9])
    of_drafts = ONE_SOURCE if sources is None else sources
    try:
        fault = _plan_fault(lengths, limits, after, of_drafts, padded, passes, valid_steps, tokens, seconds)
    except Exception:  # another type than the contract's
        lengths = _integers("draft_lengths", lengths)
        fault = _plan_fault(lengths, limits, after, of_drafts, padded, passes, valid_steps, tokens, seconds)
    if fault:
        raise PlanFault(FAULTS[fault])
    if appended is not None:
        appended = np.minimum(appended, view.max_draft - limits)  # which hold the draft lengths by now
    gate, selection, trim = plan.gate, plan.selection, plan.trim
    if trim is not None and (gate is not None or selection is not None):
        raise PlanFault("trim is given beside a gate or a selection, by which the lengths of drafts depend on tokens")
    return StepPlan(
        limits, tokens, seconds, reason, gate, padded, probe, selection, valid_steps, sources, appended, passes, trim
    )


def compile_check() -> None:
    """Compile the check, or load it from the cache, so that the first step does not wait for it."""
    one = np.zeros(1, np.int64)
    compile_for(_plan_fault, one, one, one, ONE_SOURCE, 0, 0, 1, 0.0, 0.0)
    compile_for(_sources_fault, one, one, one, one)


def _integer(name: str, value: object) -> int:
    try:
        return operator.index(cast(Any, value))
    except TypeError as error:
        raise PlanFault(f"{name} is a {type(value).__name__}, not an integer") from error


def _number(name: str, value: object) -> float:
    if not isinstance(value, int | float | np.integer | np.floating):
        raise PlanFault(f"{name} is a {type(value).__name__}, not a number")
    return float(cast(float, value))


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise PlanFault(f"{name} is a {type(value).__name__}, not True or False")
    return bool(cast(bool, value))


def _integers(name: str, value: object) -> IntArray:
    array: NDArray[Any] = np.asarray(value)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise PlanFault(f"{name} is {array.dtype} of shape {array.shape}, not integers of one dimension")
    return np.array(array, np.int64)


def _one_line(reason: object) -> str:
    if type(reason) is not str:
        raise PlanFault(f"reason is a {type(reason).__name__}, not text")
    printable = "".join(each if each.isprintable() else " " for each in reason[:MAX_REASON_CHARACTERS])
    line = " ".join(printable.split())
    return line.encode("utf-8", "backslashreplace").decode()  # a lone surrogate could not be written to a trace


@compiled
def _sources_fault(sources: IntArray, lookup_lengths: IntArray, limits_after: IntArray, limits: IntArray) -> int:
    """Check a plan's sources, and replace the limits of the drafts that the look-up makes."""
    n = len(limits)
    if len(sources) != n:
        return 7
    if len(limits_after) != n or len(lookup_lengths) != n:
        return 4
    for i in range(n):
        if limits_after[i] != limits[i]:
            return 4
        if sources[i] == LOOKUP:
            limits[i] = lookup_lengths[i]
        elif sources[i] != DRAFTER:
            return 8
    return 0


@compiled
def _plan_fault(
    lengths: IntArray,
    limits: IntArray,
    limits_after: IntArray,
    sources: IntArray,
    padded_length: int,
    passes: int,
    valid_steps: int,
    tokens: float,
    seconds: float,
) -> int:
    n = len(limits)
    if len(lengths) != n:
        return 1
    if len(limits_after) != n:
        return 4
    outside = longer = changes = 0
    for i in range(n):
        outside |= lengths[i] | (limits[i] - lengths[i])
        longer |= padded_length - lengths[i]
        changes |= limits_after[i] ^ limits[i]
    if outside < 0:
        return 2
    if padded_length != 0 and longer < 0:
        return 3
    if changes != 0:
        return 4
    if not 1 <= valid_steps <= MAX_VALID_STEPS:
        return 5
    if not ((tokens != tokens or 0.0 <= tokens <= MAX_COUNT) and (seconds != seconds or 0.0 <= seconds <= MAX_COUNT)):
        return 6
    if passes != 0:
        for i in range(n):
            if lengths[i] > passes and (len(sources) == 0 or sources[i] != LOOKUP):
                return 10
    limits[:] = lengths  # only now: for a plan that is refused, the limits are needed
    return 0
