"""What is measured: the configurations of the table and who competes in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

from turbospec.errors import UserError
from turbospec_bench.configuration import Configuration
from turbospec_bench.policy_names import OFF, STATIC_PREFIX

Emit = Literal["before_draft", "after_draft"]
Pairings = Sequence[tuple[str, str]]
"""Workloads with their drafters: the configurations of a table, but for the load."""

ADAPTIVE = "adaptive"
TARGET = "target"
"""Folder of the target, among those of its drafters."""
AFTER_DRAFT_SUFFIX = ":after_draft"
TRANSFORMERS_PREFIX = "transformers-"


@dataclass(frozen=True, slots=True)
class Variant:
    """One competitor: a policy in the embedded engine or in vLLM, or a schedule of transformers' own `generate`."""

    policy: str
    """Stem or path of a policy file, or a name that begins with `transformers-`."""
    emit: Emit | None = "before_draft"
    """None where the engine is not ours, and drafts when it does."""

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Read `POLICY` or `POLICY:after_draft`."""
        if text.endswith(AFTER_DRAFT_SUFFIX):
            return cls(text.removesuffix(AFTER_DRAFT_SUFFIX), "after_draft")
        return cls(text)

    @property
    def name(self) -> str:
        """What rows call the policy: its file's name without folder and ending."""
        return Path(self.policy).stem

    @property
    def is_transformers(self) -> bool:
        return self.policy.startswith(TRANSFORMERS_PREFIX)


PAIRS: Pairings = (
    ("code", "good"),
    ("prose", "good"),
    ("mixed", "good"),
    ("shift", "good"),
    ("code", "weak"),
    ("code", "mismatched"),
    ("code", "n-gram"),
)
CONCURRENCIES = (1, 8, 32)

QUICK_TABLE = (
    Configuration("code", "good", 1),
    Configuration("code", "good", 32),
    Configuration("code", "mismatched", 8),
)

_STATIC = tuple(f"{STATIC_PREFIX}{length}" for length in (1, 2, 3, 5, 8, 15))
FULL_POLICIES = (OFF, *_STATIC, "ema-tiers", "goodput", ADAPTIVE)
QUICK_POLICIES = (OFF, "static-3", "static-15", "ema-tiers", ADAPTIVE)
ORDER_OF_EMISSION = ("static-15:after_draft", "adaptive:after_draft")
"""What drafting before a step's tokens leave does to the first token."""
YARDSTICKS = tuple(f"{TRANSFORMERS_PREFIX}{name}" for name in ("off", "constant", "heuristic", "confidence"))
"""What users have today, at one request at a time."""

LONE_REQUEST = Configuration("code", "good", 1)
"""Where the yardsticks and the order of emission are compared."""


def select_configurations(
    workloads: Sequence[str],
    drafters: Sequence[str],
    concurrencies: Sequence[int],
    rates: Sequence[float] = (),
    table: Pairings = PAIRS,
) -> tuple[Configuration, ...]:
    """The configurations of a table that match; rates replace its concurrencies. An empty choice selects everything.

    Where both workloads and drafters are named, all their pairs are selected, also those that the table lacks.

    Raises:
        UserError: a name is unknown.
    """
    for place, (chosen, what) in enumerate(((workloads, "workload"), (drafters, "drafter"))):
        known = dict.fromkeys(pair[place] for pair in table)
        for name in chosen:
            if name not in known:
                raise UserError(f"no {what} {name!r}; there are {', '.join(known)}")
    pairs = table
    if workloads and drafters:
        pairs = tuple(product(workloads, drafters))
    elif workloads or drafters:
        pairs = tuple(pair for pair in table if pair[0] in workloads or pair[1] in drafters)
    if rates:
        return tuple(
            Configuration(workload, drafter, request_rate=rate) for (workload, drafter), rate in product(pairs, rates)
        )
    chosen_concurrencies = concurrencies or CONCURRENCIES
    return tuple(Configuration(workload, drafter, c) for (workload, drafter), c in product(pairs, chosen_concurrencies))


def variants_of(configuration: Configuration, policies: Sequence[str], *, quick: bool) -> tuple[Variant, ...]:
    """Who competes in a configuration: the policies asked for, or the table's own choice.

    `off` always competes, because ratios are to it; transformers' schedules serve one request at a time, so they
    compete at concurrency 1 with a drafter that is a model.

    Raises:
        UserError: two different variants would share a name in the results.
    """
    if policies:
        names = [OFF, *policies]
    elif quick:
        names = [*QUICK_POLICIES]
    else:
        names = [*FULL_POLICIES]
    if not policies and configuration == LONE_REQUEST:
        names += ORDER_OF_EMISSION[:1] if quick else (*ORDER_OF_EMISSION, *YARDSTICKS)
    variants = tuple(dict.fromkeys(Variant.parse(name) for name in names))
    check_names(variants)
    alone = configuration.concurrency == 1 and configuration.drafter != "n-gram"
    return tuple(variant for variant in variants if alone or not variant.is_transformers)


def check_names(variants: Sequence[Variant]) -> None:
    """Refuse competitors that the results could not tell apart.

    Raises:
        UserError: two different variants would share a name in the results.
    """
    named: dict[tuple[str, Emit | None], Variant] = {}
    for variant in variants:
        other = named.setdefault((variant.name, variant.emit), variant)
        if other != variant:
            raise UserError(
                f"{variant.policy!r} and {other.policy!r} would both be called {variant.name!r} in the results; "
                "rename one of the files"
            )
