"""Reconstructs the requests of a decision trace: arrivals, lengths, drafts, and the tokens known to be accepted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from turbospec.errors import UserError
from turbospec.interface import FloatArray, IntArray, Phase, Source
from turbospec.models.logistic import MAX_CLASSES
from turbospec.models.profile import LatencySample
from turbospec.observability.trace import TraceStep
from turbospec_sim.limits import MAX_CACHE_TOKENS, MAX_COUNT
from turbospec_sim.replay.arrivals import estimate_arrivals, seconds_between
from turbospec_sim.replay.tokens import Draft, KnownTokens
from turbospec_sim.workload.acceptance import MAX_POSITIONS

LEAST_STEP_SECONDS = 1e-9
"""Shorter steps were not measured."""
MISSING_STRETCH = 10
"""Fewest steps in a row without a line that count as missing. Steps whose requests have all ended have none either."""
MAX_TOKENS = 20_000_000
"""Output tokens of a trace, each of which takes about 50 bytes of memory."""


@dataclass(slots=True)
class _Request:
    """A request while the trace is read. Positions are indices of its output tokens."""

    number: int
    class_id: int
    begin: int
    """Output tokens emitted before its first row in the trace, without the last of them."""
    position: int
    """Tokens emitted so far."""
    first_line: int
    last_line: int = 0
    prompt_tokens: int | None = None
    prefilled: int = 1
    """Prompt tokens computed, for a request whose prefill does not end in the trace."""
    max_tokens: int = 1
    left: int = 0
    """Tokens left after its last row."""
    first_token: float = math.nan
    last_token: float = math.nan
    drafts: list[Draft] = field(default_factory=list[Draft])


@dataclass(frozen=True, slots=True)
class Recording:
    """The n requests of a trace that emitted tokens, in the order of their first rows."""

    arrivals: FloatArray
    """(n,) estimated, seconds since the first one."""
    prompt_tokens: IntArray
    output_tokens: IntArray
    max_tokens: IntArray
    class_ids: IntArray
    tokens: KnownTokens
    per_token: FloatArray
    """(n,) TPOT in seconds; NaN for requests that emitted only one token."""
    duration: float
    """Seconds from the first arrival to the end of the last step."""
    begun_before: int
    """Requests whose first tokens are not in the trace; what was emitted before counts as prompt."""
    cut_short: int
    """Requests that the last step did not finish."""
    samples: list[LatencySample]
    seconds_between: float
    """Mean seconds from a step's end to the next one's beginning while the engine was busy."""
    missing_steps: int
    """Steps in the stretches that the trace lacks between its first step and its last."""

    @property
    def size(self) -> int:
        return len(self.arrivals)


def record(steps: Sequence[TraceStep]) -> Recording:
    """Reconstruct the requests from the steps of one run.

    Raises:
        UserError: the steps are of several runs, took no time, or emitted nothing; they cannot be those of an engine;
            or a look-up drafted beside the drafter.
    """
    if any((step.sources is not None and Source.LOOKUP in step.sources) or any(step.appended or ()) for step in steps):
        # What one source drafted does not tell what the other one would have.
        raise UserError(
            "the trace has drafts of a look-up beside the drafter, which cannot be replayed; simulate a scenario whose "
            "class has a `lookup`, or replay a trace of one source"
        )
    steps = sorted(steps, key=lambda step: step.now)
    if len({step.step for step in steps}) < len(steps):
        raise UserError("a step number comes twice; give the traces of one run only, each file once")
    if any(later.step < earlier.step for earlier, later in pairwise(steps)):
        raise UserError("step numbers begin again; give the traces of one run only")
    if max((step.step_seconds for step in steps), default=0.0) < LEAST_STEP_SECONDS:
        raise UserError("no step of the trace took any time; replay a trace that an engine wrote")
    for step in steps:
        if len(set(step.request_ids)) < len(step.request_ids):
            raise UserError(f"step {step.step} of the trace has a request twice; replay a trace that an engine wrote")
    known: dict[int, _Request] = {}
    for line, step in enumerate(steps):
        _read_step(step, line, known)
    seen = list(known.values())
    arrived = estimate_arrivals(
        steps, [request.first_line for request in seen], [request.last_line for request in seen]
    )
    served = [request for request in seen if request.position > request.begin]
    if not served:
        raise UserError("no request of the trace emitted a token; replay a longer trace")
    first = min(arrived[request.number] for request in served)
    outputs = _integers(request.position - request.begin for request in served)
    prompts = _integers(max(request.prompt_tokens or request.prefilled, 1) for request in served)
    limits = np.maximum(_integers(request.max_tokens for request in served), outputs)
    max_draft = max(step.max_draft for step in steps)
    _check_tokens(served, prompts, limits)
    if int(outputs.sum()) + len(outputs) * max_draft > MAX_TOKENS:
        raise UserError(f"the trace has more than {MAX_TOKENS:,} output tokens; replay a part of it")
    return Recording(
        arrivals=np.array([arrived[request.number] - first for request in served]),
        prompt_tokens=prompts,
        output_tokens=outputs,
        max_tokens=limits,
        class_ids=_integers(request.class_id % MAX_CLASSES for request in served),
        tokens=KnownTokens.of(outputs, [request.drafts for request in served], max_draft),
        per_token=np.array([_per_token(request) for request in served]),
        duration=max(step.now + step.step_seconds for step in steps) - first,
        begun_before=sum(request.begin > 0 for request in served),
        cut_short=sum(request.last_line == len(steps) - 1 and request.left > 0 for request in served),
        samples=[_sample(step) for step in steps if step.step_seconds >= LEAST_STEP_SECONDS],
        seconds_between=seconds_between(steps),
        missing_steps=_missing_steps(steps),
    )


def _missing_steps(steps: Sequence[TraceStep]) -> int:
    """Steps of stretches without a line. Those that reused a plan are reported in the line of the step after them."""
    gaps = (later.step - earlier.step - 1 - later.reused_plan_steps for earlier, later in pairwise(steps))
    return sum(gap for gap in gaps if gap >= MISSING_STRETCH)


def _read_step(step: TraceStep, line: int, known: dict[int, _Request]) -> None:
    prefilling = max(sum(phase == Phase.PREFILL for phase in step.phase), 1)
    for row, number in enumerate(step.request_ids):
        decoding, told = step.phase[row] != Phase.PREFILL, step.emitted_tokens[row]
        request = known.get(number)
        if request is None:
            begin = max(told - 1, 0)
            request = _Request(len(known), step.class_ids[row], begin, begin, line)
            known[number] = request
        if decoding:
            # An engine whose steps overlap plans before it has verified the last drafts, and reports the least number
            # of emitted tokens. Steps on a reused plan have no line; a later line includes what they emitted.
            request.position = max(request.position, told)
            if request.prompt_tokens is None:
                request.prompt_tokens = step.context_tokens[row] + 1 - told + request.begin
            if math.isnan(request.first_token):
                request.first_token = step.now
        else:
            request.prefilled = step.context_tokens[row] + step.prefill_tokens // prefilling
        drafted, emitted = step.drafted[row], step.emitted[row]
        if drafted:
            accepted = min(step.accepted[row], drafted)
            failed = accepted < drafted and not step.truncated[row]
            request.drafts.append(Draft(request.position - request.begin, drafted, accepted, failed))
        if emitted:
            request.position += emitted
            request.last_token = step.now + step.step_seconds
            if math.isnan(request.first_token):
                request.first_token = request.last_token
        request.max_tokens = told + step.tokens_left[row] - request.begin
        request.left = step.tokens_left[row] - emitted
        request.last_line = line


def _check_tokens(requests: Sequence[_Request], prompts: IntArray, limits: IntArray) -> None:
    """Raises:
    UserError: a request has more tokens than the simulator's arrays hold, or all requests together have.
    """
    for request, prompt, limit in zip(requests, prompts.tolist(), limits.tolist(), strict=True):
        if prompt > MAX_COUNT or limit > MAX_COUNT:
            raise UserError(
                f"a request of the trace has a prompt of {prompt:,} tokens and at most {limit:,} of output; "
                f"no more than {MAX_COUNT:,} can be replayed (class {request.class_id})"
            )
    if int(prompts.sum()) + int(limits.sum()) + len(prompts) * MAX_POSITIONS >= MAX_CACHE_TOKENS:
        raise UserError("the trace's requests have more tokens than can be replayed; replay a part of it")


def _per_token(request: _Request) -> float:
    following = request.position - request.begin - 1
    return (request.last_token - request.first_token) / following if following > 0 else math.nan


def _sample(step: TraceStep) -> LatencySample:
    return LatencySample(
        draft_rows=tuple(step.draft_rows),
        draft_context_tokens=step.draft_context_tokens,
        catch_up_tokens=step.catch_up_tokens,
        tokens_batched=step.tokens_batched,
        prefill_tokens=step.prefill_tokens,
        context_tokens=step.attended_tokens,
        draft_seconds=step.draft_seconds,
        verify_seconds=step.verify_seconds,
        step_seconds=step.step_seconds,
        requests=len(step.request_ids),
    )


def _integers(values: Iterable[int]) -> IntArray:
    return np.fromiter(values, np.int64)
