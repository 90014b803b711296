"""Checks an outcome against the view of its step, before any policy or listener sees it."""

from __future__ import annotations

import numpy as np

from turbospec.interface import (
    MAX_COUNT,
    MAX_DRAFT_LENGTH,
    MAX_REQUESTS,
    MAX_STEP_SECONDS,
    MIN_STEP_SECONDS,
    BoolArray,
    FloatArray,
    IntArray,
    Source,
    StepOutcome,
    StepView,
)
from turbospec.runtime.contract_types import HostFault, with_contract_types
from turbospec.runtime.kernels import compile_for, compiled

VALID, UNUSUAL = 0, -1
"""Results of a check: the contract is kept; a field has another type than the contract's, or cannot be used."""
MAX_ROWS = MAX_REQUESTS * MAX_DRAFT_LENGTH
"""Most rows of one drafter pass."""
FAULTS = (
    "",
    "the arrays differ in length from the view's",
    f"a number of tokens, steps or requests is not between 0 and {MAX_COUNT}",
    f"step_seconds is neither 0 nor between {MIN_STEP_SECONDS:g} and {MAX_STEP_SECONDS:g} s",
    f"draft_seconds or verify_seconds is not between 0 and {MAX_STEP_SECONDS:g} s, or drafting is longer than the step",
    f"reused_plan_seconds is not between {MIN_STEP_SECONDS:g} and {MAX_STEP_SECONDS:g} s for each reused step",
    "there are tokens or seconds of reused plans without reused_plan_steps",
    "0, accepted, drafted, proposed and the view's max_draft do not rise in this order",
    f"emitted is not between 0 and {MAX_DRAFT_LENGTH + 1}",
    f"draft_rows has more than {MAX_DRAFT_LENGTH + 1} passes, or one not between 0 and {MAX_ROWS} rows",
    "confidence has fewer columns than the longest draft, or is not between 0 and 1 at a proposed position",
    "request_ids is not the view's",
    "sources has another length than the view, or a value that is no Source",
    "appended has another length than the view, is not below drafted, or is of a draft of the look-up",
    "a field cannot be used",
)
"""What is wrong with an outcome, by the result of `_fault`."""
OTHER_REQUESTS = FAULTS.index("request_ids is not the view's")
OTHER_SOURCES = OTHER_REQUESTS + 1
OTHER_APPENDED = OTHER_SOURCES + 1
LAST_SOURCE = max(Source).value
NO_CONFIDENCE: FloatArray = np.zeros((0, 0))
MAX_CONFIDENCE = 1.001
"""A probability of 1, computed from logits in float32 or less, may be slightly larger."""


def checked_outcome(outcome: StepOutcome, view: StepView, *, is_converted: bool = False) -> StepOutcome:
    """An outcome that keeps the contract: the given one, or a copy with the contract's types.

    Args:
        outcome: of a host.
        view: of the same step, checked.
        is_converted: whether the outcome has been converted to the contract's types.

    Raises:
        HostFault: the outcome breaks the contract, or does not belong to the view.
    """
    fault = UNUSUAL
    try:
        request_ids, confidence = outcome.request_ids, outcome.confidence
        # Of integers alone, negative or too large if one of them is.
        counts = (
            outcome.draft_context_tokens
            | outcome.catch_up_tokens
            | outcome.tokens_batched
            | outcome.padded_tokens
            | outcome.prefill_tokens
            | outcome.context_tokens
            | outcome.reused_plan_steps
            | outcome.reused_plan_tokens
            | outcome.reused_plan_prefill_tokens
            | outcome.waiting_requests
            | outcome.failures
        )
        if (
            type(outcome) is StepOutcome
            and int is type(outcome.step) is type(counts)
            and float
            is type(outcome.draft_seconds)
            is type(outcome.verify_seconds)
            is type(outcome.step_seconds)
            is type(outcome.reused_plan_seconds)
            and type(outcome.piecewise) is bool
        ):
            fault = OTHER_REQUESTS
            if request_ids is view.request_ids or _are_equal(request_ids, view.request_ids):
                fault = _outcome_fault(
                    outcome.drafted,
                    outcome.accepted,
                    outcome.emitted,
                    outcome.proposed,
                    outcome.truncated,
                    outcome.draft_rows,
                    NO_CONFIDENCE if confidence is None else confidence,
                    confidence is not None,
                    len(request_ids),
                    view.max_draft,
                    counts,
                    outcome.reused_plan_steps,
                    outcome.reused_plan_tokens | outcome.reused_plan_prefill_tokens,
                    outcome.draft_seconds,
                    outcome.verify_seconds,
                    outcome.step_seconds,
                    outcome.reused_plan_seconds,
                )
                if (
                    fault == VALID
                    and outcome.sources is not None
                    and not _are_sources(outcome.sources, len(request_ids))
                ):
                    fault = OTHER_SOURCES
                if fault == VALID and outcome.appended is not None and not _are_appended(outcome):
                    fault = OTHER_APPENDED
    except Exception:  # a field of another type may raise anything when it is used
        fault = UNUSUAL
    if fault == VALID:
        return outcome
    if fault != UNUSUAL or is_converted:
        raise HostFault(FAULTS[fault])
    return checked_outcome(with_contract_types(outcome, StepOutcome), view, is_converted=True)


