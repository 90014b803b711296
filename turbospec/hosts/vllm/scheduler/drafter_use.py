"""Whether the drafter is in use, and what it may compute in steps without drafts so that requests can draft later."""

from __future__ import annotations

from typing import NamedTuple

from turbospec.hosts.vllm.scheduler.step_split import StepSplit

CATCH_UP_SHARE = 0.02
"""Largest share of time for drafter passes in steps that neither draft nor verify drafts. vLLM's own way, a first pass
in every step, takes 4 to 11 %. Where a large batch would need more, its requests draft no more until they end."""


class Allowance(NamedTuple):
    """For a step in which the drafter does not draft."""

    in_use: bool
    """Whether the drafter has drafted lately. Otherwise requests are left to lag until they end."""
    tokens: int
    """Most tokens in one pass of a step that verifies no drafts. While the drafter is in use, this bounds the KV lag
    that is caught up, not prompts. Otherwise only prompts that are too long to be caught up later are computed, within
    this bound."""
    leaves_verified: bool = False
    """Whether the drafter need not compute the tokens of requests whose drafts the step verifies. How many of them are
    accepted is not known on the host when they would be caught up, so that these requests draft no more until they end,
    except by a look-up."""


class DrafterUse:
    """Counts tokens since the drafter last drafted, and the time that passes without drafts may take.

    Args:
        kept_tokens: tokens whose inputs the worker keeps. Once as many were sampled or verified since the drafter last
            drafted, experiments not counted, it is out of use.
        longest_pass: most tokens that a pass catches up; time for more is not saved.
        split: predicts the duration of a pass.
    """

    def __init__(self, kept_tokens: int, longest_pass: int, split: StepSplit) -> None:
        self._kept_tokens = kept_tokens
        self._longest_pass = longest_pass
        self._split = split
        self._seconds = 0.0
        """That drafter passes may take."""
        self._undrafted_tokens = 0
        """Sampled or verified since the drafter last drafted."""
        self._drafted = False
        """Whether it drafted in the last step, so that the next one verifies drafts of its own."""

    @property
    def allowance(self) -> Allowance:
        """For the step that is being scheduled."""
        in_use = self._undrafted_tokens <= self._kept_tokens
        # A request must be able to draft again after an experiment.
        return Allowance(in_use, self._split.catch_up_tokens(self._seconds), not (in_use or self._drafted))

    def drafted(self, *, experiment: bool) -> None:
        """Take note that the drafter drafts in a step."""
        self._drafted = True
        if not experiment:
            self._undrafted_tokens = 0

    def undrafted(self, tokens: int) -> None:
        """Count the tokens that a step samples or verifies in which the drafter does not draft."""
        self._drafted = False
        self._undrafted_tokens += tokens

    def spent(self, tokens: int) -> None:
        """Take the time of a pass over this many tokens off what is left, in a step without drafts."""
        if tokens:
            self._seconds -= self._split.catch_up_seconds(tokens)

    def add_time(self, step_seconds: float) -> None:
        """Add the share of a step that has ended."""
        most = self._split.catch_up_seconds(self._longest_pass)
        self._seconds = min(self._seconds + CATCH_UP_SHARE * step_seconds, most)
