"""The benchmark's matrix: its configurations, and the policies that are compared in each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from turbospec.errors import UserError
from turbospec_bench.configuration import Configuration
from turbospec_bench.policy_names import ADAPTIVE, OFF, STATIC_PREFIX
from turbospec_bench.texts import ANSWERED_KINDS
from turbospec_bench.variant import TRANSFORMERS_PREFIX, Variant, check_names

Pairings = Sequence[tuple[str, str]]
"""Workload and drafter of each configuration; every pair is measured at several loads."""

TARGET = "target"
"""Folder of the target model, beside those of its drafters."""

PAIRS: Pairings = (
    ("code", "good"),
    ("prose", "good"),
    ("mixed", "good"),
    ("shift", "good"),
    ("code", "weak"),
    ("code", "mismatched"),
    ("code", "n-gram"),
)
HEADS = ("eagle3", "peagle", "dflash")
NAMED_PAIRS: Pairings = (*product(("code",), HEADS), *product(ANSWERED_KINDS, ("good", "n-gram")))
"""Measured only where a workload or drafter is named that `PAIRS` lacks."""
CONCURRENCIES = (1, 8, 32)

QUICK_MATRIX = (
    Configuration("code", "good", 1),
    Configuration("code", "good", 32),
    Configuration("code", "mismatched", 8),
)

_STATIC = tuple(f"{STATIC_PREFIX}{length}" for length in (1, 2, 3, 5, 8, 15))
FULL_POLICIES = (OFF, *_STATIC, "ema-tiers", "goodput", ADAPTIVE)
QUICK_POLICIES = (OFF, "static-3", "static-15", "ema-tiers", ADAPTIVE)
EMIT_AFTER_DRAFT = ("static-15:after_draft", "adaptive:after_draft")
"""Show what drafting before a step's tokens are emitted does to the first token."""
NOT_IN_TRANSFORMERS = ("n-gram", *HEADS)
"""Drafters that transformers' assisted generation does not take as a model. Nor does it force an answer."""
TRANSFORMERS_POLICIES = tuple(f"{TRANSFORMERS_PREFIX}{name}" for name in ("off", "constant", "heuristic", "confidence"))
"""Assisted generation in transformers, one request at a time."""

MAX_CONCURRENCY = 1024
REQUEST_RATES = (0.01, 10_000.0)
"""Lowest and highest rate of arrivals, requests per second."""
UNCOUNTED_ROUNDS = 1
"""Played first in every configuration, to warm up."""
MAX_ROUNDS = 1000
"""Of a configuration."""

LONE_REQUEST = Configuration("code", "good", 1)
"""Where transformers and the order of emission are compared."""


def select_configurations(
    workloads: Sequence[str],
    drafters: Sequence[str],
    concurrencies: Sequence[int],
    rates: Sequence[float] = (),
    pairings: Pairings = PAIRS,
    named: Pairings = (),
) -> tuple[Configuration, ...]:
    """The configurations of a matrix that match; rates replace its concurrencies. An empty choice selects everything.

    Where both workloads and drafters are named, all their pairs are selected, also those that the matrix lacks.
    A pair of `named` is selected only by its workload or drafter that the other pairings lack.

    Raises:
        UserError: a name is unknown, a load is out of range, or both kinds of load are given.
    """
    if concurrencies and rates:
        raise UserError("--concurrency and --request-rate are two kinds of load; leave one out")
    for name, loads, limits in (
        ("concurrency", concurrencies, (1, MAX_CONCURRENCY)),
        ("request rate", rates, REQUEST_RATES),
    ):
        for load in loads:
            if not limits[0] <= load <= limits[1]:
                raise UserError(f"{name} {str(load)[:20]} is out of range; use {limits[0]:g} to {limits[1]:g}")
    for place, (chosen, what) in enumerate(((workloads, "workload"), (drafters, "drafter"))):
        known = dict.fromkeys(pair[place] for pair in (*pairings, *named))
        for name in chosen:
            if name not in known:
                raise UserError(f"no {what} {name!r}; there are {', '.join(known)}")
    pairs = pairings
    if workloads and drafters:
        pairs = tuple(product(workloads, drafters))
    elif workloads or drafters:
        pairs = tuple(pair for pair in pairings if pair[0] in workloads or pair[1] in drafters)
        usual = {name for pair in pairings for name in pair}
        pairs += tuple(pair for pair in named if not usual.issuperset({*workloads, *drafters} & {*pair}))
    if rates:
        rounded = [float(f"{rate:g}") for rate in rates]  # as names and results files have them
        found = [Configuration(*pair, request_rate=rate) for pair, rate in product(pairs, rounded)]
    else:
        found = [Configuration(*pair, load) for pair, load in product(pairs, concurrencies or CONCURRENCIES)]
    return tuple(dict.fromkeys(found))


def variants_of(configuration: Configuration, policies: Sequence[str], *, quick: bool) -> tuple[Variant, ...]:
    """What a configuration compares: the policies asked for, or the matrix's own choice.

    `off` is always among them, because ratios are to it. transformers serves one request at a time, so its schedules
    are compared at concurrency 1 alone, with a drafter that is a model.

    Raises:
        UserError: two different variants would share a name in the results, or a schedule of transformers is unknown.
    """
    for name in policies:
        if name.startswith(TRANSFORMERS_PREFIX) and name not in TRANSFORMERS_POLICIES:
            known = ", ".join(TRANSFORMERS_POLICIES)
            raise UserError(f"no schedule of transformers is called {name!r}; there are {known}")
    if policies:
        names = [OFF, *policies]
    elif quick:
        names = [*QUICK_POLICIES]
    else:
        names = [*FULL_POLICIES]
    if not policies and configuration == LONE_REQUEST:
        names += EMIT_AFTER_DRAFT[:1] if quick else (*EMIT_AFTER_DRAFT, *TRANSFORMERS_POLICIES)
    variants = tuple(dict.fromkeys(Variant.parse(name) for name in names))
    check_names(variants)
    # transformers can neither force an answer nor restrict tokens, as a part of "mixed" needs.
    plain = configuration.workload not in (*ANSWERED_KINDS, "mixed")
    lone = configuration.concurrency == 1 and configuration.drafter not in NOT_IN_TRANSFORMERS and plain
    return tuple(variant for variant in variants if lone or not variant.is_transformers)


def check_takes_part(policies: Sequence[str], variants: Sequence[Variant]) -> None:
    """Refuse a schedule of transformers that none of the configurations compares.

    Args:
        policies: as asked for.
        variants: of all configurations.

    Raises:
        UserError: there is one.
    """
    compared = {variant.policy for variant in variants}
    for name in policies:
        if name.startswith(TRANSFORMERS_PREFIX) and name not in compared:
            raise UserError(
                f"{name} takes part in no configuration; it needs --concurrency 1, a drafter that is a model of its "
                "own, and code, prose or shift as workload"
            )


def runs_of(variants: Sequence[Variant], rounds: int) -> int:
    """Runs of a configuration with so many counted rounds, the uncounted ones too."""
    return len(variants) * (UNCOUNTED_ROUNDS + rounds)
