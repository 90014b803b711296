"""The verification of drafts, read from the output of one of vLLM's steps. Knows vLLM's structures by their fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from operator import attrgetter
from typing import Protocol

import numpy as np

from turbospec.hosts.vllm.scheduler.kernels import verified_columns
from turbospec.hosts.vllm.scheduler.requests import NAME
from turbospec.hosts.vllm.scheduler.ruled_out import Scheduled, ruled_out_in
from turbospec.hosts.vllm.scheduler.steps import Verified

TOKENS = attrgetter("new_token_ids")


class Output(Protocol):
    """vLLM's `EngineCoreOutput`."""

    request_id: str
    new_token_ids: Sequence[int]


class Outputs(Protocol):
    """vLLM's `EngineCoreOutputs`."""

    outputs: Sequence[Output]


def verified(
    scheduled: Scheduled,
    rows: Mapping[str, int],
    sampled: Sequence[int],
    outputs: Mapping[int, Outputs],
    names: Sequence[str],
) -> Verified:
    """What one step did with the drafts of these n requests.

    vLLM emits fewer tokens than it sampled where a request ends, and none for requests that were aborted while the step
    ran. For preempted requests it emits as usual or nothing; if nothing, their positions are computed again and the
    step shows nothing of their drafts.

    Args:
        scheduled: the step.
        rows: each request's index in `sampled` (`ModelRunnerOutput.req_id_to_index`).
        sampled: tokens that the target sampled for each request, counted before vLLM processes the output, which cuts
            them; 0 where prefill is not finished.
        outputs: what vLLM's `update_from_output` returned, by client.
        names: of the n requests; the step may have scheduled others too, or not all of them.
    """
    sent: dict[str, int] = {}
    for client in outputs.values():
        sent.update(zip(map(NAME, client.outputs), map(len, map(TOKENS, client.outputs)), strict=True))
    drafts = scheduled.scheduled_spec_decode_tokens
    lengths = dict(zip(drafts, map(len, drafts.values()), strict=True))
    # Of the draft tokens that a grammar ruled out, the first one counts as verified.
    for name, tokens in (scheduled.num_invalid_spec_tokens or {}).items():
        lengths[name] = lengths.get(name, 0) - tokens
    for name in ruled_out_in(scheduled):
        lengths[name] = lengths.get(name, 0) + 1
    absent, none = repeat(-1), repeat(0)
    in_step, unsent = map(scheduled.num_scheduled_tokens.get, names, absent), map(lengths.get, names, none)
    read = chain(map(rows.get, names, absent), in_step, map(sent.get, names, none), unsent)
    found, columns = verified_columns(
        np.fromiter(read, np.int64, 4 * len(names)), np.fromiter(sampled, np.int64, len(sampled))
    )
    return Verified(found, *columns)


def accepted(rows: Mapping[str, int], sampled: Sequence[int], names: Sequence[str]) -> dict[str, int]:
    """How many drafts a step's target accepted for each of these requests, whatever was emitted of them.

    Those that the step did not sample for are missing. `rows` and `sampled` are as for `verified`.
    """
    known = {name: rows[name] for name in names if name in rows} if sampled else {}
    return {name: sampled[row] - 1 for name, row in known.items() if sampled[row]}
