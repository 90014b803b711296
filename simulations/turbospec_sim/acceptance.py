"""Acceptance of each token of a simulated request's text; `workload.acceptance` describes the processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turbospec.errors import UserError
from turbospec.files.reading import is_finite_number
from turbospec.interface import FloatArray, IntArray
from turbospec.runtime.kernels import compiled
from turbospec_sim.kv_gaps import acceptance_share
from turbospec_sim.randomness import uniform
from turbospec_sim.records import CLASS, Record, Records
from turbospec_sim.repeats import repeats_at, set_repeats
from turbospec_sim.workload.acceptance import (
    MAX_POSITIONS,
    CollapsingAcceptance,
    DriftingAcceptance,
    IndependentAcceptance,
    MarkovAcceptance,
    PositionAcceptance,
    RecordedAcceptance,
)
from turbospec_sim.workload.config import RequestClass
from turbospec_sim.workload.files import parsed_lines, text_of

STRETCHES = 1 << 40
"""Counters of a request's random stream from here on give the lengths of its stretches; those below, its tokens."""


class AcceptanceTables(NamedTuple):
    """The request classes and their acceptance processes in arrays."""

    classes: Records
    """(classes,) `CLASS` records."""
    rates: FloatArray
    """(classes, 3, MAX_POSITIONS) acceptance by draft position; a request mixes its class's first two tables, and has
    the third one inside repeats if `drafter_differs`."""
    lines: IntArray
    """(lines, 2) first value and length of each recorded line."""
    values: FloatArray
    """Recorded acceptance of all lines, end to end."""


def acceptance_tables(kinds: Sequence[RequestClass]) -> AcceptanceTables:
    """The tables of a scenario's request classes.

    Raises:
        UserError: a recording cannot be read.
    """
    classes = np.zeros(len(kinds), CLASS)
    classes["begin"] = classes["end"] = classes["until"] = math.inf
    rates = np.zeros((len(kinds), 3, MAX_POSITIONS))
    lines: list[FloatArray] = []
    for number, kind in enumerate(kinds):
        record = classes[number]
        record["cached_share"], record["cached_in_common"] = kind.cached_share, kind.cached_in_common
        record["max_tokens"] = kind.max_tokens or 0
        record["told_class"] = 0 if kind.hidden else number
        set_repeats(classes[number : number + 1], kind.lookup)
        match kind.acceptance:
            case IndependentAcceptance(rate=rate):
                rates[number, :2] = rate
            case PositionAcceptance(rates=by_position):
                rates[number, :2] = _padded(by_position)
            case MarkovAcceptance() as process:
                rates[number, :2] = _padded(process.good), _padded(process.bad)
                record["good_tokens"], record["bad_tokens"] = process.good_tokens, process.bad_tokens
            case DriftingAcceptance() as process:
                rates[number, :2] = _padded(process.before), _padded(process.after)
                record["begin"], record["end"] = process.begin_seconds, process.end_seconds
            case CollapsingAcceptance() as process:
                rates[number, :2] = _padded(process.before), _padded(process.after)
                record["begin"] = record["end"] = process.at_seconds
                record["until"] = math.inf if process.until_seconds is None else process.until_seconds
            case RecordedAcceptance(file=file):
                text = text_of(file, "recording of acceptance")
                recorded = [_line(file, place, value) for place, value in parsed_lines(file, text)]
                if not recorded:
                    raise UserError(f"{file}: no line of acceptances in it")
                record["first_line"], record["lines"] = len(lines), len(recorded)
                lines.extend(recorded)
        if kind.lookup is not None and kind.lookup.drafter_acceptance is not None:
            rates[number, 2], record["drafter_differs"] = _padded(kind.lookup.drafter_acceptance), 1
    sizes = np.array([len(line) for line in lines], np.int64)
    return AcceptanceTables(
        classes,
        rates,
        np.stack([np.cumsum(sizes) - sizes, sizes], axis=1),
        np.concatenate([np.zeros(0), *lines]),
    )


@compiled
def begin_acceptance(request: Record, kind: Record, arrival: float) -> None:
    """Start the process of a new request of class `kind`; `arrival` in seconds since the measured part began."""
    request.mix, request.bad, request.switches = 0.0, 0, 0
    request.switch_at = np.iinfo(np.int64).max
    if kind.begin <= arrival < kind.until:
        request.mix = min((arrival - kind.begin) / (kind.end - kind.begin), 1.0) if kind.end > kind.begin else 1.0
    if kind.good_tokens > 0.0:
        # Geometric lengths have no memory: what is left of a stretch in progress is distributed as a whole one.
        bad_share = kind.bad_tokens / (kind.good_tokens + kind.bad_tokens)
        request.bad = 1 if uniform(request.key, STRETCHES) < bad_share else 0
        request.switch_at = _stretch(request, kind, request.bad, 0)


@compiled
def advance_acceptance(request: Record, kind: Record, position: int) -> None:
    """Advance a request's process to an output position, which never decreases."""
    while position >= request.switch_at:
        request.bad = 1 - request.bad
        request.switches += 1
        request.switch_at += _stretch(request, kind, request.bad, request.switches)


@compiled
def draft_acceptance(engine: Records, request: Record, tables: AcceptanceTables, drafts: int, out: FloatArray) -> None:
    """Write the acceptance of the next `drafts` tokens of a request's drafter, each given that those before it were
    accepted."""
    kind, rates, share = tables.classes[request.class_id], tables.rates, acceptance_share(engine, request)
    bad, switch_at, switches = request.bad, request.switch_at, request.switches
    good_rates, bad_rates = rates[request.class_id, 0], rates[request.class_id, 1]
    begin, length = 0, 0
    if kind.lines > 0:
        line = kind.first_line + request.index % kind.lines
        begin, length = tables.lines[line, 0], tables.lines[line, 1]
    for j in range(drafts):
        position = request.emitted + j
        if kind.drafter_differs and repeats_at(request, kind, position):
            out[j] = share * rates[request.class_id, 2, min(j, rates.shape[2] - 1)]
            continue
        if length > 0:
            value = tables.values[begin + position % length]
            out[j] = share * ((1.0 if j < value else 0.0) if kind.by_reach else value)
            continue
        while position >= switch_at:
            bad, switches = 1 - bad, switches + 1
            switch_at += _stretch(request, kind, bad, switches)
        mix = request.mix if kind.good_tokens == 0.0 else float(bad)
        place = min(j, rates.shape[2] - 1)
        out[j] = share * (good_rates[place] + mix * (bad_rates[place] - good_rates[place]))


@compiled
def _stretch(request: Record, kind: Record, bad: int, number: int) -> int:
    """Length of a stretch in tokens: geometric, at least 1."""
    mean = kind.bad_tokens if bad else kind.good_tokens
    if mean <= 1.0:
        return 1
    return 1 + int(math.log(1.0 - uniform(request.key, STRETCHES + 1 + number)) / math.log(1.0 - 1.0 / mean))


def _padded(rates: Sequence[float]) -> FloatArray:
    return np.array([*rates, *[rates[-1]] * (MAX_POSITIONS - len(rates))])


def _line(file: object, number: int, value: object) -> FloatArray:
    numbers = value if isinstance(value, list) and all(is_finite_number(one) for one in value) else []
    line = np.array(numbers, np.float64)
    if not len(line) or not ((line >= 0.0) & (line <= 1.0)).all():
        raise UserError(f"{file}:{number}: not a list of numbers from 0 to 1")
    return line
