"""Counts of drafted and accepted tokens, from a vLLM server's metrics or from a result of `vllm bench serve`."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from turbospec.errors import UserError
from turbospec.interface import FloatArray

TIMEOUT_SECONDS = 5.0
SPEC = "vllm:spec_decode_num_"


@dataclass(slots=True, frozen=True)
class DraftCounts:
    """Counts over a time of serving."""

    drafts: int
    """Drafts verified: one per request and step with K above 0."""
    draft_tokens: int
    accepted: tuple[float, ...]
    """Draft tokens accepted, by position."""
    drafted: tuple[float, ...] | None = None
    """Draft tokens verified, by position. None where the server does not count them: all drafts then have one K."""

    def since(self, before: DraftCounts) -> DraftCounts:
        """The counts added since an earlier reading.

        Raises:
            UserError: the server was restarted in between.
        """
        # TurboSpec's counts appear up to a second after vLLM's.
        appeared = before.drafted is None and self.drafted is not None
        if self.drafts < before.drafts or (len(self.accepted) != len(before.accepted) and not appeared):
            raise UserError("the server was restarted while it was watched; run the command again")
        nothing = (0.0,) * len(self.accepted)
        return DraftCounts(
            self.drafts - before.drafts,
            self.draft_tokens - before.draft_tokens,
            _differences(self.accepted, nothing if appeared else before.accepted),
            None if self.drafted is None else _differences(self.drafted, before.drafted or nothing),
        )

    @property
    def mean_draft_length(self) -> float:
        return self.draft_tokens / self.drafts

    @property
    def positions(self) -> int:
        """Positions that were drafted at least once."""
        if self.drafted is None:
            return len(self.accepted)
        return next((position for position, count in enumerate(self.drafted) if not count), len(self.drafted))

    def conditional(self) -> FloatArray:
        """(K,) acceptance rate of each position, given that it was drafted and all before it were accepted; NaN without
        observations."""
        accepted = np.array(self.accepted)
        judged = np.concatenate([[float(self.drafts)], accepted[:-1]]) if len(accepted) else accepted
        if self.drafted is not None:
            # Assumes that the drafts that end at position j are accepted up to there as often as those that go on.
            drafted = np.array(self.drafted)
            went_on = np.divide(drafted[1:], drafted[:-1], out=np.zeros(len(drafted) - 1), where=drafted[:-1] > 0)
            judged = np.concatenate([drafted[:1], accepted[:-1] * went_on])
        rates = np.divide(accepted, judged, out=np.full(len(accepted), np.nan), where=judged > 0)
        return np.minimum(rates, 1.0)


def _differences(now: tuple[float, ...], before: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(last - first for last, first in zip(now, before, strict=True))


@dataclass(slots=True, frozen=True)
class BenchResult:
    """The figures of a result of `vllm bench serve` that concern speculation."""

    path: Path
    counts: DraftCounts | None
    """None where nothing was drafted."""
    output_throughput: float
    """Tokens/s."""
    mean_tpot_ms: float
    p99_ttft_ms: float
    output_tokens: int
    completed: int
    request_rate: str
    max_concurrency: int | None

    @property
    def tokens_per_request(self) -> float:
        return self.output_tokens / max(self.completed, 1)


def read_server(url: str) -> DraftCounts:
    """Counts since the start of a vLLM server.

    Args:
        url: its address, with or without `/metrics`.

    Raises:
        UserError: it does not answer, is not a vLLM server, or does not speculate.
    """
    address = url.rstrip("/").removesuffix("/metrics") + "/metrics"
    if not address.startswith(("http://", "https://")):
        raise UserError(f"{url}: not an address; give one such as http://127.0.0.1:8000")
    try:
        with urlopen(address, timeout=TIMEOUT_SECONDS) as answer:
            text = answer.read().decode("utf-8", errors="replace")
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(f"{address} does not answer ({reason}); is the server up, and is this its port?") from None
    return read_metrics(text, address)


def read_metrics(text: str, source: str) -> DraftCounts:
    """Counts from a page of Prometheus metrics, summed over its engines.

    Raises:
        UserError: the page is not from a vLLM server, or from one that does not speculate.
    """
    totals: dict[str, float] = defaultdict(float)
    positions: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removesuffix("_total")
                if name.endswith(("_per_pos", "_per_position")):
                    positions[name][int(sample.labels["position"])] += sample.value
                else:
                    totals[name] += sample.value
    except (ValueError, KeyError) as error:
        raise UserError(f"{source} is not a page of Prometheus metrics ({error})") from None
    if SPEC + "drafts" not in totals:
        if any(name.startswith("vllm:") for name in totals):
            raise UserError(f"{source}: this vLLM does not speculate; start it with --speculative-config")
        raise UserError(f"{source} has no vLLM metrics; give the address of a vLLM server")
    accepted = _in_order(positions[SPEC + "accepted_tokens_per_pos"])
    drafted = None
    if positions["turbospec_drafted_per_position"]:
        drafted = _in_order(positions["turbospec_drafted_per_position"])
        accepted = _in_order(positions["turbospec_accepted_per_position"])
    return DraftCounts(round(totals[SPEC + "drafts"]), round(totals[SPEC + "draft_tokens"]), accepted, drafted)


def _in_order(values: dict[int, float]) -> tuple[float, ...]:
    return tuple(values.get(position, 0.0) for position in range(max(values, default=-1) + 1))


def read_bench(path: Path) -> BenchResult:
    """Read a result of `vllm bench serve --save-result`.

    Raises:
        UserError: the file cannot be read, or is not such a result.
    """
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        result = BenchResult(
            path=path,
            counts=_bench_counts(document),
            output_throughput=float(document["output_throughput"]),
            mean_tpot_ms=float(document["mean_tpot_ms"]),
            p99_ttft_ms=float(document.get("p99_ttft_ms", "nan")),
            output_tokens=int(document["total_output_tokens"]),
            completed=int(document["completed"]),
            request_rate=str(document.get("request_rate", "inf")),
            max_concurrency=document.get("max_concurrency"),
        )
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is not a result of `vllm bench serve --save-result` ({type(error).__name__}: {error})"
        ) from None
    if min(result.completed, result.output_tokens, result.output_throughput, result.mean_tpot_ms) <= 0:
        raise UserError(f"{path}: no request was completed with two tokens or more; repeat the run with longer outputs")
    return result


def _bench_counts(document: dict[str, Any]) -> DraftCounts | None:
    drafts = int(document.get("spec_decode_num_drafts", 0))
    if drafts == 0:
        return None
    rates = document.get("spec_decode_per_position_acceptance_rates", [])
    return DraftCounts(drafts, int(document["spec_decode_draft_tokens"]), tuple(float(rate) * drafts for rate in rates))
