"""What is measured in vLLM: the cells of the table and who competes."""

from __future__ import annotations

from collections.abc import Sequence

from turbospec.errors import UserError
from turbospec.policy import find_policy, read_policy
from turbospec_bench.matrix import ADAPTIVE, Entry, Pairings, check_names
from turbospec_bench.policy_names import OFF, STATIC_PREFIX, fixed_length
from turbospec_bench.vllm.speculation import DRAFTERS

TEXT, RANDOM = "text", "random"
PAIRS: Pairings = (*((TEXT, drafter) for drafter in DRAFTERS), (RANDOM, "good"))

STATIC_LENGTHS = (1, 3, 5, 15)
BATCH_TABLE = "vllm-table"
"""vLLM's own table of draft lengths by batch size."""
POLICIES = (*(f"{STATIC_PREFIX}{length}" for length in STATIC_LENGTHS), BATCH_TABLE, ADAPTIVE)


def entries_of(policies: Sequence[str]) -> tuple[Entry, ...]:
    """Who competes: the policies asked for, or the table's own choice; `off` always.

    `off`, `static-K` and `vllm-table` are vLLM without TurboSpec; every other name is a policy of TurboSpec's in vLLM.

    Raises:
        UserError: a policy's file is missing or wrong, or two would share a name in the results.
    """
    entries = tuple(Entry(name, emit=None) for name in dict.fromkeys((OFF, *(policies or POLICIES))))
    for entry in entries:
        if fixed_length(entry.policy) == 0 and entry.policy != OFF:
            raise UserError(f"{entry.policy!r} drafts nothing; that is `off`, which always competes")
        if is_turbospec(entry):
            read_policy(find_policy(entry.policy))
    check_names(with_tuning(entries))
    return entries


def is_turbospec(entry: Entry) -> bool:
    return entry.policy != BATCH_TABLE and fixed_length(entry.policy) is None


def with_tuning(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The competitors, and the fixed Ks from which the table is chosen where the table is among them."""
    tuning = [f"{STATIC_PREFIX}{length}" for length in STATIC_LENGTHS]
    wanted = tuning if any(entry.policy == BATCH_TABLE for entry in entries) else []
    return tuple(dict.fromkeys((*entries, *(Entry(name, emit=None) for name in wanted))))
