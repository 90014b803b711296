from __future__ import annotations

import json

import pytest

from turbospec_bench.configuration import Configuration, by_configuration

FIXED, POISSON = Configuration("code", "good", concurrency=8), Configuration("prose", "n-gram", request_rate=2.5)


@pytest.mark.parametrize(("configuration", "name"), [(FIXED, "code/good/c8"), (POISSON, "prose/n-gram/r2.5")])
def test_a_row_names_its_configuration_and_a_configuration_has_a_name(configuration: Configuration, name: str) -> None:
    assert Configuration.of(json.loads(json.dumps(configuration.fields))) == configuration
    assert configuration.name == name


def test_the_fields_are_those_of_the_results_file() -> None:
    assert FIXED.fields == {"workload": "code", "drafter": "good", "concurrency": 8, "request_rate": "inf"}
    assert POISSON.fields["concurrency"] is None


def test_rows_of_a_configuration_come_together_in_order() -> None:
    rows = [configuration.fields | {"place": place} for place, configuration in enumerate((POISSON, FIXED, POISSON))]

    assert [[row["place"] for row in own] for own in by_configuration(rows).values()] == [[0, 2], [1]]
    assert list(by_configuration(rows)) == [POISSON, FIXED]
