"""Measures step times of an engine, on this machine."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from turbospec import StepOutcome, StepPlan, StepView, UserError
from turbospec.models.profile import Profile
from turbospec_engine.config import EngineConfig
from turbospec_engine.engine import Engine
from turbospec_engine.request import SamplingParams

REQUESTS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (32, 256, 768)
DRAFT_LENGTHS = (0, 1, 2, 3, 5, 8, 15)
REPEATS = 4

Progress = Callable[[int, int], None]
"""Called with the number of grid points measured, and of all grid points."""


@dataclass(slots=True)
class ScriptedController:
    """Plans the draft length that it is given, and keeps the outcomes."""

    rng: np.random.Generator
    draft_length: int = 0
    ragged: bool = False
    outcomes: list[StepOutcome] = field(default_factory=list[StepOutcome])

    def plan(self, view: StepView) -> StepPlan:
        lengths = np.full(view.size, self.draft_length)
        if self.ragged:
            lengths = self.rng.integers(0, self.draft_length + 1, view.size)
        return StepPlan(np.minimum(lengths, view.draft_limits), reason="profiling")

    def observe(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)


def measure(
    engine: Engine | EngineConfig,
    progress: Progress | None = None,
    *,
    max_seconds: float = 60.0,
    sampling: SamplingParams | None = None,
    text: Sequence[int] = (),
) -> Profile:
    """Measure every step of an engine over a grid of batch sizes, contexts, draft lengths and prefills.

    Args:
        engine: an idle engine, or the configuration to build one from. Its controller is restored at the end.
        progress: called after every point of the grid.
        max_seconds: no grid point begins later than this after the first.
        sampling: temperature, top-k and top-p of the requests; greedy when absent. Top-p sampling takes a considerable
            part of a step, greedy decoding next to nothing.
        text: tokens that prompts are cut from; where it is too short, prompts are random. After random tokens the
            target's distributions are flatter, so that sampling takes longer, and prompt look-up finds no matches.

    Raises:
        UserError: the engine is serving requests, or cannot be built.
    """
    controller = ScriptedController(np.random.default_rng(0))
    if isinstance(engine, EngineConfig):
        engine = Engine(engine, controller)
    if engine.has_work():
        raise UserError("profiling needs an idle engine; finish or abort its requests")
    params = replace(sampling or SamplingParams(), max_tokens=engine.max_model_len, ignore_eos=True)

    def add_request(tokens: int) -> None:
        if len(text) < tokens:
            prompt = controller.rng.integers(0, engine.models.vocab_size, tokens).tolist()
        else:
            start = int(controller.rng.integers(len(text) - tokens + 1))
            prompt = text[start : start + tokens]
        engine.add_request(prompt, params)

    served_by, engine.controller = engine.controller, controller
    try:
        grid = _grid(engine, controller.rng)
        _run_point(engine, controller, add_request, requests=1, context=min(context for _, context in grid))
        controller.outcomes.clear()
        deadline = time.perf_counter() + max_seconds
        for done, (requests, context) in enumerate(grid):
            if time.perf_counter() > deadline:
                break
            _run_point(engine, controller, add_request, requests, context)
            if progress is not None:
                progress(done + 1, len(grid))
    finally:
        engine.controller = served_by
        engine.abort_all()
    return Profile.from_outcomes(
        controller.outcomes,
        **describe(engine),
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def describe(engine: Engine) -> dict[str, Any]:
    """What an engine's step times depend on, for the profile's `meta`."""
    config = engine.config
    on_gpu = engine.device.type == "cuda"
    return {
        "target": str(config.target),
        "drafter": None if config.drafter is None else str(config.drafter),
        "device": torch.cuda.get_device_name(engine.device) if on_gpu else platform.processor() or "cpu",
        "dtype": config.dtype,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def _grid(engine: Engine, rng: np.random.Generator) -> list[tuple[int, int]]:
    """(requests, context) pairs that fit the engine, in random order, so that a slow phase of the machine does not
    fall on neighbouring points."""
    longest = max(DRAFT_LENGTHS) + 1
    contexts = [context for context in CONTEXTS if context + longest < engine.max_request_tokens]
    slots = engine.config.max_num_seqs
    sizes = sorted({*(size for size in REQUESTS if size < slots), min(slots, max(REQUESTS))})
    cache = engine.scheduler.blocks.tokens_with_drafter
    points = [(size, context) for size in sizes for context in contexts if size * (context + longest) <= cache]
    if not points:
        least = CONTEXTS[0] + longest + 1
        raise UserError(f"model and KV cache hold fewer than {least} tokens; raise max_model_len or num_blocks")
    return [points[index] for index in rng.permutation(len(points))]


def _run_point(
    engine: Engine, controller: ScriptedController, add_request: Callable[[int], None], requests: int, context: int
) -> None:
    """Measure a batch of requests at every draft length; half-way, one more request is prefilled."""
    rng = controller.rng
    controller.draft_length = 0
    for _ in range(requests if requests == 1 else requests - 1):
        add_request(context)
    while engine.is_prefilling():
        engine.step()
    lengths = [length for length in DRAFT_LENGTHS if length <= engine.config.max_draft]
    if engine.drafter is None:
        lengths = [0]
    schedule = rng.permutation(np.repeat(lengths, REPEATS))
    for index, length in enumerate(schedule):
        if index == len(schedule) // 2 and requests > 1:
            add_request(context)
        controller.draft_length, controller.ragged = int(length), bool(rng.random() < 0.5)
        engine.step()
    engine.abort_all()
