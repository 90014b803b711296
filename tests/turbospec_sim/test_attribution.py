from __future__ import annotations

import pytest

from turbospec_sim.attribution import shapley, subsets


def test_shares_of_independent_parts_are_their_own() -> None:
    worth = {"a": 1.0, "b": 2.0, "c": -0.5}
    values = {way: 3.0 + sum(worth[part] for part in way) for way in subsets(list(worth))}
    assert shapley(list(worth), values) == pytest.approx(worth)


def test_what_only_works_together_is_shared_and_all_adds_up() -> None:
    values = {way: float({"a", "b"} <= way) for way in subsets(["a", "b", "c"])}
    assert len(values) == 8
    assert shapley(["a", "b", "c"], values) == pytest.approx({"a": 0.5, "b": 0.5, "c": 0.0})
