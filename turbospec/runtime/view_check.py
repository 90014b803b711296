"""Checks a view before any policy sees it.

A value that breaks the contract of `turbospec.interface` could make a policy raise in every later step, stay in a model
for ever, or make a compiled kernel read past the end of an array.
"""

from __future__ import annotations

import numpy as np

from turbospec.interface import (
    MAX_COUNT,
    MAX_DRAFT_LENGTH,
    MAX_REQUESTS,
    FloatArray,
    IntArray,
    LookupView,
    Phase,
    StepView,
)
from turbospec.runtime.contract_types import HostFault, with_contract_types
from turbospec.runtime.hashing import first_place, table_bits
from turbospec.runtime.kernels import compile_for, compiled

VALID, UNUSUAL = 0, -1
"""Results of a check: the contract is kept; a field has another type than the contract's, or cannot be used."""
FAULTS = (
    "",
    "the arrays differ in length",
    f"there are more than {MAX_REQUESTS} requests",
    "step is negative",
    f"max_draft is not between 0 and {MAX_DRAFT_LENGTH}",
    "waiting_requests, admitted_requests, prefill_tokens, drafter_prefill_tokens or largest_graph is not between 0 and "
    f"{MAX_COUNT}",
    f"now is not between {-MAX_COUNT} and {MAX_COUNT} s",
    f"waiting_seconds is not between 0 and {MAX_COUNT} s",
    "phase is not one of Phase",
    f"context_tokens, emitted_tokens or drafter_lag_tokens is not between 0 and {MAX_COUNT}",
    "draft_limits is not between 0 and max_draft",
    "draft_limits is not 0 in prefill",
    "request_ids has duplicates",
    "lookup has arrays of another length than the view",
    "lookup.lengths is not between 0 and max_draft, or not 0 in prefill",
    f"lookup.scores is not between 0 and {MAX_COUNT}",
    "a field cannot be used",
)
"""What is wrong with a view, by the result of `_view_fault`."""
LAST_PHASE = Phase.DECODE.value


def checked_view(view: StepView, *, is_converted: bool = False) -> StepView:
    """A view that keeps the contract: the given one, or a copy with the contract's types.

    Args:
        view: of a host.
        is_converted: whether it has been converted to the contract's types.

    Raises:
        HostFault: it breaks the contract.
    """
    fault = UNUSUAL
    try:
        lengths, drafter_lengths = view.graph_lengths, view.drafter_graph_lengths
        # Of integers alone, negative or too large if one of them is.
        counts = view.waiting_requests | view.admitted_requests | view.prefill_tokens | view.drafter_prefill_tokens
        counts |= view.largest_graph
        if (
            type(view) is StepView
            and int is type(view.step) is type(view.max_draft) is type(counts)
            and float is type(view.now) is type(view.waiting_seconds) is type(view.drafter_kv_share)
            and 0.0 <= view.drafter_kv_share <= 1.0
            and bool
            is type(view.draft_before_emit)
            is type(view.prefill_limited)
            is type(view.parallel_drafter)
            is type(view.batch_drafter)
            is type(view.first_pass_every_step)
            is type(view.drafter_always_prefills)
            is type(view.calls_gate)
            is type(view.calls_trim)
            and tuple is type(lengths) is type(drafter_lengths)
            and (not lengths or _are_draft_lengths(lengths))
            and (not drafter_lengths or _are_draft_lengths(drafter_lengths))
        ):
            fault = _view_fault(
                view.request_ids,
                view.phase,
                view.context_tokens,
                view.emitted_tokens,
                view.tokens_left,
                view.drafter_lag_tokens,
                view.class_ids,
                view.draft_limits,
                view.step,
                view.max_draft,
                counts,
                view.now,
                view.waiting_seconds,
            )
            lookup = view.lookup
            if lookup is not None and fault == VALID:
                fault = UNUSUAL
                if type(lookup) is LookupView and type(lookup.appends) is bool:
                    fault = _lookup_fault(lookup.lengths, lookup.scores, view.phase, view.max_draft)
    except Exception:  # a field of another type may raise anything when it is used
        fault = UNUSUAL
    if fault == VALID:
        return view
    if fault != UNUSUAL or is_converted:
        raise HostFault(FAULTS[fault])
    return checked_view(with_contract_types(view, StepView), is_converted=True)


