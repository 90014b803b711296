"""Where a simulated request's output repeats earlier text, and what the look-up drafts there; `workload.repeats`
describes the process."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turbospec.interface import FloatArray, Source
from turbospec.runtime.kernels import compiled
from turbospec_sim.randomness import normal, uniform
from turbospec_sim.records import Record, Records
from turbospec_sim.workload.lengths import LogNormalLength
from turbospec_sim.workload.repeats import Repeats, StretchLengths

LOOKUP = Source.LOOKUP.value
LENGTHS, FALSE_MATCHES, FALSE_SCORES, FALSE_TOKENS = (np.uint64(0x52E9EA7 + number) for number in range(4))
"""Added to the key of a request's random stream; each gives a stream of its own."""


class _Stretch(NamedTuple):
    """A repeat, or the gap after one, in a request's output."""

    repeating: int
    begin: int
    """Output position of its first token."""
    end: int
    """And of the first one after it."""
    number: int
    """Stretches before it."""
    matched: int
    """In a gap: length of the repeat before it."""


class Found(NamedTuple):
    """What the look-up finds for a request."""

    score: int
    """Tokens that match; 0 where it finds nothing."""
    repeats: bool
    """Whether they are part of a repeat, and not a false match."""
    left: int
    """Tokens of the repeat that follow."""


def set_repeats(kind: Records, repeats: Repeats | None) -> None:
    """Write a class's repeats into its `CLASS` record."""
    kind["repeats"] = repeats is not None
    if repeats is None:
        return
    _set_lengths(kind["repeat_lengths"], repeats.repeat_tokens)
    _set_lengths(kind["gap_lengths"], repeats.gap_tokens)
    for name in ("min_match", "false_match", "false_acceptance"):
        kind[name] = getattr(repeats, name)


@compiled
def begin_repeats(request: Record, kind: Record) -> None:
    """Start the process of a new request of class `kind`: in a repeat as often as outputs are in one."""
    request.repeating = request.stretches = request.stretch_from = request.matched = 0
    request.stretch_until = np.iinfo(np.int64).max
    if kind.repeats:
        repeat, gap = kind.repeat_lengths.mean, kind.gap_lengths.mean
        request.repeating = 1 if uniform(request.key + LENGTHS, 0) < repeat / (repeat + gap) else 0
        request.stretch_until = _length(request, kind, request.repeating, 1)


@compiled
def advance_repeats(request: Record, kind: Record, position: int) -> None:
    """Advance a request's process to an output position, which never decreases."""
    stretch = _stretch_at(request, kind, position)
    request.repeating, request.stretch_from, request.stretch_until = stretch.repeating, stretch.begin, stretch.end
    request.stretches, request.matched = stretch.number, stretch.matched


@compiled
def repeats_at(request: Record, kind: Record, position: int) -> bool:
    """Whether the token at an output position, not before the process's own, repeats earlier text."""
    return _stretch_at(request, kind, position).repeating > 0


@compiled
def look_up(request: Record, kind: Record, ahead: int) -> Found:
    """What the look-up finds after `ahead` further tokens of a request's output; 0 for its next output position."""
    if not kind.repeats:
        return Found(0, False, 0)
    position = request.emitted + ahead
    stretch = _stretch_at(request, kind, position)
    matched, left = 0, 0
    if stretch.repeating:
        matched, left = position - stretch.begin, stretch.end - position
    elif position == stretch.begin:
        matched = stretch.matched  # right after its end a repeat still matches
    if matched >= kind.min_match:
        return Found(matched, True, left)
    if not is_false_match(request, kind, position):
        return Found(0, False, 0)
    more, rate = 0, kind.false_acceptance
    if rate > 0.0:
        more = int(math.log(1.0 - uniform(request.key + FALSE_SCORES, position)) / math.log(rate))
    return Found(kind.min_match + more, False, 0)


@compiled
def is_false_match(request: Record, kind: Record, position: int) -> bool:
    """Whether the look-up finds something at an output position where nothing repeats."""
    return uniform(request.key + FALSE_MATCHES, position) < kind.false_match


@compiled
def accepted_of_lookup(request: Record, kind: Record, ahead: int, drafts: int) -> int:
    """Accepted tokens of a draft that the look-up made after `ahead` further tokens of a request's output."""
    found = look_up(request, kind, ahead)
    if found.repeats:
        return min(drafts, found.left)
    accepted, position = 0, request.emitted + ahead
    while accepted < drafts and uniform(request.key + FALSE_TOKENS, position + accepted) < kind.false_acceptance:
        accepted += 1
    return accepted


@compiled
def lookup_acceptance(request: Record, kind: Record, drafts: int, out: FloatArray) -> None:
    """Write the acceptance of the next `drafts` tokens of the look-up, each given that those before it were accepted.

    It is that of a match of such a length, whose repeat may end with any token: not the result.
    """
    found = look_up(request, kind, 0)
    for j in range(drafts):
        if not found.repeats:
            out[j] = kind.false_acceptance
            continue
        reached = _survival(kind.repeat_lengths, found.score + j)
        out[j] = _survival(kind.repeat_lengths, found.score + j + 1) / reached if reached > 0.0 else 0.0


@compiled
def _stretch_at(request: Record, kind: Record, position: int) -> _Stretch:
    """The stretch of an output position, not before the process's own."""
    repeating, begin, end = request.repeating, request.stretch_from, request.stretch_until
    number, matched = request.stretches, request.matched
    while position >= end:
        matched = (end - begin) * repeating
        repeating, number, begin = 1 - repeating, number + 1, end
        end += _length(request, kind, repeating, number + 1)
    return _Stretch(repeating, begin, end, number, matched)


@compiled
def _length(request: Record, kind: Record, repeating: int, number: int) -> int:
    """Length of the `number`-th stretch, in tokens, at least 1; numbers count from 1."""
    lengths = kind.repeat_lengths if repeating else kind.gap_lengths
    key = request.key + LENGTHS
    if lengths.sigma < 0.0:
        beyond = lengths.mean - lengths.low
        if beyond <= 0.0:
            return int(lengths.low)
        return int(lengths.low + math.log(1.0 - uniform(key, 2 * number)) / math.log(beyond / (beyond + 1.0)))
    drawn = round(min(lengths.median * math.exp(lengths.sigma * normal(key, number)), 1e15))
    return int(min(max(drawn, lengths.low), lengths.high))


@compiled
def _survival(lengths: Record, tokens: int) -> float:
    """Probability that a stretch has at least so many tokens."""
    if tokens <= lengths.low:
        return 1.0
    if lengths.sigma < 0.0:
        beyond = lengths.mean - lengths.low
        return (beyond / (beyond + 1.0)) ** (tokens - lengths.low)
    if tokens > lengths.high:
        return 0.0
    distance = math.log((tokens - 0.5) / lengths.median)
    if lengths.sigma == 0.0:
        return 1.0 if distance <= 0.0 else 0.0
    return 0.5 * math.erfc(distance / (lengths.sigma * math.sqrt(2.0)))


def _set_lengths(record: Records, lengths: StretchLengths) -> None:
    if isinstance(lengths, LogNormalLength):
        record["mean"], record["low"], record["high"] = lengths.mean_tokens, lengths.low, lengths.high
        record["median"], record["sigma"] = lengths.median_and_sigma()
    else:
        record["mean"], record["low"], record["sigma"] = lengths.mean, lengths.low, -1.0
