"""Counts of drafted and accepted tokens, from a vLLM server's metrics or from a result of `vllm bench serve`.

Both come from outside: counts that contradict one another or that no server reaches are refused.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turbospec.doctor.page import Address, read_page
from turbospec.errors import UserError
from turbospec.files.reading import read_json
from turbospec.interface import FloatArray

SPEC = "vllm:spec_decode_num_"
DRAFTED, ACCEPTED = "turbospec_drafted_per_position", "turbospec_accepted_per_position"
ACTIVE, STARTED = "turbospec_active", "process_start_time_seconds"
METRICS = (SPEC + "drafts", SPEC + "draft_tokens", SPEC + "accepted_tokens_per_pos", DRAFTED, ACCEPTED, ACTIVE, STARTED)
SAMPLE = re.compile(rf"^(?:{'|'.join(METRICS)})(?:_total)?[ \t{{].*", re.MULTILINE)
"""A line of a metrics page with one of these metrics. The others, thousands of lines, are not parsed."""
BENCH_FILE = "result of `vllm bench serve --save-result`"
MAX_SAMPLES = 20_000
MAX_SAMPLE_LENGTH = 1024
MAX_POSITIONS = 1024
MAX_COUNT = 1e15
LEAST_FIGURE = 1e-6
SKEW = 1.1
SKEW_TOKENS = 100
"""Ratio and difference by which a count may exceed one that bounds it: a server's processes count independently."""


@dataclass(slots=True, frozen=True)
class DraftCounts:
    """Counts over a time of serving."""

    drafts: int
    """Drafts verified: one per request and step with K above 0."""
    draft_tokens: int
    accepted: tuple[float, ...]
    """Draft tokens accepted, by position."""
    drafted: tuple[float, ...] | None = None
    """Draft tokens verified, by position. None where the server does not count them."""
    engines: int = 0
    """Engines with TurboSpec; 0 where they do not say."""
    engines_off: int = 0
    """Of these, those in which it could not start or repeated faults have turned it off."""
    started: float = 0.0
    """When the server's process started, seconds since 1970; 0 where it does not say."""

    def since(self, before: DraftCounts) -> DraftCounts:
        """The counts added since an earlier reading.

        Raises:
            UserError: the two readings are not of one run of one server.
        """
        if self.started != before.started:
            raise _another_server()
        # TurboSpec's counts appear up to a second after vLLM's.
        if before.drafted is None and self.drafted is not None:
            nothing = (0.0,) * len(self.accepted)
            before = replace(before, accepted=nothing, drafted=nothing)
        added = [now - then for now, then in zip(self._all(), before._all(), strict=False)]
        alike = len(self.accepted) == len(before.accepted) and (self.drafted is None) == (before.drafted is None)
        if not alike or min(added) < 0:
            raise _another_server()
        positions = len(self.accepted)
        counts = DraftCounts(
            round(added[0]),
            round(added[1]),
            tuple(added[2 : 2 + positions]),
            None if self.drafted is None else tuple(added[2 + positions :]),
            self.engines,
            self.engines_off,
            self.started,
        )
        if counts.contradict():
            raise _another_server()
        return counts

    def _all(self) -> tuple[float, ...]:
        return self.drafts, self.draft_tokens, *self.accepted, *(self.drafted or ())

    def contradict(self) -> bool:
        """Whether counts exceed those that bound them, by more than the skew of a server's processes."""
        drafted = self.drafted or (float(self.drafts),)
        falling = (*pairwise(drafted), *pairwise((drafted[0], *self.accepted)))
        bounds = [(self.draft_tokens, self.drafts), *falling, *zip(self.drafted or (), self.accepted, strict=False)]
        return any(count > SKEW * bound + SKEW_TOKENS for bound, count in bounds)

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
            judged = np.concatenate([drafted[:1], accepted[:-1] * _shares(drafted[1:], drafted[:-1], 0.0)])
        return _shares(accepted, judged, np.nan)


def _another_server() -> UserError:
    return UserError(
        "the second reading is of another server than the first: it was restarted, or the address leads to several "
        "servers; run the command again, with the address of one server"
    )


def _shares(parts: FloatArray, wholes: FloatArray, otherwise: float) -> FloatArray:
    """Parts of wholes, at most 1: a part may be counted earlier. `otherwise` where the whole is 0."""
    return np.divide(np.minimum(parts, wholes), wholes, out=np.full(len(parts), otherwise), where=wholes > 0)


@dataclass(slots=True, frozen=True)
class BenchResult:
    """The figures of a result of `vllm bench serve` that concern speculation."""

    path: Path
    counts: DraftCounts | None
    """None where nothing was drafted."""
    output_throughput: float
    """Tokens/s."""
    mean_tpot_ms: float
    p99_ttft_ms: float | None
    """None where the run did not report it."""
    output_tokens: int
    completed: int
    input_tokens: int
    request_rate: str
    max_concurrency: int | None
    model: str
    prompts: int | None
    """That were sent; None where the run did not report it."""

    @property
    def tokens_per_request(self) -> float:
        return self.output_tokens / max(self.completed, 1)

    @property
    def prompt_tokens_per_request(self) -> float:
        """0 where the run did not report them."""
        return self.input_tokens / max(self.completed, 1)


def read_server(url: str) -> DraftCounts:
    """Counts since the start of a vLLM server.

    Args:
        url: its address, with or without `/metrics`, with user and password where it asks for them.

    Raises:
        UserError: it does not answer in time, is not a vLLM server, or does not speculate.
    """
    address = Address.parse(url)
    address = replace(address, path=address.path.rstrip("/").removesuffix("/metrics") + "/metrics")
    return read_metrics(read_page(address).decode("utf-8", errors="replace"), str(address))


