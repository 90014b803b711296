"""What a worker measures of a step, and the attribute that carries it to the scheduler.

Imports nothing heavy, because workers import it.
"""

from __future__ import annotations

from typing import NamedTuple

STEP_ATTRIBUTE = "turbospec_step"
"""Of `SchedulerOutput`: the loop's number of the step."""
TIMES_ATTRIBUTE = "turbospec_step_times"
"""Of `ModelRunnerOutput`: the step's `StepTimes`."""


class DrafterGraphs(NamedTuple):
    """CUDA graphs of a drafter's passes after the first."""

    lengths: tuple[int, ...] = ()
    """As in a view, for a batch of up to `requests`."""
    requests: int = 0


NO_GRAPHS = DrafterGraphs()


class StepTimes(NamedTuple):
    """Seconds on the worker's device, in order."""

    drafting: float
    """The drafter's part of the step before: its passes, with drafts or without. On model runner V2 also the inputs
    that it kept, which are in `target` on V1."""
    pause: float
    """From the end of the previous step's sampling to the start of this step on the device, without the drafting in
    between: host work that overlapped with nothing, or time without requests. After a step that TurboSpec did not
    schedule, this and `drafting` are 0."""
    target: float
    """The target's pass and sampling."""
    graphs: DrafterGraphs = NO_GRAPHS
    """Those that the worker has captured, the same in every step. Its scheduler does not know them otherwise."""
