"""The schema of a scenario file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from turbospec.files.settings import Settings
from turbospec_sim.kv_gaps import NEVER_DRAFTS
from turbospec_sim.latency_config import Latency, ProfiledLatency
from turbospec_sim.limits import (
    MAX_BATCH_SLOTS,
    MAX_CACHE_TOKENS,
    MAX_COUNT,
    MAX_SEED,
    Count,
    Positive,
    Rate,
    Seconds,
)
from turbospec_sim.records import ENGINE, Records
from turbospec_sim.workload.acceptance import MAX_POSITIONS, RecordedAcceptance
from turbospec_sim.workload.arrivals import ClosedLoop, TraceArrivals
from turbospec_sim.workload.config import Workload
from turbospec_sim.workload.files import NameOrFile

MAX_RATES = 1000
NO_THRESHOLD = np.iinfo(np.int64).max


class Slo(Settings):
    """Service-level objectives of a run; a figure that equals its limit misses it."""

    p99_ttft_ms: Positive | None = None
    p99_tpot_ms: Positive | None = None


class Server(Settings):
    """The engine's settings, by vLLM's names where vLLM has them."""

    max_num_seqs: int = Field(default=256, ge=1, le=MAX_BATCH_SLOTS)
    """Batch slots: most requests that run at once."""
    max_num_batched_tokens: Count = 8192
    """Most tokens of a step: decode tokens and prefill chunks, and draft tokens with `emit: after_draft`."""
    long_prefill_token_threshold: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Most tokens of a prefill chunk; 0: no limit besides the token budget."""
    kv_cache_tokens: int = Field(ge=1, le=MAX_CACHE_TOKENS)
    """Capacity of the KV cache, all requests together."""
    block_size: Count = 16
    """Tokens in a KV block."""
    frontend_seconds: Seconds = 0.0
    """Time from a client sending a request to its arrival in the waiting queue."""
    emit: Literal["before_draft", "after_draft"] = "after_draft"
    """Whether a step's tokens are emitted before the drafting for the next step, or after it, as by vLLM's model runner
    V1. In vLLM's order the prompts of the next step are not known to the plan."""

    @model_validator(mode="after")
    def _holds_a_block(self) -> Server:
        if self.kv_cache_tokens < self.block_size:
            raise ValueError(f"`kv_cache_tokens` ({self.kv_cache_tokens}) is less than a block ({self.block_size})")
        return self


class Drafter(Settings):
    """How drafts are made; `latency` has the times."""

    max_draft: int = Field(ge=0, le=MAX_POSITIONS)
    """Largest K of the drafter, which no policy exceeds; 0 for an engine without a drafter."""
    max_lookup: int = Field(default=15, ge=0, le=MAX_POSITIONS)
    """Longest draft of the look-up, which the engine offers where a request class has a `lookup`; 0 for none."""
    kind: Literal["sequential", "parallel"] = "sequential"
    """Whether a draft takes one pass per token, or one pass makes all tokens."""
    batch: bool = True
    """Whether each pass runs over the whole batch, up to the longest draft, as in vLLM."""
    first_pass_every_step: bool = False
    """Whether the first pass runs in every step, with drafts or without, as in vLLM without TurboSpec's scheduler."""
    confidence_correlation: float = Field(default=0.5, ge=0, lt=0.999999)
    """How much the drafter's confidence tells about single tokens: 0, only the acceptance of its class and position;
    near 1, whether the token is accepted. Plans that select after drafting see confidence; with `calls_gate` all
    policies do."""
    calls_gate: bool = False
    """Whether the drafter asks a plan's gate after each of its passes, as the embedded engine's does."""
    appends_lookup: bool = False
    """Whether the look-up searches again after drafting and appends what it finds to the drafter's drafts, as in the
    embedded engine."""
    kept_tokens: Count | None = None
    """Most tokens, over all requests, that the server keeps for the drafter to catch up. A request whose drafter KV lag
    reaches further back cannot catch up. None: no limit."""
    gap_acceptance: float | None = Field(default=None, ge=0, le=1)
    """Acceptance right after tokens that the drafter never computed, as a share of the usual; None: a request that
    cannot catch up drafts no more, as with TurboSpec in vLLM."""
    gap_tokens: Count = 64
    """Tokens over which that share rises back to 1, linearly."""
    kv_share: float = Field(default=0.0, ge=0, le=1)
    """Memory of a token in the drafter's KV cache, as a share of the target's, taken out of `server.kv_cache_tokens`;
    0: the drafter has memory of its own, which is not simulated."""
    memory: Literal["shared", "reserved"] = "shared"
    """Whether KV blocks of a drafter that is off for long are given back to the target, or every request holds them as
    long as it runs. Always reserved with `first_pass_every_step`, and with `kept_tokens`, where a request cannot catch
    up its whole context."""

    @model_validator(mode="after")
    def _gaps_fit(self) -> Drafter:
        if self.kept_tokens is not None and self.first_pass_every_step:
            raise ValueError("`kept_tokens` has no meaning with `first_pass_every_step`: such a drafter never lags")
        if self.gap_acceptance is not None and self.kept_tokens is None:
            raise ValueError("`gap_acceptance` needs `kept_tokens`")
        return self

    @model_validator(mode="after")
    def _may_call_gate(self) -> Drafter:
        if self.calls_gate and (self.kind == "parallel" or self.batch):
            raise ValueError("`calls_gate` needs `kind: sequential` and `batch: false`: each draft ends by itself")
        return self


