"""The target with each of its drafters, loaded once and when first needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import transformers

from turbospec_bench.configuration import Cell
from turbospec_bench.embedded.transformers_contender import HuggingFacePair
from turbospec_bench.embedded.workloads import RequestSource
from turbospec_bench.matrix import TARGET, Emit
from turbospec_engine import EngineConfig, Models
from turbospec_engine.config import NGRAM

DRAFTERS = {"good": "drafter", "weak": "drafter-weak", "mismatched": "drafter-mismatched"}
"""Folder of each drafter that is a model."""
MAX_MODEL_LEN = 384
POISSON_MAX_SEQS = 32
"""Requests that may run at once where arrivals set no limit of their own."""


@dataclass(slots=True)
class Pairs:
    """Engine settings and weights for every cell."""

    folder: Path
    device: str = "cpu"
    dtype: str = "bfloat16"
    threads: int | None = None
    _models: dict[str, Models] = field(default_factory=dict[str, Models])
    _hugging_face: dict[str, HuggingFacePair] = field(default_factory=dict[str, HuggingFacePair])

    def __post_init__(self) -> None:
        # The benchmark shows one progress bar, its own.
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()

    def config(self, cell: Cell, emit: Emit = "before_draft") -> EngineConfig:
        return EngineConfig(
            target=self.folder / TARGET,
            drafter=self._drafter(cell.drafter),
            device=self.device,
            dtype=self.dtype,
            max_num_seqs=cell.concurrency or POISSON_MAX_SEQS,
            max_model_len=MAX_MODEL_LEN,
            emit=emit,
            num_threads=self.threads,
        )

    def models(self, cell: Cell) -> Models:
        """Weights of a cell's pair.

        Raises:
            UserError: a checkpoint is missing or unreadable.
        """
        if cell.drafter not in self._models:
            self._models[cell.drafter] = Models.load(self.config(cell))
        return self._models[cell.drafter]

    def source(self, workloads: Path, seed: int) -> RequestSource:
        """Requests from a folder of held-out text, in the target's tokens.

        Raises:
            UserError: the target or a workload file is missing or unreadable.
        """
        settings = EngineConfig(self.folder / TARGET, device=self.device, dtype=self.dtype, num_threads=self.threads)
        target = Models.load(settings)
        return RequestSource(workloads, target.tokenizer, target.vocab_size, seed)

    def hugging_face(self, cell: Cell) -> HuggingFacePair:
        """The same pair as transformers loads it; only for a drafter that is a model."""
        if cell.drafter not in self._hugging_face:
            config = self.config(cell)
            assistant = self.folder / DRAFTERS[cell.drafter]
            self._hugging_face[cell.drafter] = HuggingFacePair.load(
                Path(config.target), assistant, config.device, config.torch_dtype
            )
        return self._hugging_face[cell.drafter]

    def _drafter(self, name: str) -> str | Path:
        return self.folder / DRAFTERS[name] if name in DRAFTERS else NGRAM
