# pyright: basic, reportMissingImports=false
"""Times each step on the worker's device: the target's pass, the drafter's passes, and the pause between steps.

The engine core cannot time a step. Model runner V2 sends a step's tokens before it drafts, so that drafting is in the
time of the next step. Under async scheduling with one worker, the engine core reads a step's output only after it has
launched the next step: where launching takes longer than computing, the time between two outputs is that of launching a
later step. Events on the device's stream are right in both cases. A step's times are read with its output, when the
device has at most the few kernels between sampling and drafting to run.
"""

from __future__ import annotations

import functools
import logging
import time
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from turbospec.hosts.vllm.shared.step_times import (
    NO_GRAPHS,
    STEP_ATTRIBUTE,
    TIMES_ATTRIBUTE,
    CapturedGraphs,
    StepTimes,
)

log = logging.getLogger("turbospec")


def install(model_runner, drafter, propose: str) -> None:
    """Make a worker's model runner add its `StepTimes` to the output of every step.

    Args:
        model_runner: vLLM's.
        drafter: whose method makes a step's drafts.
        propose: the method's name.
    """
    if model_runner.device.type not in ("cpu", "cuda"):
        return
    clock = StepClock(model_runner, drafter)
    execute, sample, draft = model_runner.execute_model, model_runner.sample_tokens, getattr(drafter, propose)

    def execute_model(scheduler_output, *given, **named):
        # vLLM runs others to warm up and to capture CUDA graphs.
        if (number := getattr(scheduler_output, STEP_ATTRIBUTE, None)) is not None:
            clock.begin(number)
        return execute(scheduler_output, *given, **named)

    def timed_propose(*given, **named):
        clock.begin_drafting()
        drafts = draft(*given, **named)
        clock.end_drafting()
        return drafts

    def sample_tokens(*given, **named):
        output = sample(*given, **named)
        clock.end(output)
        return output

    model_runner.execute_model, model_runner.sample_tokens = execute_model, sample_tokens
    setattr(drafter, propose, timed_propose)


def captured_graphs(model_runner, drafter) -> CapturedGraphs:
    """The full graphs that model runner V2 has captured for draft lengths; none on V1.

    Those of the target (`CudaGraphManager`) and, with EAGLE and MTP heads, of the drafter
    (`SpeculatorCudaGraphManager`). Where the drafter's attention cannot update its metadata within a graph, there is
    one graph for each pass instead, which serves any draft length.
    """
    target: dict[int, int] = {}
    for graph in _graphs_of(model_runner, "cudagraph_manager"):
        if graph.uniform_token_count:
            length = graph.uniform_token_count - 1
            target[length] = max(graph.num_reqs, target.get(length, 0))
    drafter_graphs = [
        graph
        for graph in _graphs_of(drafter, "decode_cudagraph_manager")
        if getattr(graph, "num_speculative_tokens", 0)
    ]
    lengths = {0, 1, *(graph.num_speculative_tokens for graph in drafter_graphs)} if drafter_graphs else ()
    largest = max((graph.num_tokens for graph in drafter_graphs), default=0)  # one token for each request
    return CapturedGraphs(tuple(sorted(target.items())), tuple(sorted(lengths)), largest)


def _graphs_of(owner, manager: str):
    """Descriptions of the graphs that a manager has captured; none where there is no such manager."""
    return getattr(getattr(owner, manager, None), "graphs", ())


@dataclass(slots=True)
class _Moments:
    """Of a step: seconds on a CPU, events on a GPU."""

    number: int
    began: Any
    sampled: Any = None
    drafting: Any = None
    drafted: Any = None


def _harmless(method):
    """Keep the clock's errors from vLLM: after the first one it stops."""

    @functools.wraps(method)
    def call(clock, *given):
        if clock.failed:
            return
        try:
            method(clock, *given)
        except Exception:
            clock.failed = True
            log.exception("TurboSpec cannot time steps on this device; it times them by their outputs")

    return call


class StepClock:
    """Records when a device reaches the parts of a step.

    Args:
        model_runner: vLLM's; its CUDA graphs are reported with the times.
        drafter: of it, and likewise.
    """

    def __init__(self, model_runner: Any, drafter: Any) -> None:
        self.failed = False
        self._model_runner, self._drafter = model_runner, drafter
        self._graphs: CapturedGraphs | None = None
        """Known from the first step on: they are captured before it."""
        self._on_gpu = model_runner.device.type == "cuda"
        """Whether the device works behind the host."""
        self._step: _Moments | None = None
        self._before: _Moments | None = None

    @_harmless
    def begin(self, number: int) -> None:
        """A step begins; `number` counts steps."""
        self._step = _Moments(number, self._now())

    @_harmless
    def begin_drafting(self) -> None:
        """The step drafts; or the step before does, where the engine core asks for drafts after it has the tokens."""
        if self._step is not None:
            self._step.sampled = self._step.drafting = self._now()
        elif self._before is not None and self._before.drafting is None:
            self._before.drafting = self._now()

    @_harmless
    def end_drafting(self) -> None:
        """The drafts are made."""
        step = self._step or self._before
        if step is not None and step.drafting is not None and step.drafted is None:
            step.drafted = self._now()

    @_harmless
    def end(self, output: Any) -> None:
        """Add the step's times to its output: at once, or under async scheduling when the output is read."""
        step, before, self._step = self._step, self._before, None
        if step is None or output is None:
            return
        if step.sampled is None:
            step.sampled = self._now()
        self._before = step
        if hasattr(output, "get_output"):
            # By a weak reference: one to itself would keep the output's tensors until the garbage collector runs.
            output.get_output = functools.partial(self._read, weakref.ref(output), before, step)
        elif getattr(output, "req_ids", None):  # vLLM shares one output object among all steps without requests
            self._add(output, before, step)

    def _read(self, output: weakref.ref[Any], before: _Moments | None, step: _Moments) -> Any:
        found = output()
        assert found is not None, "its method is being called"
        read = type(found).get_output(found)
        self._add(read, before, step)
        return read

    @_harmless
    def _add(self, output: Any, before: _Moments | None, step: _Moments) -> None:
        setattr(output, TIMES_ATTRIBUTE, self._times(before, step))

    def _times(self, before: _Moments | None, step: _Moments) -> StepTimes:
        if self._on_gpu:
            step.sampled.synchronize()
        if self._graphs is None:
            self._graphs = NO_GRAPHS
            try:
                self._graphs = captured_graphs(self._model_runner, self._drafter)
            except Exception:
                log.exception("TurboSpec cannot tell which CUDA graphs were captured; it plans as if there were none")
        target = self._between(step.began, step.sampled)
        if before is None or before.number != step.number - 1:
            return StepTimes(0.0, 0.0, target, self._graphs)
        if before.drafting is None or before.drafted is None:
            return StepTimes(0.0, self._between(before.sampled, step.began), target, self._graphs)
        pause = self._between(before.sampled, before.drafting) + self._between(before.drafted, step.began)
        return StepTimes(self._between(before.drafting, before.drafted), pause, target, self._graphs)

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        # To wait for a blocking event does not keep a core busy.
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record()
        return event

    def _between(self, first: Any, last: Any) -> float:
        return max(first.elapsed_time(last) / 1e3 if self._on_gpu else last - first, 0.0)
