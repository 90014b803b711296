"""What `adaptive` learns from a step, compiled: budget of experiments, step cost, prompts, acceptance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turbospec.interface import IntArray, Source
from turbospec.models.acceptance import Memory, VerifiedDrafts, forget_gradually
from turbospec.models.acceptance import observe as observe_drafts
from turbospec.models.logistic import Terms, discount_shared
from turbospec.models.step_cost import (
    CATCH_UP,
    DRAFT,
    DRAFT_CONTEXT,
    PASSES,
    PIECEWISE,
    ROWS,
    SIZE,
    StepCost,
    learn_step,
    target_features,
)
from turbospec.policy.adaptive.appending import verified_appended
from turbospec.policy.adaptive.constants import Constants
from turbospec.policy.adaptive.decision import Server
from turbospec.runtime.kernels import compiled

LOOKUP = Source.LOOKUP.value


class Measured(NamedTuple):
    """Scalars of an outcome, and what the plan knew."""

    requests: int
    tokens_batched: int
    context_tokens: int
    prefill_tokens: int
    planned_prefill_tokens: int
    piecewise: bool
    first_pass_every_step: bool
    draft_context_tokens: int
    catch_up_tokens: int
    draft_seconds: float
    step_seconds: float
    reused_plan_steps: int
    reused_plan_tokens: int
    reused_plan_seconds: float
    price: float
    experiment_seconds: float
    experiment_gain: float
    appends: bool
    """Whether the engine can append what the look-up finds."""
    append_limit_tokens: int
    """Tokens that the plan allowed the look-up to append."""


@compiled
def _learn_source(
    terms: Terms,
    drafts: VerifiedDrafts,
    used: bool,
    memory: Memory,
    reused_plan_steps: int,
    forgets: bool,
    constants: Constants,
) -> None:
    """Learn the acceptance of one source.

    Args:
        terms: of the source's model.
        drafts: of the source.
        used: whether it drafted.
        memory: of the model.
        reused_plan_steps: steps without drafts just before.
        forgets: whether acceptance terms decay in steps without drafts.
        constants: of the policy.
    """
    idle_steps = reused_plan_steps if used else reused_plan_steps + 1
    if forgets and idle_steps:
        discount_shared(terms, math.exp(-idle_steps / constants.idle_steps))
        forget_gradually(terms, drafts.rows, memory, idle_steps)
    if used:
        observe_drafts(terms, drafts, memory)


@compiled
def learn(
    cost_state: Sequence[StepCost],
    server_state: Sequence[Server],
    terms: Terms,
    lookup_terms: Terms,
    appended_terms: Terms,
    drafts: VerifiedDrafts,
    sources: IntArray,
    appended: IntArray,
    draft_rows: IntArray,
    measured: Measured,
    memory: Memory,
    probe_share: float,
    constants: Constants,
) -> None:
    """Learn from one outcome: budget, step cost, running means, acceptance.

    `sources` are (n,) those of the drafts; empty where the drafter made all of them. `appended` are (n,) tokens that
    the look-up appended to the drafter's, empty where it appended none. The buckets of `drafts` are those
    of the look-up's scores, empty without a look-up. The other arguments are as in `decision.decide`.
    """
    measured, constants = Measured(*measured), Constants(*constants)
    terms, lookup_terms = Terms(*terms), Terms(*lookup_terms)
    drafts, memory = VerifiedDrafts(*drafts), Memory(*memory)
    cost, server = cost_state[0], server_state[0]
    seconds = measured.step_seconds
    if seconds > 0.0 and measured.prefill_tokens == 0:
        limit = constants.budget_steps * seconds
        if server.budget_limit == 0.0:
            server.budget_limit = server.budget = limit
        server.budget_limit += constants.mean_weight * (limit - server.budget_limit)
    if measured.experiment_seconds != 0.0:
        gained = drafts.accepted.sum() - measured.experiment_gain
        lost = measured.experiment_seconds - gained / measured.price
        server.budget -= max(lost, 0.1 * abs(measured.experiment_seconds))
    server.budget += probe_share * (seconds + measured.reused_plan_seconds)
    # A step that took much longer than predicted must not end experiments for good.
    server.budget = min(max(server.budget, -server.budget_limit), server.budget_limit)
    passes = len(draft_rows)
    if seconds > 0.0:
        x = np.zeros(SIZE)
        context, requests = float(measured.context_tokens), float(measured.requests)
        if measured.reused_plan_steps:
            tokens = measured.reused_plan_tokens / measured.reused_plan_steps
            target_features(x, tokens, context, requests, 0.0)
            mean_seconds = max(measured.reused_plan_seconds / measured.reused_plan_steps, 1e-9)
            learn_step(cost, x, mean_seconds, 0.0, 0.0, constants.surprise_weight)
        target_features(x, float(measured.tokens_batched), context, requests, float(measured.prefill_tokens))
        x[PIECEWISE] = 1.0 if measured.piecewise else 0.0
        if passes:
            rows = float(draft_rows.sum())
            x[DRAFT] = 0.0 if measured.first_pass_every_step else 1.0
            x[PASSES], x[ROWS], x[DRAFT_CONTEXT] = passes, rows, measured.draft_context_tokens
            x[CATCH_UP] = measured.catch_up_tokens
        learn_step(cost, x, seconds, measured.draft_seconds, constants.drift, constants.surprise_weight)
    weight, unforeseen = constants.mean_weight, max(measured.prefill_tokens - measured.planned_prefill_tokens, 0)
    server.unforeseen_share += weight * ((unforeseen > 0) - server.unforeseen_share)
    server.unforeseen_tokens += weight * (unforeseen - server.unforeseen_tokens)
    of_drafter = drafts.drafted
    if len(sources):
        of_drafter = np.where(sources == LOOKUP, 0, drafts.drafted)
    accepted_of_drafter = drafts.accepted
    if len(appended):
        of_drafter = of_drafter - appended
        accepted_of_drafter = np.minimum(drafts.accepted, of_drafter)
    # Without experiments nothing would correct what is forgotten.
    reused, forgets = measured.reused_plan_steps, probe_share > 0.0
    rows, class_ids, accepted, truncated = drafts.rows, drafts.class_ids, drafts.accepted, drafts.truncated
    confidence, unscored, none = drafts.confidence, np.zeros(0, np.int64), np.zeros((0, 0))
    made = VerifiedDrafts(rows, class_ids, unscored, of_drafter, accepted_of_drafter, truncated, confidence)
    used = passes > 0 or bool(of_drafter.any())
    _learn_source(terms, made, used, memory, reused, forgets, constants)
    if len(drafts.buckets):
        of_lookup = np.where(of_drafter > 0, 0, drafts.drafted)
        made = VerifiedDrafts(rows, class_ids, drafts.buckets, of_lookup, accepted, truncated, none)
        _learn_source(lookup_terms, made, bool(of_lookup.any()), memory, reused, forgets, constants)
    if measured.appends:
        if measured.append_limit_tokens > 0:
            share = appended.sum() / measured.append_limit_tokens
            server.found_share += weight * (share - server.found_share)
        judged = verified_appended(drafts, of_drafter, appended)
        _learn_source(Terms(*appended_terms), judged, bool(appended.any()), memory, reused, forgets, constants)
