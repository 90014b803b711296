"""What the output of one of vLLM's steps says of its drafts. Knows vLLM's structures by their fields alone."""

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
    """What a step made of each of its requests.

    What vLLM sent on is less than was sampled where a request ended. It sends nothing of requests that were aborted
    while the step ran. Of those that were preempted it sends it as of any other, or nothing: then their positions are
    computed again, and the step says nothing of their drafts.

    Args:
        scheduled: the step.
        rows: each request's place in `sampled` (`ModelRunnerOutput.req_id_to_index`).
        sampled: tokens that the target gave each request, counted before vLLM took the output in, which cuts them; 0 in
            the midst of a prompt.
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
        # What a grammar ruled out was never judged by the target.
        drafted = len(drafts.get(name, ())) - invalid.get(name, 0)
        found[name] = Verified(drafted, min(max(number - 1, 0), drafted), sent)
    return found
