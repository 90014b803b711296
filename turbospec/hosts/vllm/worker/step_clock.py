# pyright: basic, reportMissingImports=false
"""Times each step on the worker's device: the target's pass, the drafter's passes, and the pause between steps.

The engine core cannot time a step. On a GPU it receives a step's tokens before the drafts are made, so that drafting is
in the time of the next step. With one worker, it receives them only after it has launched the whole next step: where
launching takes longer than computing, drafting is in the time of the step before. Events on the device's stream are
right in both cases, and nothing waits for them: a step's times are read when its tokens have arrived.
"""

from __future__ import annotations

import functools
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from turbospec.hosts.vllm.shared.step_times import STEP_ATTRIBUTE, TIMES_ATTRIBUTE, StepTimes


def install(model_runner, drafter, propose: str) -> None:
    """Make a worker's model runner add its `StepTimes` to the output of every step.

    Args:
        model_runner: vLLM's.
        drafter: whose method makes a step's drafts.
        propose: the method's name.
    """
    if model_runner.device.type not in ("cpu", "cuda"):
        return
    clock = StepClock(on_gpu=model_runner.device.type == "cuda")
    execute, sample, draft = model_runner.execute_model, model_runner.sample_tokens, getattr(drafter, propose)

    def execute_model(scheduler_output, *given, **named):
        # vLLM runs others to warm up and to capture CUDA graphs.
        if (number := getattr(scheduler_output, STEP_ATTRIBUTE, None)) is not None:
            clock.begin(number)
        return execute(scheduler_output, *given, **named)

    def timed_propose(*given, **named):
        with clock.drafting():
            return draft(*given, **named)

    def sample_tokens(*given, **named):
        output = sample(*given, **named)
        times = clock.end()
        if times is None or output is None:
            return output
        if hasattr(output, "get_output"):
            output.get_output = functools.partial(_with_times, output.get_output, times)
        elif getattr(output, "req_ids", None):  # vLLM shares one output object among all steps without requests
            setattr(output, TIMES_ATTRIBUTE, times())
        return output

    model_runner.execute_model, model_runner.sample_tokens = execute_model, sample_tokens
    setattr(drafter, propose, timed_propose)


def _with_times(get_output, times):
    output = get_output()
    setattr(output, TIMES_ATTRIBUTE, times())
    return output


@dataclass(slots=True)
class _Moments:
    """Of a step: seconds on a CPU, events on a GPU."""

    number: int
    began: Any
    sampled: Any = None
    drafting: Any = None
    drafted: Any = None


class StepClock:
    """Records when a device reaches the parts of a step.

    Args:
        on_gpu: whether the device works behind the host.
    """

    def __init__(self, *, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self._step: _Moments | None = None
        self._before: _Moments | None = None

    def begin(self, number: int) -> None:
        """A step begins; `number` counts steps."""
        self._step = _Moments(number, self._now())

    @contextmanager
    def drafting(self):
        """The step drafts, or the step before, where the engine core asks for drafts after it has the tokens."""
        if (step := self._step or self._before) is None:
            yield
            return
        step.drafting = self._now()
        if step is self._step:
            step.sampled = step.drafting
        yield
        step.drafted = self._now()

    def end(self) -> Any:
        """The step's tokens are on their way to the host.

        Returns:
            A function without arguments, to be called when they have arrived, that returns the step's `StepTimes`; None
            outside a step.
        """
        step, before, self._step = self._step, self._before, None
        if step is None:
            return None
        if step.sampled is None:
            step.sampled = self._now()
        self._before = step
        return functools.partial(self._times, before, step)

    def _times(self, before: _Moments | None, step: _Moments) -> StepTimes:
        if self._on_gpu:
            step.sampled.synchronize()  # it comes right after the tokens' copy
        target = self._between(step.began, step.sampled)
        if before is None or before.number != step.number - 1:
            return StepTimes(0.0, 0.0, target)
        if before.drafted is None:
            return StepTimes(0.0, self._between(before.sampled, step.began), target)
        pause = self._between(before.sampled, before.drafting) + self._between(before.drafted, step.began)
        return StepTimes(self._between(before.drafting, before.drafted), pause, target)

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, first: Any, last: Any) -> float:
        return max(first.elapsed_time(last) / 1e3 if self._on_gpu else last - first, 0.0)
