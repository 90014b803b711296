"""Fits the repeats of a request class to recorded text: prompts, and what followed them.

An output is divided from its beginning: where at least `min_repeat` tokens are the same as tokens anywhere before them,
the longest such stretch is a repeat; the token after it, and all up to the next one, are a gap. Shorter coincidences
are false matches. What a look-up finds in the gaps, and how much of it is right, is counted with a look-up that takes
the longest match of the last tokens, at least `min_match`, and of several the latest.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_ndtr

from turbospec.errors import UserError
from turbospec.interface import BoolArray, FloatArray
from turbospec_sim.workload.lengths import LogNormalLength
from turbospec_sim.workload.repeats import GeometricLength, Repeats, StretchLengths

MOST_CANDIDATES = 64
"""Latest places of earlier text that are compared with the text at hand."""
FEWEST_FOR_LOGNORMAL = 10
"""Ended stretches below which a length's second parameter is not fitted."""
LARGEST_SIGMA = 3.0


@dataclass(slots=True)
class Stretches:
    """Lengths of stretches of one kind, and whether each ended before the output did."""

    lengths: list[int] = field(default_factory=list[int])
    ended: list[bool] = field(default_factory=list[bool])

    def add(self, length: int, *, ended: bool) -> None:
        if length:
            self.lengths.append(length)
            self.ended.append(ended)


@dataclass(slots=True)
class Observed:
    """What was counted in recorded text."""

    outputs: int = 0
    repeats: Stretches = field(default_factory=Stretches)
    gaps: Stretches = field(default_factory=Stretches)
    tried: int = 0
    """Positions outside repeats at which a look-up was tried."""
    found: int = 0
    """Of these, positions at which it found something."""
    accepted: int = 0
    """Tokens drafted there that were right, before the first wrong one."""
    rejected: int = 0
    """First wrong ones."""

    @property
    def tokens(self) -> int:
        """Output tokens that were divided: not the last few of an output."""
        return sum(self.repeats.lengths) + sum(self.gaps.lengths)

    @property
    def repeated_share(self) -> float:
        """Share of the output tokens that are in repeats."""
        return sum(self.repeats.lengths) / max(self.tokens, 1)


def observe(texts: Sequence[tuple[Sequence[str], Sequence[str]]], min_match: int, min_repeat: int) -> Observed:
    """Count the repeats and false matches of prompts and outputs.

    Args:
        texts: tokens of each prompt and of its output.
        min_match: tokens that match before a look-up finds something.
        min_repeat: tokens of the shortest repeat, more than `min_match`.
    """
    observed = Observed()
    for prompt, output in texts:
        observed.outputs += 1
        _observe([*prompt, *output], len(prompt), min_match, min_repeat, observed)
    return observed


def fitted(observed: Observed, min_match: int, min_repeat: int) -> Repeats:
    """The repeats of a class that are most likely to have been observed.

    Raises:
        UserError: no repeat was observed.
    """
    if not observed.repeats.lengths:
        raise UserError(
            f"no repeat of {min_repeat} tokens or more in {observed.outputs:,} outputs; a look-up finds nothing there, "
            "or give a lower --min-repeat"
        )
    gaps = observed.gaps if observed.gaps.lengths else Stretches([1], [True])
    return Repeats(
        repeat_tokens=_fitted_lengths(observed.repeats, min_repeat),
        gap_tokens=_fitted_lengths(gaps, 1),
        min_match=min_match,
        false_match=round(observed.found / max(observed.tried, 1), 4),
        false_acceptance=round(min(observed.accepted / max(observed.accepted + observed.rejected, 1), 0.99), 4),
    )


class _Places:
    """Where each sequence of a fixed number of tokens begins, latest first; filled as the text goes on."""

    def __init__(self, tokens: Sequence[str], length: int) -> None:
        self._tokens, self._length = tokens, length
        self._begins: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        self._filled = 0

    def before(self, position: int, like: int) -> list[int]:
        """Places before `position` of the tokens that begin at `like`."""
        while self._filled < position:
            self._begins[self._at(self._filled)].append(self._filled)
            self._filled += 1
        return self._begins[self._at(like)][: -MOST_CANDIDATES - 1 : -1]

    def _at(self, place: int) -> tuple[str, ...]:
        return tuple(self._tokens[place : place + self._length])


