from __future__ import annotations

import pytest

from turbospec import UserError
from turbospec_bench.configuration import Cell
from turbospec_bench.matrix import QUICK_TABLE, Entry, entries_of, select_cells


def test_the_whole_table_has_21_cells() -> None:
    cells = select_cells((), (), (), ())

    assert len(cells) == len(set(cells)) == 21
    assert set(QUICK_TABLE) <= set(cells)


def test_selection() -> None:
    assert [cell.name for cell in select_cells(["code"], [], [8], [])] == [
        "code/good/c8",
        "code/weak/c8",
        "code/mismatched/c8",
        "code/n-gram/c8",
    ]
    assert [cell.name for cell in select_cells(["prose"], ["weak"], [4], [])] == ["prose/weak/c4"]
    assert [cell.name for cell in select_cells(["code"], ["good"], [], [2.5])] == ["code/good/r2.5"]


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="no workload 'poetry'; there are code, prose, mixed, shift"):
        select_cells(["poetry"], [], [], [])


def test_off_always_competes_and_transformers_only_alone() -> None:
    alone, busy = Cell("code", "good", 1), Cell("code", "good", 8)

    assert entries_of(alone, ["static-15:after_draft", "off"], quick=False) == (
        Entry("off"),
        Entry("static-15", "after_draft"),
    )
    assert Entry("transformers-heuristic") in entries_of(alone, (), quick=False)
    assert entries_of(busy, ["transformers-off"], quick=False) == (Entry("off"),)


@pytest.mark.parametrize("policies", [["adaptive", "mine/adaptive.yaml"], ["mine/off.yaml"]])
def test_two_files_of_one_name_are_refused(policies: list[str]) -> None:
    name = Entry(policies[-1]).name
    with pytest.raises(UserError, match=f"would both be called '{name}' in the results; rename one"):
        entries_of(Cell("code", "good", 8), policies, quick=False)


def test_a_policy_may_compete_twice_with_different_orders_of_emission() -> None:
    entries = entries_of(Cell("code", "good", 8), ["adaptive", "adaptive", "adaptive:after_draft"], quick=False)

    assert entries == (Entry("off"), Entry("adaptive"), Entry("adaptive", "after_draft"))
