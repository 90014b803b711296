"""Draws the requests of a run: the same ones for every policy with the same seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from turbospec.errors import UserError
from turbospec_sim.limits import LAST_MOMENT, MAX_COUNT, MAX_REQUESTS
from turbospec_sim.records import OFFERED, Records
from turbospec_sim.workload.arrivals import ClosedLoop, TraceArrivals
from turbospec_sim.workload.config import RequestClass, Workload
from turbospec_sim.workload.files import csv_rows, parsed_lines, shown, text_of

CLASSES, ARRIVALS, LENGTHS, STARTUP = range(4)
"""Streams of random numbers: changing one part of a workload does not change the others. The last is for the dummy
steps before the first request."""


def offered_requests(workload: Workload, rate: float | None, seed: int) -> Records:
    """The requests of a run, warm-up first, as `OFFERED` records in the order in which they are sent.

    `sent` is in seconds since the measured part began, and 0 for warm-up requests and closed loops. An output longer
    than its class's `max_tokens` is cut to it.

    Args:
        workload: arrivals and request classes.
        rate: requests/s; None where the workload has no rate.
        seed: of all random numbers.

    Raises:
        UserError: a trace cannot be read.
    """
    if isinstance(workload.arrivals, TraceArrivals):
        requests = _recorded(workload.arrivals.file, workload)
    else:
        requests = _drawn(workload, rate, seed)
    limits = np.array([kind.max_tokens or MAX_COUNT for kind in workload.classes])[requests["class_id"]]
    requests["output_tokens"] = np.minimum(requests["output_tokens"], limits)
    return requests


def _drawn(workload: Workload, rate: float | None, seed: int) -> Records:
    assert workload.requests is not None
    warmup = workload.warmup_requests
    requests = _blank(warmup + workload.requests)
    shares = np.cumsum([kind.share for kind in workload.classes])
    picks = np.random.default_rng([seed, CLASSES]).random(len(requests)) * shares[-1]
    requests["class_id"] = np.searchsorted(shares, picks, side="right")
    for number, kind in enumerate(workload.classes):
        mine = requests["class_id"] == number
        rng = np.random.default_rng([seed, LENGTHS, number])
        assert kind.prompt_tokens is not None
        assert kind.output_tokens is not None
        # Drawn for all requests, so that the lengths of one class do not depend on the number of others.
        requests["prompt_tokens"][mine] = kind.prompt_tokens.draw(rng, len(requests))[mine]
        requests["output_tokens"][mine] = kind.output_tokens.draw(rng, len(requests))[mine]
    if not isinstance(workload.arrivals, ClosedLoop | TraceArrivals):
        assert rate is not None
        rng = np.random.default_rng([seed, ARRIVALS])
        requests["sent"][warmup:] = workload.arrivals.times(rng, rate, workload.requests)
    return requests


def _recorded(file: Path, workload: Workload) -> Records:
    text = text_of(file, "trace of requests")
    rows = csv_rows(file, text) if file.suffix == ".csv" else parsed_lines(file, text)
    lines = [*islice(rows, (workload.requests or MAX_REQUESTS) + 1)]
    if workload.requests is None and len(lines) > MAX_REQUESTS:
        raise UserError(f"{file}: more than {MAX_REQUESTS} requests; name fewer with `workload.requests`")
    lines = lines[: workload.requests]
    if not lines:
        raise UserError(f"{file}: no requests in it")
    if workload.requests is not None and len(lines) < workload.requests:
        raise UserError(f"{file}: {len(lines)} requests in it, but `workload.requests` asks for {workload.requests}")
    numbers = {kind.name: number for number, kind in enumerate(workload.classes)}
    requests = _blank(len(lines))
    for request, (line, fields) in zip(requests, lines, strict=True):
        try:
            request["sent"] = _number(fields, "arrival_time", 0.0, LAST_MOMENT)
            for name in ("prompt_tokens", "output_tokens"):
                request[name] = _tokens(fields, name)
            request["class_id"] = numbers[_class(fields, workload.classes)]
        except ValueError as error:
            raise UserError(f"{file}:{line}: {error}") from error
    requests["sent"] -= requests["sent"].min()
    return requests[np.argsort(requests["sent"], kind="stable")]


def _blank(size: int) -> Records:
    requests = np.zeros(size, OFFERED)
    requests["ttft"] = requests["latency"] = math.nan
    return requests


def _number(fields: Any, name: str, least: float, most: float) -> float:
    if not isinstance(fields, Mapping) or name not in fields:
        raise ValueError(f"`{name}` is missing")
    try:
        value = math.nan if isinstance(fields[name], bool) else float(fields[name])
    except (TypeError, ValueError):
        value = math.nan
    if not least <= value <= most:
        raise ValueError(f"`{name}` must be a number from {least:g} to {most:g} (got {shown(fields[name])})")
    return value


def _tokens(fields: Any, name: str) -> int:
    value = _number(fields, name, 1, MAX_COUNT)
    if not value.is_integer():
        raise ValueError(f"`{name}` must be a whole number (got {shown(fields[name])})")
    return int(value)


def _class(fields: Mapping[str, Any], kinds: Sequence[RequestClass]) -> str:
    name = fields.get("class", kinds[0].name)
    if name not in [kind.name for kind in kinds]:
        raise ValueError(
            f"class `{shown(name)}` is not one of the scenario's ({', '.join(kind.name for kind in kinds)})"
        )
    return name
