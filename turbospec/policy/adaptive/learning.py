"""What `adaptive` learns from a step, compiled: budget of experiments, step cost, prompts, acceptance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turbospec.interface import BoolArray, FloatArray, IntArray, Source
from turbospec.models.acceptance import Memory, VerifiedDrafts, forget_gradually, score_buckets
from turbospec.models.acceptance import observe as observe_drafts
from turbospec.models.logistic import Terms, discount_offsets, discount_shared
from turbospec.models.step_cost import (
    CATCH_UP,
    DRAFT,
    DRAFT_CONTEXT,
    PASSES,
    ROWS,
    SIZE,
    StepCost,
    forget_drafting,
    graph_features,
    learn_step,
    target_features,
)
from turbospec.policy.adaptive.appending import verified_appended
from turbospec.policy.adaptive.constants import Constants
from turbospec.policy.adaptive.experiments import charged_loss
from turbospec.policy.adaptive.state import Server, Shared, appended_terms, drafter_terms, lookup_terms
from turbospec.runtime.kernels import compiled, inlined

LOOKUP = Source.LOOKUP.value


class Measured(NamedTuple):
    """Scalars of an outcome, and what the plan knew."""

    requests: int
    tokens_batched: int
    context_tokens: int
    prefill_tokens: int
    planned_prefill_tokens: int
    prefill_limited: bool
    """As in a view."""
    drafter_kv_share: float
    """As in a view."""
    piecewise: bool
    no_draft_piecewise: bool
    """Whether steps without drafts miss a full CUDA graph."""
    largest_graph: int
    """As in a view."""
    first_pass_every_step: bool
    draft_context_tokens: int
    catch_up_tokens: int
    draft_seconds: float
    step_seconds: float
    reused_plan_steps: int
    reused_plan_tokens: int
    reused_plan_prefill_tokens: int
    reused_plan_seconds: float
    price: float
    experiment: bool
    experiment_seconds: float
    best_accepted: float
    reserved: float
    """As in the plan's `Choice`."""
    appends: bool
    """Whether the engine can append what the look-up finds."""
    append_limit_tokens: int
    """Tokens that the plan allowed the look-up to append."""


@inlined
def _learn_source(
    terms: Terms,
    drafts: VerifiedDrafts,
    used: bool,
    memory: Memory,
    reused_plan_steps: int,
) -> None:
    """Learn the acceptance of one source.

    Args:
        terms: of the source's model.
        drafts: of the source.
        used: whether it drafted.
        memory: of the model.
        reused_plan_steps: steps without drafts just before.
    """
    idle_steps = reused_plan_steps if used else reused_plan_steps + 1
    if idle_steps and memory.idle_decay < 1.0:
        discount_shared(terms, memory.idle_decay**idle_steps)
        forget_gradually(terms, drafts.rows, memory, idle_steps)
    if used:
        observe_drafts(terms, drafts, memory)
        if memory.idle_decay < 1.0 and not len(drafts.buckets):
            # Positions that no draft reaches are not observed: without this they would never be tried again.
            discount_offsets(terms, drafts.drafted.max(), memory.idle_decay)


@compiled
def learn(
    state: Sequence[Shared],
    request_state: FloatArray,
    rows: IntArray,
    class_ids: IntArray,
    lookup_scores: FloatArray,
    drafted: IntArray,
    accepted: IntArray,
    truncated: BoolArray,
    confidence: FloatArray,
    sources: IntArray,
    appended: IntArray,
    draft_rows: IntArray,
    measured: Measured,
    probe_share: float,
) -> None:
    """Learn from one outcome: budget, step cost, running means, acceptance.

    Args:
        state, request_state: of an `AdaptiveState`, updated in place.
        rows: (n,) rows of the requests.
        class_ids: (n,) of the view.
        lookup_scores: (n,) of the view; empty without a look-up.
        drafted, accepted, truncated, confidence: of the outcome; confidence is (0, 0) where it is not used.
        sources: (n,) of the drafts; empty where the drafter made all of them.
        appended: (n,) tokens that the look-up appended to the drafter's; empty where it appended none.
        draft_rows: of the outcome.
        measured: of the outcome.
        probe_share: a setting.
    """
    measured, shared = Measured(*measured), state[0]
    constants, prompts = shared.constants, max(measured.prefill_tokens - measured.planned_prefill_tokens, 0)
    # Without experiments nothing would correct what is forgotten.
    forgets, passes = probe_share > 0.0, len(draft_rows)
    _learn_budget(shared.server, measured, accepted.sum(), probe_share, constants)
    if measured.step_seconds > 0.0:
        _learn_cost(shared.cost, measured, draft_rows, forgets, constants)
    weight, server = constants.mean_weight, shared.server
    # A step on a reused plan has no view, and is taken to be like the planned one after it.
    planned_weight = 1.0 - (1.0 - weight) ** (1 + measured.reused_plan_steps)
    server.limited_share += planned_weight * (measured.prefill_limited - server.limited_share)
    server.drafter_kv_share += planned_weight * (measured.drafter_kv_share - server.drafter_kv_share)
    server.unforeseen_share += weight * ((prompts > 0) - server.unforeseen_share)
    server.unforeseen_tokens += weight * (prompts - server.unforeseen_tokens)
    server.prompt_share += weight * ((measured.prefill_tokens > 0) - server.prompt_share)
    server.prompt_tokens += weight * (measured.prefill_tokens - server.prompt_tokens)
    drafts = VerifiedDrafts(rows, class_ids, score_buckets(lookup_scores), drafted, accepted, truncated, confidence)
    drafter_used = _learn_acceptance(shared, request_state, drafts, sources, appended, passes, measured, forgets)
    server.drafting_share *= (1.0 - weight) ** measured.reused_plan_steps
    server.drafting_share += weight * (drafter_used - server.drafting_share)


