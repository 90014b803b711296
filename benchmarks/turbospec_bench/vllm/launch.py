"""Arguments and environment of the server of each variant."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from turbospec_bench.matrix import TARGET
from turbospec_bench.policy_names import OFF, fixed_length
from turbospec_bench.variant import Variant
from turbospec_bench.vllm.matrix import BATCH_TABLE, own_lookup_length
from turbospec_bench.vllm.speculation import MAX_DRAFT, NGRAM, Lengths, speculative_config

MAX_MODEL_LEN = 512
KV_CACHE_BYTES_A_REQUEST = 12 * 2**20
"""Enough for a request of that length with the repository's models. vLLM's minimum of 1 GB would take 7 GB for the
servers of one drafter."""
GROWN_KV_CACHE_BYTES_A_REQUEST = 2 * KV_CACHE_BYTES_A_REQUEST
"""On a GPU, for models that `training.grow` made."""
EAGER = ("--enforce-eager",)
"""On a CPU, where vLLM would compile for most of a minute."""
SHARED_GPU = ("--gpu-memory-utilization", "0.05")
"""vLLM requires that this share is free, whatever it will use. The servers of one drafter share a GPU."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Arguments of `vllm serve`, without its port, and additions to the environment."""

    name: str
    """Names the server in its log file and in errors."""
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


def server_name(drafter: str, variant: Variant) -> str:
    """`off` has one server for all drafters, every other variant one per drafter."""
    return OFF if variant.policy == OFF else f"{drafter}-{variant.name}"


@dataclass(frozen=True, slots=True)
class Launches:
    """What all servers of a benchmark have in common."""

    models: Path
    dtype: str
    max_num_seqs: int
    on_gpu: bool = False

    @property
    def target(self) -> str:
        return str((self.models / TARGET).resolve())

    def of(self, drafter: str, variant: Variant, lengths: Lengths | None = None) -> Launch:
        """The server of a variant; `lengths` is the table of `vllm-table`."""
        # Without the prefix cache: a prompt may be drawn again in a later round, and the server of `off` runs through
        # the rounds of all drafters and would find more of them cached.
        kv_cache_bytes = GROWN_KV_CACHE_BYTES_A_REQUEST if self.on_gpu else KV_CACHE_BYTES_A_REQUEST
        common = (
            *(self.target, "--dtype", self.dtype, "--max-model-len", str(MAX_MODEL_LEN)),
            *(SHARED_GPU if self.on_gpu else EAGER),
            *("--max-num-seqs", str(self.max_num_seqs), "--no-enable-prefix-caching"),
            *("--kv-cache-memory-bytes", str(self.max_num_seqs * kv_cache_bytes)),
        )
        name = server_name(drafter, variant)
        if variant.policy == OFF:
            return Launch(name, common)
        environment: dict[str, str] = {}
        if variant.policy == BATCH_TABLE:
            assert lengths is not None
            longest = max(1, *(length for _, _, length in lengths))
            config = speculative_config(drafter, self.models, longest, lengths)
        elif length := fixed_length(variant.policy):
            config = speculative_config(drafter, self.models, length)
        elif length := own_lookup_length(variant.policy):
            config = speculative_config(NGRAM, self.models, length)
        else:
            config = speculative_config(drafter, self.models, MAX_DRAFT)
            environment["TURBOSPEC_POLICY"] = variant.policy
            if variant.lookup:
                environment["TURBOSPEC_LOOKUP"] = "ngram"
        return Launch(name, (*common, "--speculative-config", json.dumps(config)), environment)
