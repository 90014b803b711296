"""Whether a step may reuse the last plan: the rules for the controller and for every host.

A decision takes a few hundred microseconds, and estimates hardly change within a few steps as long as the batch stays
alike. The policy says for how many steps a plan may be reused (`StepPlan.valid_steps`); this module says when reuse
ends sooner.

There are two ways to reuse a plan:

* The engine calls `plan` and `observe` in every step. `Controller` then returns the last plan
  (`plan_again`): the same requests must decode, no prefill may be pending, and a look-up must have found nothing and
  made no draft of the plan.
* The engine runs no-draft steps without calling `plan`, and reports their sums (`StepOutcome.reused_plan_steps`). A
  `RunningPlan` says whether the next step may run in this way too. A quarter of the requests may join or leave:
  drafting that does not pay for a batch does not pay for one of similar size either, and while first tokens wait it
  pays even less.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence, Set
from dataclasses import replace
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from turbospec.interface import Source, StepPlan, StepView

RequestId = TypeVar("RequestId", bound=Hashable)

DRAFTER = Source.DRAFTER.value
MAX_CHANGED_SHARE = 0.25
"""Requests that may join the steps of a `RunningPlan`, or leave them, as a share of the batch."""


def plan_again(plan: StepPlan, planned: StepView, view: StepView) -> StepPlan | None:
    """The plan for one more step, within that step's draft limits; None where it is no longer valid.

    Args:
        plan: made for the view `planned`.
        view: of the step to run.
    """
    if not planned.step < view.step < planned.step + plan.valid_steps or view.prefill_pending:
        return None
    if plan.gate is not None or plan.selection is not None or plan.trim is not None:
        return None
    if not np.array_equal(view.request_ids, planned.request_ids):
        return None
    if plan.padded_length and plan.padded_length not in view.graph_lengths:
        return None
    if plan.passes and plan.passes not in view.drafter_graph_lengths:
        return None
    # What a look-up finds differs from step to step.
    if view.lookup is not None and view.lookup.lengths.any():
        return None
    if plan.sources is not None and plan.draft_lengths[plan.sources != DRAFTER].any():
        return None
    return replace(
        plan,
        draft_lengths=np.minimum(plan.draft_lengths, view.draft_limits),
        reason="plan reused",
        valid_steps=planned.step + plan.valid_steps - view.step,
        sources=None,
        append_limits=None,
    )


class RunningPlan(Generic[RequestId]):
    """The last plan of a host that runs no-draft steps without calling `plan`, or plans a step before scheduling it.

    Args:
        plan: of the controller.
        request_ids: the requests it was made for, in the plan's order; any hashable names. They are kept.
    """

    def __init__(self, plan: StepPlan, request_ids: Sequence[RequestId]) -> None:
        self._planned, self._request_ids = plan.draft_lengths, request_ids
        self.drafts = bool(plan.draft_lengths.any())
        """Whether the plan drafts for any request."""
        self._joined = 0
        self._least = 0.0 if self.drafts else (1.0 - MAX_CHANGED_SHARE) * len(plan.draft_lengths)
        """Requests of a step without drafts below which too many have left."""
        self._steps_left = 1 if self.drafts else plan.valid_steps

    @cached_property
    def _lengths(self) -> dict[RequestId, int]:
        """The draft length of each request. Most plans serve one step, which needs none of them."""
        return dict(zip(self._request_ids, self._planned.tolist(), strict=True))

    def rows_of_new(self, request_ids: Iterable[RequestId]) -> list[int]:
        """Places of the requests that the plan was not made for, and that have not joined since."""
        known = self._lengths
        return [row for row, request_id in enumerate(request_ids) if request_id not in known]

    @property
    def valid(self) -> bool:
        """Whether any further step may run on the plan."""
        return self._steps_left > 0

    def covers(self, request_ids: Set[RequestId]) -> bool:
        """Whether one more step may run on the plan, and the plan knows all of the step's requests."""
        return self._steps_left > 0 and len(request_ids) >= self._least and request_ids <= self._lengths.keys()

    def admits(self, request_ids: Set[RequestId]) -> bool:
        """Whether one more step may run on the plan, and few enough requests have joined or left since."""
        if self._steps_left <= 0 or len(request_ids) < self._least:
            return False
        return self._joined + len(request_ids - self._lengths.keys()) <= MAX_CHANGED_SHARE * len(request_ids)

    def run(self, request_ids: Iterable[RequestId]) -> None:
        """Count a step that runs on the plan. While more may, its newly admitted requests get the median length."""
        self._steps_left -= 1
        if not self.valid:
            return
        for request_id in request_ids:
            if request_id not in self._lengths:
                self._lengths[request_id] = self._median
                self._joined += 1

    def lengths(self, request_ids: Iterable[RequestId]) -> list[int]:
        """Draft length of each request of a step; that of newly admitted ones is the median."""
        known = self._lengths
        # The median is computed only where it is needed.
        return [known[each] if each in known else self._median for each in request_ids]  # noqa: SIM401

    @cached_property
    def _median(self) -> int:
        """Median draft length."""
        if not self.drafts:
            return 0
        # `numpy.median` took about a millisecond in an engine core.
        ordered, middle = sorted(self._planned.tolist()), len(self._planned) // 2
        return (ordered[middle] + ordered[-middle - 1]) // 2
