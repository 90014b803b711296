from __future__ import annotations

from turbospec_bench.policy_names import fixed_length


def test_a_fixed_length_is_known_by_its_exact_name() -> None:
    assert [fixed_length(name) for name in ("off", "static-1", "static-15")] == [0, 1, 15]
    assert {fixed_length(name) for name in ("off-hours", "static-mine", "static-", "static-3.5", "3", "adaptive")} == {
        None
    }
