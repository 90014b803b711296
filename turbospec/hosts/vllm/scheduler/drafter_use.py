"""Whether the drafter is in use, and what it may compute in steps without drafts so that requests can draft later."""

from __future__ import annotations

from typing import NamedTuple

from turbospec.hosts.vllm.scheduler.drafter_pass_cost import DrafterPassCost

CATCH_UP_SHARE = 0.02
"""Largest share of time for drafter passes that nothing but lag requires. vLLM's own way, a first pass in every step,
takes 4 to 11 %. Where a large batch would need more, its requests draft no more until they end."""
KEEP_UP_STEPS = 16
"""Under async scheduling, for this many steps after its last draft, the drafter runs its first pass in every step that
verifies drafts. A request that lags by such a step can draft only two steps later, which costs about as much as 16
passes that each take a tenth of a step."""


class Allowance(NamedTuple):
    """For a step in which the drafter does not draft."""

    in_use: bool
    """Whether the drafter has drafted lately. Otherwise requests are left to lag until they end."""
    tokens: int
    """Token budget for a pass that runs only to reduce or prevent lag. While the drafter is in use it limits the lag
    caught up; otherwise it limits prompts too long to catch up later."""
    verified_may_lag: bool
    """Whether requests may lag by the tokens of a step that verifies their drafts."""

    def permits_lag(self, draft_tokens: int) -> bool:
        """Whether the requests of a step that verifies so many draft tokens may lag by its tokens."""
        return self.verified_may_lag or draft_tokens == 0


class DrafterUse:
    """Counts steps and tokens since the drafter last drafted, and the time that passes without drafts may take.

    Args:
        kept_tokens: tokens whose inputs the worker keeps. Once as many were sampled or verified since the drafter last
            drafted, experiments not counted, it is out of use.
        longest_pass: most tokens that a pass catches up; time for more is not saved.
        cost: predicts the duration of a pass.
        asynchronous: whether a step is scheduled before it is known what the one before has accepted.
    """

    def __init__(self, kept_tokens: int, longest_pass: int, cost: DrafterPassCost, *, asynchronous: bool) -> None:
        self._kept_tokens = kept_tokens
        self._longest_pass = longest_pass
        self._cost = cost
        self._asynchronous = asynchronous
        self._seconds = 0.0
        """That drafter passes may take."""
        self._undrafted_tokens = 0
        """Sampled or verified since the drafter last drafted."""
        self._keep_up_steps = 0
        """For how many more steps the drafter keeps up."""

    @property
    def allowance(self) -> Allowance:
        """For the step that is being scheduled."""
        in_use = self._undrafted_tokens <= self._kept_tokens
        verified_may_lag = not (self._asynchronous and self._keep_up_steps)
        return Allowance(in_use, self._cost.catch_up_tokens(self._seconds), verified_may_lag)

    def drafted(self, *, experiment: bool) -> None:
        """Take note that the drafter drafts in a step."""
        if experiment:
            self._keep_up_steps = max(self._keep_up_steps, 1)
        else:
            self._keep_up_steps, self._undrafted_tokens = KEEP_UP_STEPS, 0

    def undrafted(self, tokens: int) -> None:
        """Count the tokens that a step samples or verifies in which the drafter does not draft."""
        self._keep_up_steps = max(self._keep_up_steps - 1, 0)
        self._undrafted_tokens += tokens

    def spent(self, tokens: int) -> None:
        """Take the time of a pass over this many tokens off what is left, where nothing but lag required it."""
        if tokens:
            self._seconds -= self._cost.catch_up_seconds(tokens)

    def add_time(self, step_seconds: float) -> None:
        """Add the share of a step that has ended."""
        most = self._cost.catch_up_seconds(self._longest_pass)
        self._seconds = min(self._seconds + CATCH_UP_SHARE * step_seconds, most)