@inlined
def _learn_budget(
    server: Server, measured: Measured, accepted_tokens: int, probe_share: float, constants: Constants
) -> None:
    """Add the step's share to the budget of experiments, and take out what an experiment lost, as far as the plan has
    not reserved it."""
    seconds = measured.step_seconds
    if seconds > 0.0 and measured.prefill_tokens == 0 and server.budget_limit == 0.0:
        server.budget_limit = server.budget = constants.budget_steps * seconds
    if measured.experiment:
        gained = accepted_tokens - measured.best_accepted
        server.budget += measured.reserved - charged_loss(measured.experiment_seconds, gained, measured.price)
    server.budget += probe_share * (seconds + measured.reused_plan_seconds)
    # An experiment that turned out badly must not end experiments for good. For one that would lose more than the usual
    # limit, such as one that catches up a long prompt, the budget is saved.
    server.budget = min(max(server.budget, -server.budget_limit), max(server.budget_limit, server.saving))


@inlined
def _learn_cost(cost: StepCost, measured: Measured, draft_rows: IntArray, forgets: bool, constants: Constants) -> None:
    """Learn the step's time, and the mean time of steps that reused the plan before it if none had prompts.

    `forgets` says whether the cost of drafting becomes uncertain in steps without drafts.
    """
    x, passes = np.zeros(SIZE), len(draft_rows)
    context, requests = float(measured.context_tokens), float(measured.requests)
    idle_steps = measured.reused_plan_steps + (passes == 0)
    if idle_steps and forgets:
        forget_drafting(cost, idle_steps / constants.idle_cost_steps)
    if measured.reused_plan_steps and not measured.reused_plan_prefill_tokens:
        tokens = measured.reused_plan_tokens / measured.reused_plan_steps
        target_features(x, tokens, context, requests, 0.0)
        graph_features(x, measured.no_draft_piecewise, tokens, measured.largest_graph)
        mean_seconds = max(measured.reused_plan_seconds / measured.reused_plan_steps, 1e-9)
        # The costs have drifted in each of these steps.
        drift = constants.drift * math.sqrt(measured.reused_plan_steps)
        learn_step(cost, x, mean_seconds, 0.0, drift, constants.surprise_weight)
    target_features(x, float(measured.tokens_batched), context, requests, float(measured.prefill_tokens))
    graph_features(x, measured.piecewise, float(measured.tokens_batched), measured.largest_graph)
    if passes:
        x[DRAFT] = 0.0 if measured.first_pass_every_step else 1.0
        x[PASSES], x[ROWS], x[DRAFT_CONTEXT] = passes, float(draft_rows.sum()), measured.draft_context_tokens
        x[CATCH_UP] = measured.catch_up_tokens
    learn_step(cost, x, measured.step_seconds, measured.draft_seconds, constants.drift, constants.surprise_weight)


@inlined
def _learn_acceptance(
    shared: Shared,
    request_state: FloatArray,
    drafts: VerifiedDrafts,
    sources: IntArray,
    appended: IntArray,
    passes: int,
    measured: Measured,
    forgets: bool,
) -> bool:
    """Learn the acceptance of each source; returns whether the drafter was used.

    `passes` are the drafter's; `forgets` says whether acceptance terms decay in steps without drafts; the other
    arguments are as in `learn`.
    """
    constants, server = shared.constants, shared.server
    idle_decay = math.exp(-1.0 / constants.idle_steps) if forgets else 1.0
    memory = Memory(constants.server_memory, constants.request_memory, idle_decay)
    of_drafter, accepted_of_drafter = drafts.drafted, drafts.accepted
    if len(sources):
        of_drafter = np.where(sources == LOOKUP, 0, of_drafter)
    if len(appended):
        of_drafter = of_drafter - appended
        accepted_of_drafter = np.minimum(drafts.accepted, of_drafter)
    rows, class_ids, buckets, truncated = drafts.rows, drafts.class_ids, drafts.buckets, drafts.truncated
    reused, unscored, none = measured.reused_plan_steps, np.zeros(0, np.int64), np.zeros((0, 0))
    made = VerifiedDrafts(rows, class_ids, unscored, of_drafter, accepted_of_drafter, truncated, drafts.confidence)
    drafter_used = passes > 0 or bool(of_drafter.any())
    _learn_source(drafter_terms(shared, request_state), made, drafter_used, memory, reused)
    if len(buckets):
        of_lookup = np.where(of_drafter > 0, 0, drafts.drafted)
        made = VerifiedDrafts(rows, class_ids, buckets, of_lookup, drafts.accepted, truncated, none)
        used = bool(of_lookup.any())
        _learn_source(lookup_terms(shared, request_state), made, used, memory, reused)
    if measured.appends:
        if measured.append_limit_tokens > 0:
            share = appended.sum() / measured.append_limit_tokens
            server.found_share += constants.mean_weight * (share - server.found_share)
        made, used = verified_appended(drafts, of_drafter, appended), bool(appended.any())
        _learn_source(appended_terms(shared, request_state), made, used, memory, reused)
    return drafter_used
