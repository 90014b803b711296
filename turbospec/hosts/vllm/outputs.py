"""What the output of one of vLLM's steps says of its drafts. Knows vLLM's structures by their fields alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from turbospec.hosts.vllm.loop import Verified


class Scheduled(Protocol):
    """vLLM's `SchedulerOutput`."""

    num_scheduled_tokens: Mapping[str, int]
    scheduled_spec_decode_tokens: Mapping[str, Sequence[int]]
    num_invalid_spec_tokens: Mapping[str, int] | None


class Sampled(Protocol):
    """vLLM's `ModelRunnerOutput`."""

    req_id_to_index: Mapping[str, int]
    sampled_token_ids: Sequence[Sequence[int]]


class Served(Protocol):
    """vLLM's `Request`."""

    def is_finished(self) -> bool: ...


class Output(Protocol):
    """vLLM's `EngineCoreOutput`."""

    request_id: str
    new_token_ids: Sequence[int]


class Outputs(Protocol):
    """vLLM's `EngineCoreOutputs`."""

    outputs: Sequence[Output]


class Judged(NamedTuple):
    """What the target made of a request's drafts."""

    drafted: int
    accepted: int
    sampled: int
    """Tokens that it gave; 0 in the midst of a prompt."""


def judged(scheduled: Scheduled, sampled: Sampled, requests: Mapping[str, Served]) -> dict[str, Judged]:
    """Of each request in a step that is still served, before vLLM takes the output in."""
    tokens, rows = sampled.sampled_token_ids, sampled.req_id_to_index
    drafts, invalid = scheduled.scheduled_spec_decode_tokens, scheduled.num_invalid_spec_tokens or {}
    found: dict[str, Judged] = {}
    for name in scheduled.num_scheduled_tokens:
        request = requests.get(name)
        if not tokens or name not in rows or request is None or request.is_finished():
            continue
        number = len(tokens[rows[name]])
        # What a grammar ruled out was never judged by the target.
        drafted = len(drafts.get(name, ())) - invalid.get(name, 0)
        found[name] = Judged(drafted, min(max(number - 1, 0), drafted), number)
    return found


def verified(judged: Mapping[str, Judged], outputs: Mapping[int, Outputs]) -> dict[str, Verified]:
    """The same with what vLLM sent on, once it has taken the output in.

    That is less than was sampled where a request ended. Of requests that were preempted while the step ran vLLM sends
    it as of any other, or nothing: then their positions are computed again, and the step says nothing of their drafts.

    Args:
        judged: by `judged`.
        outputs: what `update_from_output` returned, by client.
    """
    emitted = {each.request_id: len(each.new_token_ids) for client in outputs.values() for each in client.outputs}
    return {
        name: Verified(drafted, accepted, emitted.get(name, 0))
        for name, (drafted, accepted, sampled) in judged.items()
        if sampled == 0 or emitted.get(name)
    }