def compile_check() -> None:
    """Compile the check, or load it from the cache, so that the first step does not wait for it."""
    one, flags = np.zeros(1, np.int64), np.zeros(1, np.bool_)
    compile_for(_are_equal, one, one)
    compile_for(_are_sources, one, 1)
    compile_for(within, one, one)
    compile_for(_outcome_fault, *[one] * 4, flags, one, NO_CONFIDENCE, False, 1, *[0] * 4, *[0.0] * 4)


def _are_appended(outcome: StepOutcome) -> bool:
    appended, sources = outcome.appended, outcome.sources
    assert appended is not None
    if len(appended) != len(outcome.drafted) or not within(appended, outcome.drafted):
        return False
    if (appended[appended > 0] == outcome.drafted[appended > 0]).any():
        return False  # there is no draft of the drafter that they follow
    return sources is None or not appended[sources == Source.LOOKUP].any()


@compiled
def _are_equal(left: IntArray, right: IntArray) -> bool:
    if len(left) != len(right):
        return False
    differences = 0
    for i in range(len(left)):
        differences |= left[i] ^ right[i]
    return differences == 0


@compiled
def _are_sources(sources: IntArray, n: int) -> bool:
    bits = 0
    for source in sources:
        bits |= source | (LAST_SOURCE - source)
    return len(sources) == n and bits >= 0


@compiled
def within(lengths: IntArray, limits: IntArray) -> bool:
    """Whether each length is between 0 and its limit."""
    for i in range(len(lengths)):  # noqa: SIM110 numba compiles a loop better than a generator
        if lengths[i] < 0 or lengths[i] > limits[i]:
            return False
    return True


@compiled
def _outcome_fault(
    drafted: IntArray,
    accepted: IntArray,
    emitted: IntArray,
    proposed: IntArray,
    truncated: BoolArray,
    draft_rows: IntArray,
    confidence: FloatArray,
    has_confidence: bool,
    n: int,
    max_draft: int,
    scalar_counts: int,
    reused_plan_steps: int,
    reused_plan_tokens: int,
    draft_seconds: float,
    verify_seconds: float,
    step_seconds: float,
    reused_plan_seconds: float,
) -> int:
    # No loop over a tuple of the arrays: counting references takes longer than the comparisons.
    if len(drafted) != n or len(accepted) != n or len(emitted) != n or len(proposed) != n or len(truncated) != n:
        return 1
    if not 0 <= scalar_counts <= MAX_COUNT:
        return 2
    if step_seconds != 0.0 and not MIN_STEP_SECONDS <= step_seconds <= MAX_STEP_SECONDS:
        return 3
    if not (0.0 <= draft_seconds <= MAX_STEP_SECONDS and 0.0 <= verify_seconds <= MAX_STEP_SECONDS):
        return 4
    if draft_seconds > step_seconds > 0.0:
        return 4
    if reused_plan_steps > 0:
        if not MIN_STEP_SECONDS <= reused_plan_seconds / reused_plan_steps <= MAX_STEP_SECONDS:
            return 5
    elif reused_plan_tokens != 0 or reused_plan_seconds != 0.0:
        return 6
    lengths = emissions = 0
    for i in range(n):
        lengths |= accepted[i] | drafted[i] | proposed[i]
        lengths |= (drafted[i] - accepted[i]) | (proposed[i] - drafted[i]) | (max_draft - proposed[i])
        emissions |= emitted[i] | (MAX_DRAFT_LENGTH + 1 - emitted[i])
    if lengths < 0:
        return 7
    if emissions < 0:
        return 8
    if len(draft_rows) > MAX_DRAFT_LENGTH + 1:
        return 9
    for i in range(len(draft_rows)):
        if not 0 <= draft_rows[i] <= MAX_ROWS:
            return 9
    if has_confidence and not is_confidence(confidence, proposed):
        return 10
    return 0


@compiled
def is_confidence(confidence: FloatArray, proposed: IntArray) -> bool:
    """Whether there is a confidence between 0 and 1 at each proposed position."""
    n, columns = confidence.shape
    if n != len(proposed):
        return False
    for i in range(n):
        if not 0 <= proposed[i] <= columns:
            return False
        outside = False
        for j in range(proposed[i]):
            outside |= not ((confidence[i, j] >= 0.0) & (confidence[i, j] <= MAX_CONFIDENCE))
        if outside:
            return False
    return True