def compile_check() -> None:
    """Compile the check, or load it from the cache, so that the first step does not wait for it."""
    one = np.zeros(1, np.int64)
    compile_for(_view_fault, *[one] * 8, *[0] * 3, 0.0, 0.0)
    compile_for(_lookup_fault, one, np.zeros(1), one, 0)


def _are_draft_lengths(lengths: tuple[int, ...]) -> bool:
    for each in lengths:
        if type(each) is not int or not 0 <= each <= MAX_DRAFT_LENGTH:
            return False
    return len(lengths) <= MAX_DRAFT_LENGTH + 1


@compiled
def _view_fault(
    request_ids: IntArray,
    phase: IntArray,
    context_tokens: IntArray,
    emitted_tokens: IntArray,
    tokens_left: IntArray,
    drafter_lag_tokens: IntArray,
    class_ids: IntArray,
    draft_limits: IntArray,
    step: int,
    max_draft: int,
    scalar_counts: int,
    now: float,
    waiting_seconds: float,
) -> int:
    n = len(request_ids)
    # No loop over a tuple of the arrays: counting references takes longer than the comparisons.
    if len(phase) != n or len(context_tokens) != n or len(emitted_tokens) != n or len(tokens_left) != n:
        return 1
    if len(drafter_lag_tokens) != n or len(class_ids) != n or len(draft_limits) != n:
        return 1
    if n > MAX_REQUESTS:
        return 2
    if step < 0:
        return 3
    if not 0 <= max_draft <= MAX_DRAFT_LENGTH:
        return 4
    if not 0 <= scalar_counts <= MAX_COUNT:
        return 5
    if not -MAX_COUNT <= now <= MAX_COUNT:
        return 6
    if not 0.0 <= waiting_seconds <= MAX_COUNT:
        return 7
    # Sums of signs and bits instead of branches: the loop is then vectorised.
    phases = counts = limits = 0
    drafting_in_prefill = 0
    for i in range(n):
        phases |= phase[i] | (LAST_PHASE - phase[i])
        counts |= context_tokens[i] | emitted_tokens[i] | drafter_lag_tokens[i]
        limits |= draft_limits[i] | (max_draft - draft_limits[i])
        # Negative where the phase is 0 and the limit above 0.
        drafting_in_prefill |= (phase[i] - 1) & -draft_limits[i]
    if phases < 0:
        return 8
    if not 0 <= counts <= MAX_COUNT:
        return 9
    if limits < 0:
        return 10
    if drafting_in_prefill < 0:
        return 11
    return 0 if _all_differ(request_ids) else 12


@compiled
def _lookup_fault(lengths: IntArray, scores: FloatArray, phase: IntArray, max_draft: int) -> int:
    n = len(phase)
    if len(lengths) != n or len(scores) != n:
        return 13
    found = 0
    for i in range(n):
        found |= lengths[i] | (max_draft - lengths[i]) | ((phase[i] - 1) & -lengths[i])
    if found < 0:
        return 14
    for i in range(n):
        if not 0.0 <= scores[i] <= MAX_COUNT:
            return 15
    return 0


@compiled
def _all_differ(values: IntArray) -> bool:
    n = len(values)
    if n < 2:
        return True
    # A hash table with open addressing; the first value marks a free place.
    first, bits = values[0], table_bits(4 * n)
    table, last = np.full(1 << bits, first, np.int64), (1 << bits) - 1
    for i in range(1, n):
        value = values[i]
        place = first_place(value, bits)
        if value == first:
            return False
        while table[place] != first:
            if table[place] == value:
                return False
            place = (place + 1) & last
        table[place] = value
    return True
