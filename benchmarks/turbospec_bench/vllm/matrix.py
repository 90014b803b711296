"""The benchmark's matrix in vLLM: its configurations, and the policies that are compared in each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from turbospec.errors import UserError
from turbospec.policy import find_policy, read_policy
from turbospec_bench.configuration import Configuration
from turbospec_bench.matrix import Pairings
from turbospec_bench.policy_names import ADAPTIVE, OFF, STATIC_PREFIX, fixed_length, number_after
from turbospec_bench.texts import ANSWERED_KINDS
from turbospec_bench.variant import LOOKUP_SUFFIX, Variant, check_names
from turbospec_bench.vllm.speculation import DRAFTERS, NGRAM, ONE_PASS

TEXT, RANDOM = "text", "random"
PAIRS: Pairings = (*((TEXT, drafter) for drafter in DRAFTERS if drafter not in ONE_PASS), (RANDOM, "good"))
NAMED_PAIRS: Pairings = (*product((TEXT,), ONE_PASS), *product(ANSWERED_KINDS, ("eagle3", NGRAM)))
"""Measured only where their name that the full table lacks is chosen."""

STATIC_LENGTHS = (1, 3, 5, 15)
BATCH_TABLE = "vllm-table"
"""vLLM's own table of draft lengths by batch size."""
OWN_LOOKUP_PREFIX = "ngram-"
"""`ngram-K` is vLLM's own look-up in place of the drafter, K tokens in every step."""
POLICIES = (*(f"{STATIC_PREFIX}{length}" for length in STATIC_LENGTHS), BATCH_TABLE, ADAPTIVE)


def variants_of(policies: Sequence[str]) -> tuple[Variant, ...]:
    """What every configuration compares: the policies asked for, or the matrix's own choice; `off` always.

    `off`, `static-K`, `ngram-K` and `vllm-table` are vLLM without TurboSpec; every other name is a policy of
    TurboSpec's in vLLM, `NAME+ngram` with a look-up beside the drafter.

    Raises:
        UserError: a policy's file is missing or wrong, a look-up is asked for where there is no TurboSpec, or two
            policies would share a name in the results.
    """
    variants = tuple(_variant(name) for name in dict.fromkeys((OFF, *(policies or POLICIES))))
    for variant in variants:
        if own_length(variant.policy) == 0 and variant.policy != OFF:
            raise UserError(f"{variant.policy!r} drafts nothing; that is `off`, which is always compared")
        if is_turbospec(variant):
            read_policy(find_policy(variant.policy))
        elif variant.lookup:
            raise UserError(f"{variant.name!r}: only policies of TurboSpec draft from a look-up and the drafter")
    check_names(with_tuning(variants))
    return variants


def _variant(name: str) -> Variant:
    policy = name.removesuffix(LOOKUP_SUFFIX)
    return Variant(policy, emit=None, lookup=policy != name)


def check_lookups(configurations: Sequence[Configuration], variants: Sequence[Variant]) -> None:
    """Refuse a look-up beside a look-up, or in place of one.

    Raises:
        UserError: there is one.
    """
    if all(configuration.drafter != NGRAM for configuration in configurations):
        return
    for variant in variants:
        if variant.lookup or own_lookup_length(variant.policy) is not None:
            raise UserError(f"{variant.name!r} is for drafters other than {NGRAM}; choose them with --drafter")


def is_turbospec(variant: Variant) -> bool:
    return variant.policy != BATCH_TABLE and own_length(variant.policy) is None


def own_length(policy: str) -> int | None:
    """K of vLLM's own `static-K` or `ngram-K`, 0 of `off`; None of any other name."""
    length = fixed_length(policy)
    return own_lookup_length(policy) if length is None else length


def own_lookup_length(policy: str) -> int | None:
    """K of `ngram-K`; None of any other name."""
    return number_after(OWN_LOOKUP_PREFIX, policy)


def with_tuning(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """The variants, and where vLLM's table is among them, the fixed Ks from which the table is tuned."""
    tuning = [f"{STATIC_PREFIX}{length}" for length in STATIC_LENGTHS]
    wanted = tuning if any(variant.policy == BATCH_TABLE for variant in variants) else []
    return tuple(dict.fromkeys((*variants, *(Variant(name, emit=None) for name in wanted))))
