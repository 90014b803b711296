"""Assisted generation in transformers, one request at a time, with the same target and drafter."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from turbospec_bench.contender import Run, client_figures
from turbospec_bench.embedded.workloads import BenchRequest, Load
from turbospec_bench.metrics import RequestRecord
from turbospec_bench.variant import TRANSFORMERS_PREFIX, Variant
from turbospec_engine.attention import kernels_for_any_shape
from turbospec_engine.checkpoint import load_model

DRAFT_TOKENS = 20
CONFIDENCE_THRESHOLD = 0.4
"""Both are transformers' defaults. transformers refits the threshold online where scikit-learn is installed."""

SCHEDULES: dict[str, tuple[str, float]] = {
    "constant": ("constant", 0.0),
    "heuristic": ("heuristic", 0.0),
    "confidence": ("constant", CONFIDENCE_THRESHOLD),
}
"""Schedule of the number of assistant tokens, and confidence threshold (0 switches it off)."""


@dataclass(frozen=True, slots=True)
class HuggingFacePair:
    """A target and its assistant in transformers, without end-of-text tokens: output lengths are fixed."""

    target: Any
    assistant: Any

    @classmethod
    def load(cls, target: Path, assistant: Path, device: str, dtype: torch.dtype) -> HuggingFacePair:
        """Load both.

        Raises:
            UserError: a checkpoint is missing, unreadable or incomplete.
        """
        return cls(_load("target", target, device, dtype), _load("drafter", assistant, device, dtype))


def _load(role: str, path: Path, device: str, dtype: torch.dtype) -> Any:
    model: Any = load_model(role, path, dtype=dtype, device=device)
    model.generation_config.eos_token_id = None
    return model


class TransformersContender:
    """`generate` with one of its schedules, or without an assistant (`transformers-off`)."""

    def __init__(self, variant: Variant, pair: HuggingFacePair) -> None:
        self.variant = variant
        self._pair = pair
        schedule = variant.policy.removeprefix(TRANSFORMERS_PREFIX)
        self._schedule = SCHEDULES.get(schedule)
        self._draft_tokens = DRAFT_TOKENS
        """Of the next request's first draft."""

    def serve(self, load: Load) -> Run:
        began = time.perf_counter()
        records = [self._generate(request) for request in load.requests]
        return Run(client_figures(records, time.perf_counter() - began), {})

    def _generate(self, request: BenchRequest) -> RequestRecord:
        params = request.params
        torch.manual_seed(params.seed or 0)
        prompt = torch.tensor([request.prompt], device=self._pair.target.device)
        streamer = _Clock(len(request.prompt))
        settings: dict[str, Any] = {}
        if self._schedule is not None:
            # transformers reads the schedule from the assistant's config and changes its numbers while it generates.
            schedule, threshold = self._schedule
            own = self._pair.assistant.generation_config
            own.num_assistant_tokens, own.num_assistant_tokens_schedule = self._draft_tokens, schedule
            own.assistant_confidence_threshold = threshold
            settings["assistant_model"] = self._pair.assistant
        with torch.inference_mode(), kernels_for_any_shape(prompt.device):
            self._pair.target.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                generation_config=GenerationConfig(
                    do_sample=True,
                    temperature=params.temperature,
                    top_p=params.top_p,
                    top_k=0,
                    max_new_tokens=params.max_tokens,
                    pad_token_id=0,
                ),
                streamer=streamer,
                **settings,
            )
        if self._schedule is not None:  # "heuristic" keeps its draft length from one request to the next
            self._draft_tokens = self._pair.assistant.generation_config.num_assistant_tokens
        return streamer.record


class _Clock(BaseStreamer):
    """Records when tokens reach the client. A streamer's first call has the prompt."""

    def __init__(self, prompt_tokens: int) -> None:
        self.record = RequestRecord(time.perf_counter(), prompt_tokens)
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        if self._prompt_seen:
            self.record.receive(time.perf_counter(), value.flatten().tolist())
        self._prompt_seen = True

    def end(self) -> None:
        pass
