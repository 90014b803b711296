"""What a worker measures of a step, and the attribute that carries it to the scheduler.

Imports nothing heavy, because workers import it.
"""

from __future__ import annotations

from typing import NamedTuple

STEP_ATTRIBUTE = "turbospec_step"
"""Of `SchedulerOutput`: the loop's number of the step."""
TIMES_ATTRIBUTE = "turbospec_step_times"
"""Of `ModelRunnerOutput`: the step's `StepTimes`."""


class StepTimes(NamedTuple):
    """Seconds on the worker's device, in order."""

    drafting: float
    """What drafted after the step before, also where it only kept inputs or ran a pass without drafts."""
    pause: float
    """From there until the device began this step: host work that nothing hides, or a time without requests. 0 after a
    step that TurboSpec did not schedule, as is `drafting`."""
    target: float
    """The target's pass and sampling."""
