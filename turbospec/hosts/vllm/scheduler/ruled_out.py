"""Drafts that a grammar cuts before the step that verifies them.

The first token left out has probability 0 under the grammar: it is a certain rejection, and is reported as one. Were it
taken for a token that nobody drafted, acceptance would be learnt from the drafts that keep to the grammar alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from turbospec.hosts.vllm.scheduler.requests import VllmRequest

RULED_OUT_ATTRIBUTE = "turbospec_ruled_out"
"""Of `SchedulerOutput`: names of the requests whose draft a grammar has cut."""


class Drafts(Protocol):
    """vLLM's `DraftTokenIds`."""

    req_ids: Sequence[str]
    draft_token_ids: Sequence[Sequence[int]]


class Scheduled(Protocol):
    """vLLM's `SchedulerOutput`."""

    num_scheduled_tokens: Mapping[str, int]
    scheduled_spec_decode_tokens: Mapping[str, Sequence[int]]
    num_invalid_spec_tokens: Mapping[str, int] | None


def drafts_under_grammar(requests: Mapping[str, VllmRequest], drafts: Drafts) -> dict[str, int]:
    """Lengths of the drafts of requests with a grammar, before vLLM checks them. A token of -1 ends a draft."""
    lengths: dict[str, int] = {}
    for name, tokens in zip(drafts.req_ids, drafts.draft_token_ids, strict=True):
        request = requests.get(name)
        if request is not None and request.use_structured_output:
            lengths[name] = tokens.index(-1) if -1 in tokens else len(tokens)
    return lengths


def cut_within(step: Scheduled, made: Mapping[str, int]) -> frozenset[str]:
    """Requests whose drafts were cut after their step was scheduled, as under async scheduling."""
    drafts, invalid = step.scheduled_spec_decode_tokens, step.num_invalid_spec_tokens or {}
    return frozenset(
        name
        for name, length in made.items()
        if (scheduled := len(drafts.get(name, ()))) - invalid.get(name, 0) < min(length, scheduled)
    )


def cut_before(step: Scheduled, kept: Mapping[str, int]) -> frozenset[str]:
    """Requests whose drafts were cut to `kept` tokens before their step was scheduled, and that it verifies so.

    vLLM may have shortened a draft further, or have begun with other tokens of the request.
    """
    drafts, tokens = step.scheduled_spec_decode_tokens, step.num_scheduled_tokens
    return frozenset(
        name
        for name, length in kept.items()
        if len(drafts.get(name, ())) == length and tokens.get(name, 0) == length + 1
    )


def ruled_out_in(step: object) -> frozenset[str]:
    """Requests whose drafts in the step a grammar has cut."""
    return cast("frozenset[str]", getattr(step, RULED_OUT_ATTRIBUTE, frozenset[str]()))