def read_metrics(text: str, source: str) -> DraftCounts:
    """Counts from a page of Prometheus metrics, summed over its engines.

    Raises:
        UserError: the page is not from a vLLM server, is from one that does not speculate, or its counts cannot be.
    """
    values: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    try:
        for sample in _samples(text):
            name, labels = sample.name.removesuffix("_total"), frozenset(sample.labels.items())
            if (name, labels) in seen:
                raise ValueError(f"{name} is there twice with the same labels")
            seen.add((name, labels))
            values[name][_position(sample)] += _count(sample)
    except (ValueError, LookupError, OverflowError) as error:
        raise UserError(f"{source} is not a page of Prometheus metrics ({str(error)[:100]})") from None
    if not values[SPEC + "drafts"]:
        if re.search("^vllm:", text, re.MULTILINE):
            raise UserError(f"{source}: this vLLM does not speculate; start it with --speculative-config")
        raise UserError(f"{source} has no vLLM metrics; give the address of a vLLM server")
    drafts, draft_tokens = (round(sum(values[SPEC + name].values())) for name in ("drafts", "draft_tokens"))
    accepted, started = _in_order(values[SPEC + "accepted_tokens_per_pos"]), sum(values[STARTED].values())
    engines = sum(name == ACTIVE for name, _ in seen)
    engines_off = engines - round(sum(values[ACTIVE].values()))
    counts = DraftCounts(drafts, draft_tokens, accepted, None, engines, engines_off, started)
    if values[DRAFTED]:
        drafted = _in_order(values[DRAFTED])
        accepted = (*_in_order(values[ACCEPTED]), *(0.0,) * len(drafted))[: len(drafted)]
        counts = replace(counts, accepted=accepted, drafted=drafted)
    if counts.contradict():
        raise UserError(f"{source}: its counts of drafts contradict one another; is this the page of one vLLM server?")
    return counts


def _samples(text: str) -> Iterator[Sample]:
    """The samples of `METRICS`.

    Raises:
        ValueError: one cannot be read, or there are too many.
    """
    for number, line in enumerate(SAMPLE.finditer(text)):
        if number >= MAX_SAMPLES:
            raise ValueError(f"more than {MAX_SAMPLES} counts of drafts")
        if len(line[0]) > MAX_SAMPLE_LENGTH:  # the parser takes quadratic time
            raise ValueError(f"a line of more than {MAX_SAMPLE_LENGTH} characters")
        for family in text_string_to_metric_families(line[0]):
            yield from family.samples


def _position(sample: Sample) -> int:
    """The draft position of a sample; 0 where its metric has none."""
    if not sample.name.removesuffix("_total").endswith(("_per_pos", "_per_position")):
        return 0
    position = sample.labels["position"]
    if not re.fullmatch("[0-9]{1,4}", position) or int(position) >= MAX_POSITIONS:
        raise ValueError(f"the draft position {position[:20]!r} is not from 0 to {MAX_POSITIONS - 1}")
    return int(position)


def _count(sample: Sample) -> float:
    if not 0 <= sample.value <= MAX_COUNT:
        raise ValueError(f"{sample.name} is {str(sample.value)[:20]}, which is no count")
    return float(sample.value)


def _in_order(values: dict[int, float]) -> tuple[float, ...]:
    return tuple(values.get(position, 0.0) for position in range(max(values, default=-1) + 1))


Figure = Annotated[float, Field(ge=0, le=MAX_COUNT)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Rate = Annotated[float, Field(ge=0, le=1)]


class _BenchFile(BaseModel):
    """The fields of a result of `vllm bench serve` that are read; it has many others."""

    model_config = ConfigDict(strict=True)

    output_throughput: Figure
    mean_tpot_ms: Figure
    p99_ttft_ms: Figure | None = None
    total_output_tokens: Count
    total_input_tokens: Count = 0
    completed: Count
    model_id: str = ""
    num_prompts: Count | None = None
    request_rate: Figure | Literal["inf"] = "inf"
    max_concurrency: Count | None = None
    spec_decode_num_drafts: Count = 0
    spec_decode_draft_tokens: Count = 0
    spec_decode_per_position_acceptance_rates: Annotated[list[Rate], Field(max_length=MAX_POSITIONS)] = []


def read_bench(path: Path) -> BenchResult:
    """Read a result of `vllm bench serve --save-result`.

    Raises:
        UserError: the file cannot be read, or is not such a result.
    """
    document = read_json(path, BENCH_FILE)
    try:
        read = _BenchFile.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: not a {BENCH_FILE} ({f'{where}: ' if where else ''}{first['msg']})") from error
    if min(read.completed, read.total_output_tokens, read.output_throughput, read.mean_tpot_ms) < LEAST_FIGURE:
        raise UserError(f"{path}: no request was completed with two tokens or more; repeat the run with longer outputs")
    counts = None
    if drafts := read.spec_decode_num_drafts:
        rates = read.spec_decode_per_position_acceptance_rates
        counts = DraftCounts(drafts, read.spec_decode_draft_tokens, tuple(rate * drafts for rate in rates))
        if counts.contradict():
            raise UserError(f"{path}: its counts of drafts contradict one another; repeat the run")
    return BenchResult(
        path=path,
        counts=counts,
        output_throughput=read.output_throughput,
        mean_tpot_ms=read.mean_tpot_ms,
        p99_ttft_ms=read.p99_ttft_ms,
        output_tokens=read.total_output_tokens,
        completed=read.completed,
        input_tokens=read.total_input_tokens,
        request_rate=str(read.request_rate),
        max_concurrency=read.max_concurrency,
        model=read.model_id,
        prompts=read.num_prompts,
    )
