from __future__ import annotations

import pytest

from turbospec import UserError
from turbospec.runtime.kernels import compiled
from turbospec_bench.ablation.substitution import Change, replaced, with_defaults, with_globals

FACTOR = 2.0


@compiled
def inner(value: float) -> float:
    return value * FACTOR


@compiled
def outer(value: float) -> float:
    return inner(value) + 1.0


def plain(value: float, /, addend: float = 1.0, *, factor: float = 3.0) -> float:
    return value * factor + addend


def test_compiled_functions_see_other_constants_at_any_depth() -> None:
    changed = with_globals(outer, inner=with_globals(inner, FACTOR=5.0))
    assert (outer(1.0), changed(1.0), outer(1.0)) == (3.0, 6.0, 3.0)


def test_defaults_change_by_position_and_by_keyword() -> None:
    changed = with_defaults(plain, addend=10.0, factor=0.5)
    assert (plain(2.0), changed(2.0), changed(2.0, factor=1.0)) == (7.0, 11.0, 12.0)


def test_parts_are_put_back_even_after_an_error() -> None:
    class Owner:
        value = 1
        other = 2

    def fail() -> None:
        with replaced((Change(Owner, "value", 3), Change(Owner, "value", 4))):
            assert Owner.value == 4
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (Owner.value, Owner.other) == (1, 2)


def test_a_part_that_the_product_no_longer_has_is_a_mistake_in_one_line() -> None:
    class Owner:
        pass

    with pytest.raises(UserError, match="Owner has no `gone` any more"), replaced((Change(Owner, "gone", 1),)):
        pass
    with pytest.raises(UserError, match="does not use GONE any more"):
        with_globals(outer, GONE=1)
    with pytest.raises(UserError, match="no parameter `gone`"):
        with_defaults(plain, gone=1)
