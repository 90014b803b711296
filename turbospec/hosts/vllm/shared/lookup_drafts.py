"""Drafts of the look-up on their way from the scheduler to the workers.

Imports nothing heavy, because workers import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

LOOKUP_DRAFTS_ATTRIBUTE = "turbospec_lookup_drafts"
"""Of `SchedulerOutput`: the `LookupDraft` of each request whose drafts in the step come from the look-up."""


class LookupDraft(NamedTuple):
    """What the look-up found for one request."""

    known: int
    """Tokens of the request, prompt and answer, when it was looked up."""
    tokens: list[int]
    """What is expected to follow them. The draft begins after the tokens that were emitted since: the scheduler does
    not know those of a step that has not ended, and a worker does."""


def lookup_drafts_of(scheduler_output: object) -> Mapping[str, LookupDraft]:
    """The look-up's drafts in vLLM's `SchedulerOutput`; empty where there are none."""
    return cast("Mapping[str, LookupDraft]", getattr(scheduler_output, LOOKUP_DRAFTS_ATTRIBUTE, {}))
