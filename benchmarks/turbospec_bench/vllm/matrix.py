"""The benchmark's matrix in vLLM: its configurations, and the policies that are compared in each."""

from __future__ import annotations

from collections.abc import Sequence

from turbospec.errors import UserError
from turbospec.policy import find_policy, read_policy
from turbospec_bench.matrix import Pairings
from turbospec_bench.policy_names import ADAPTIVE, OFF, STATIC_PREFIX, fixed_length
from turbospec_bench.variant import Variant, check_names
from turbospec_bench.vllm.speculation import DRAFTERS, ONE_PASS

TEXT, RANDOM = "text", "random"
PAIRS: Pairings = (*((TEXT, drafter) for drafter in DRAFTERS if drafter not in ONE_PASS), (RANDOM, "good"))
NAMED_PAIRS: Pairings = tuple((TEXT, drafter) for drafter in ONE_PASS)
"""Measured only where their drafter is chosen."""

STATIC_LENGTHS = (1, 3, 5, 15)
BATCH_TABLE = "vllm-table"
"""vLLM's own table of draft lengths by batch size."""
POLICIES = (*(f"{STATIC_PREFIX}{length}" for length in STATIC_LENGTHS), BATCH_TABLE, ADAPTIVE)


def variants_of(policies: Sequence[str]) -> tuple[Variant, ...]:
    """What every configuration compares: the policies asked for, or the matrix's own choice; `off` always.

    `off`, `static-K` and `vllm-table` are vLLM without TurboSpec; every other name is a policy of TurboSpec's in vLLM.

    Raises:
        UserError: a policy's file is missing or wrong, or two would share a name in the results.
    """
    variants = tuple(Variant(name, emit=None) for name in dict.fromkeys((OFF, *(policies or POLICIES))))
    for variant in variants:
        if fixed_length(variant.policy) == 0 and variant.policy != OFF:
            raise UserError(f"{variant.policy!r} drafts nothing; that is `off`, which is always compared")
        if is_turbospec(variant):
            read_policy(find_policy(variant.policy))
    check_names(with_tuning(variants))
    return variants


def is_turbospec(variant: Variant) -> bool:
    return variant.policy != BATCH_TABLE and fixed_length(variant.policy) is None


def with_tuning(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """The variants, and where vLLM's table is among them, the fixed Ks from which the table is tuned."""
    tuning = [f"{STATIC_PREFIX}{length}" for length in STATIC_LENGTHS]
    wanted = tuning if any(variant.policy == BATCH_TABLE for variant in variants) else []
    return tuple(dict.fromkeys((*variants, *(Variant(name, emit=None) for name in wanted))))