class Scenario(Settings):
    """A server, its workload, and a run."""

    version: Literal[1]
    """Version of the scenario file format."""
    description: str = ""
    """For readers; the simulator ignores it."""
    policy: NameOrFile
    """Name or file of the run's policy; or `oracle` or `best_static`."""
    rates: tuple[Rate, ...] = Field(default=(), max_length=MAX_RATES)
    """Requests/s, one run each; none for closed loops and traces."""
    slo: Slo | None = None
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """Seed of the first run; further seeds count up from it."""
    server: Server
    drafter: Drafter
    latency: Latency
    workload: Workload

    @model_validator(mode="after")
    def _may_append(self) -> Scenario:
        if self.drafter.appends_lookup and (self.server.emit == "after_draft" or not self.max_lookup):
            raise ValueError("`drafter.appends_lookup` needs `server.emit: before_draft` and a class with a `lookup`")
        return self

    @model_validator(mode="after")
    def _rates_fit(self) -> Scenario:
        if self.workload.has_rates and not self.rates:
            raise ValueError("`rates` is missing; name at least one, in requests/s")
        if self.rates and not self.workload.has_rates:
            instead = "`concurrency`" if isinstance(self.workload.arrivals, ClosedLoop) else "its file's times"
            raise ValueError(
                f"`rates` has no meaning for {self.workload.arrivals.process} arrivals, which use {instead}"
            )
        return self

    @property
    def max_lookup(self) -> int:
        """Longest draft of the look-up; 0 where the engine offers none."""
        return self.drafter.max_lookup if any(kind.lookup is not None for kind in self.workload.classes) else 0

    @property
    def files(self) -> list[Path]:
        """The files that the scenario refers to, its policy's not included."""
        acceptances = [kind.acceptance for kind in self.workload.classes]
        files = [acceptance.file for acceptance in acceptances if isinstance(acceptance, RecordedAcceptance)]
        if isinstance(self.workload.arrivals, TraceArrivals):
            files.append(self.workload.arrivals.file)
        if isinstance(self.latency, ProfiledLatency):
            files.append(self.latency.file)
        return files

    def rates_of_runs(self, given: Sequence[float] = ()) -> Sequence[float | None]:
        """Requests/s of its runs: the given rates, or its own without any; one None where the workload has no rates."""
        return (given or self.rates) if self.workload.has_rates else (None,)

    def engine(self, seed: int) -> Records:
        """(1,) `ENGINE` record with the engine's settings."""
        engine = engine_record(self.server, self.drafter, seed)
        engine["max_lookup"] = self.max_lookup
        engine["first_measured"] = self.workload.warmup_requests
        return engine


def engine_record(server: Server, drafter: Drafter, seed: int = 0) -> Records:
    """(1,) `ENGINE` record with an engine's settings, without warm-up requests and a look-up."""
    engine = np.zeros(1, ENGINE)
    for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "frontend_seconds"):
        engine[name] = getattr(server, name)
    engine["long_prefill_token_threshold"] = server.long_prefill_token_threshold or NO_THRESHOLD
    engine["num_blocks"] = server.kv_cache_tokens // server.block_size
    engine["max_draft"] = drafter.max_draft
    engine["draft_before_emit"] = server.emit == "after_draft"
    engine["parallel_drafter"] = drafter.kind == "parallel"
    engine["batch_drafter"] = drafter.batch
    engine["first_pass_every_step"] = drafter.first_pass_every_step and drafter.max_draft > 0
    engine["kept_limit"] = drafter.kept_tokens or 0
    engine["gap_acceptance"] = NEVER_DRAFTS if drafter.gap_acceptance is None else drafter.gap_acceptance
    engine["gap_tokens"] = drafter.gap_tokens
    engine["draft_kv_share"] = drafter.kv_share if drafter.max_draft > 0 else 0.0
    keeps_up = drafter.first_pass_every_step or drafter.kept_tokens is not None
    engine["gives_back"] = drafter.memory == "shared" and not keeps_up
    engine["drafting_share"] = 1.0
    engine["seed"] = seed
    return engine
