"""What a worker measures of a step, and the attribute that carries it to the scheduler.

Imports nothing heavy, because workers import it.
"""

from __future__ import annotations

from typing import NamedTuple

STEP_ATTRIBUTE = "turbospec_step"
"""Of `SchedulerOutput`: the loop's number of the step."""
TIMES_ATTRIBUTE = "turbospec_step_times"
"""Of `ModelRunnerOutput`: the step's `StepTimes`."""


class CapturedGraphs(NamedTuple):
    """Full CUDA graphs that a worker has captured for draft lengths.

    Only the worker knows them: it falls back to piecewise graphs where its attention has no others, and it may be
    another process than the scheduler.
    """

    target: tuple[tuple[int, int], ...] = ()
    """Draft lengths for which a uniform batch replays one graph, rising, and the most requests that each has them
    for."""
    drafter: tuple[int, ...] = ()
    """Draft lengths for which the drafter's passes after the first replay one graph, as in a view."""
    drafter_requests: int = 0
    """The most requests that the drafter has them for."""


NO_GRAPHS = CapturedGraphs()


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
    graphs: CapturedGraphs = NO_GRAPHS
    """The same in every step."""
