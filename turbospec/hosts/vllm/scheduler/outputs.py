"""The verification of drafts, read from the output of one of vLLM's steps. Knows vLLM's structures by their fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from turbospec.hosts.vllm.scheduler.loop import Verified


class Scheduled(Protocol):
    """vLLM's `SchedulerOutput`."""

    num_scheduled_tokens: Mapping[str, int]
    scheduled_spec_decode_tokens: Mapping[str, Sequence[int]]
    num_invalid_spec_tokens: Mapping[str, int] | None


class Output(Protocol):
    """vLLM's `EngineCoreOutput`."""

    request_id: str
    new_token_ids: Sequence[int]


class Outputs(Protocol):
    """vLLM's `EngineCoreOutputs`."""

    outputs: Sequence[Output]


def verified(
    scheduled: Scheduled, rows: Mapping[str, int], sampled: Sequence[int], outputs: Mapping[int, Outputs]
) -> dict[str, Verified]:
    """The verification of each request's drafts in one step.

    vLLM emits fewer tokens than it sampled where a request ends, and none for requests that were aborted while the step
    ran. For preempted requests it emits as usual or nothing; if nothing, their positions are computed again and the
    step shows nothing of their drafts.

    Args:
        scheduled: the step.
        rows: each request's index in `sampled` (`ModelRunnerOutput.req_id_to_index`).
        sampled: tokens that the target sampled for each request, counted before vLLM processes the output, which cuts
            them; 0 where prefill is not finished.
        outputs: what vLLM's `update_from_output` returned, by client.
    """
    emitted = {each.request_id: len(each.new_token_ids) for client in outputs.values() for each in client.outputs}
    drafts, invalid = scheduled.scheduled_spec_decode_tokens, scheduled.num_invalid_spec_tokens or {}
    found: dict[str, Verified] = {}
    for name in scheduled.num_scheduled_tokens:
        if not sampled or name not in rows:
            continue
        number, sent = sampled[rows[name]], emitted.get(name, 0)
        if number and not sent:
            continue
        # Draft tokens that a grammar ruled out were not verified.
        drafted = len(drafts.get(name, ())) - invalid.get(name, 0)
        found[name] = Verified(drafted, min(max(number - 1, 0), drafted), sent)
    return found