def _observe(tokens: Sequence[str], begin: int, min_match: int, min_repeat: int, observed: Observed) -> None:
    repeats, matches = _Places(tokens, min_repeat), _Places(tokens, min_match)
    position, gap, after_repeat = begin, 0, False
    # Of the last tokens it is not known whether they begin a repeat.
    while position + min_repeat <= len(tokens):
        copied = 0
        if not after_repeat:
            copied = max((_alike(tokens, place, position) for place in repeats.before(position, position)), default=0)
        if copied:
            observed.gaps.add(gap, ended=True)
            observed.repeats.add(copied, ended=position + copied < len(tokens))
            position, gap, after_repeat = position + copied, 0, True
            continue
        # Right after a repeat the look-up still finds it.
        if not after_repeat and position >= min_match:
            observed.tried += 1
            right = _right_tokens(tokens, position, min_match, matches)
            if right is not None:
                observed.found += 1
                observed.accepted += right
                observed.rejected += position + right < len(tokens)
        position, gap, after_repeat = position + 1, gap + 1, False
    observed.gaps.add(gap, ended=False)


def _right_tokens(tokens: Sequence[str], position: int, min_match: int, matches: _Places) -> int | None:
    """How many tokens from a position on the look-up would draft rightly; None where it finds nothing."""
    best, longest = None, 0
    for place in matches.before(position - min_match, position - min_match):
        following, matched = place + min_match, min_match
        while following > matched and tokens[following - matched - 1] == tokens[position - matched - 1]:
            matched += 1
        if matched > longest:
            best, longest = following, matched
    return None if best is None else _alike(tokens, best, position)


def _alike(tokens: Sequence[str], place: int, position: int) -> int:
    """How many tokens from a place on are those from a later position on."""
    length = 0
    while position + length < len(tokens) and tokens[place + length] == tokens[position + length]:
        length += 1
    return length


def _fitted_lengths(stretches: Stretches, low: int) -> StretchLengths:
    """The likeliest distribution of lengths, of which those that did not end are only known to be longer."""
    lengths, ended = np.array(stretches.lengths, np.float64), np.array(stretches.ended, np.bool_)
    endings = max(int(ended.sum()), 1)
    # A stretch goes on past each token from the shortest length's last one on, or ends there.
    beyond = float((lengths - low).clip(0).sum()) / endings
    geometric = GeometricLength(distribution="geometric", mean=round(low + beyond, 2), low=low)
    if ended.sum() < FEWEST_FOR_LOGNORMAL or beyond == 0.0:
        return geometric
    going_on = math.log(beyond / (beyond + 1.0))
    likelihood = going_on * float((lengths - low).clip(0).sum()) + math.log(1.0 / (beyond + 1.0)) * endings

    def loss(parameters: FloatArray) -> float:
        return -_lognormal_likelihood(lengths, ended, low, float(parameters[0]), math.exp(float(parameters[1])))

    start = np.array([np.log(lengths).mean(), math.log(max(float(np.log(lengths).std()), 0.1))])
    bounds = [(-5.0, 20.0), (math.log(0.01), math.log(LARGEST_SIGMA))]
    found = minimize(loss, start, method="Nelder-Mead", bounds=bounds)
    if -found.fun <= likelihood + 1.0:  # Akaike's price of the second parameter
        return geometric
    location, sigma = float(found.x[0]), math.exp(float(found.x[1]))
    return LogNormalLength(
        distribution="lognormal",
        mean=round(math.exp(location + sigma**2 / 2.0), 2),
        sigma=round(sigma, 3),
        low=low,
        high=max(int(lengths.max()), low),
    )


def _lognormal_likelihood(lengths: FloatArray, ended: BoolArray, low: int, location: float, sigma: float) -> float:
    """Logarithm of the likelihood of lengths that are rounded and clipped to at least `low`."""
    above = log_ndtr((location - np.log(lengths + 0.5)) / sigma)
    least = np.where(lengths > low, log_ndtr((location - np.log(np.maximum(lengths - 0.5, 0.5))) / sigma), 0.0)
    with np.errstate(divide="ignore"):
        exactly = least + np.log(-np.expm1(np.minimum(above - least, 0.0)))
    return float(np.where(ended, exactly, least).clip(-700.0).sum())
