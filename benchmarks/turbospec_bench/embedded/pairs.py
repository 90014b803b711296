"""Target and drafter pairs, each loaded once, when it is first needed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers

from turbospec_bench.configuration import Configuration
from turbospec_bench.embedded.transformers_contender import HuggingFacePair
from turbospec_bench.embedded.workloads import RequestSource
from turbospec_bench.matrix import TARGET
from turbospec_bench.variant import Emit
from turbospec_engine import EngineConfig, Models
from turbospec_engine.config import NGRAM
from turbospec_engine.lookup import build_lookup

DRAFTERS = {
    "good": "drafter",
    "weak": "drafter-weak",
    "mismatched": "drafter-mismatched",
    "eagle3": "eagle3",
    "peagle": "peagle",
    "dflash": "dflash",
}
"""Folder of each drafter that has weights."""
MAX_MODEL_LEN = 384
POISSON_MAX_SEQS = 32
"""Batch slots under Poisson arrivals, which set no limit."""


@dataclass(slots=True)
class Pairs:
    """Engine settings and weights for every configuration."""

    folder: Path
    device: str = "cpu"
    dtype: str = "bfloat16"
    threads: int | None = None
    lookup: str | None = None
    """A second source of drafts beside each drafter that is a model."""
    _models: dict[str, Models] = field(default_factory=dict[str, Models])
    _hugging_face: dict[str, HuggingFacePair] = field(default_factory=dict[str, HuggingFacePair])

    def __post_init__(self) -> None:
        if self.lookup is not None:
            build_lookup(self.lookup)  # a missing package is reported before the models are loaded
        # The benchmark has a progress bar of its own.
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()

    @property
    def threads_in_use(self) -> int:
        """Threads that torch computes with; final once a model is loaded."""
        return torch.get_num_threads()

    @property
    def gpu(self) -> str | None:
        """Name of the GPU that the models run on; None on a CPU."""
        return torch.cuda.get_device_name(self.device) if self.device.startswith("cuda") else None

    def engine_config(self, configuration: Configuration, emit: Emit = "before_draft") -> EngineConfig:
        return EngineConfig(
            target=self.folder / TARGET,
            drafter=self._drafter(configuration.drafter),
            lookup=self.lookup if configuration.drafter in DRAFTERS else None,
            device=self.device,
            dtype=self.dtype,
            max_num_seqs=configuration.concurrency or POISSON_MAX_SEQS,
            max_model_len=MAX_MODEL_LEN,
            emit=emit,
            num_threads=self.threads,
        )

    def models(self, configuration: Configuration) -> Models:
        """Target and drafter of a configuration.

        Raises:
            UserError: a checkpoint is missing or unreadable.
        """
        if configuration.drafter not in self._models:
            self._models[configuration.drafter] = Models.load(self.engine_config(configuration))
        return self._models[configuration.drafter]

    def source(self, workloads: Path, seed: int, answered: Collection[str] = ()) -> RequestSource:
        """Requests from a folder of held-out text, in the target's tokens.

        Args:
            answered: workloads with answers that are drawn too.

        Raises:
            UserError: the target or a workload file is missing or unreadable.
        """
        settings = EngineConfig(self.folder / TARGET, device=self.device, dtype=self.dtype, num_threads=self.threads)
        target = Models.load(settings)
        return RequestSource(workloads, target.tokenizer, target.vocab_size, seed, answered)

    def hugging_face(self, configuration: Configuration) -> HuggingFacePair:
        """The same pair, loaded for transformers' `generate`; only for a drafter that is a model."""
        if configuration.drafter not in self._hugging_face:
            config = self.engine_config(configuration)
            assistant = self.folder / DRAFTERS[configuration.drafter]
            self._hugging_face[configuration.drafter] = HuggingFacePair.load(
                Path(config.target), assistant, config.device, config.torch_dtype
            )
        return self._hugging_face[configuration.drafter]

    def _drafter(self, name: str) -> str | Path:
        return self.folder / DRAFTERS[name] if name in DRAFTERS else NGRAM
