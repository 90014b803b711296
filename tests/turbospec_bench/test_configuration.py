from __future__ import annotations

import json

import pytest

from turbospec_bench.configuration import Cell, by_cell

FIXED, POISSON = Cell("code", "good", concurrency=8), Cell("prose", "n-gram", request_rate=2.5)


@pytest.mark.parametrize(("cell", "name"), [(FIXED, "code/good/c8"), (POISSON, "prose/n-gram/r2.5")])
def test_a_row_names_its_cell_and_a_cell_has_a_name(cell: Cell, name: str) -> None:
    assert Cell.of(json.loads(json.dumps(cell.fields))) == cell
    assert cell.name == name


def test_the_fields_are_those_of_the_results_file() -> None:
    assert FIXED.fields == {"workload": "code", "drafter": "good", "concurrency": 8, "request_rate": "inf"}
    assert POISSON.fields["concurrency"] is None


def test_rows_of_a_cell_come_together_in_order() -> None:
    rows = [cell.fields | {"place": place} for place, cell in enumerate((POISSON, FIXED, POISSON))]

    assert [[row["place"] for row in own] for own in by_cell(rows).values()] == [[0, 2], [1]]
    assert list(by_cell(rows)) == [POISSON, FIXED]
