from __future__ import annotations

import pytest

from turbospec import UserError
from turbospec_bench.configuration import Configuration
from turbospec_bench.matrix import NAMED_PAIRS, QUICK_MATRIX, select_configurations, variants_of
from turbospec_bench.variant import Variant


def test_the_whole_table_has_21_configurations() -> None:
    configurations = select_configurations((), (), (), ())

    assert len(configurations) == len(set(configurations)) == 21
    assert set(QUICK_MATRIX) <= set(configurations)


def test_selection() -> None:
    assert [configuration.name for configuration in select_configurations(["code"], [], [8], [])] == [
        "code/good/c8",
        "code/weak/c8",
        "code/mismatched/c8",
        "code/n-gram/c8",
    ]
    assert [configuration.name for configuration in select_configurations(["prose"], ["weak"], [4], [])] == [
        "prose/weak/c4"
    ]
    assert [configuration.name for configuration in select_configurations(["code"], ["good"], [], [2.5])] == [
        "code/good/r2.5"
    ]
    # A results file has six digits.
    same = select_configurations(["code"], ["good"], [], [0.33333334, 0.33333331])
    assert [configuration.request_rate for configuration in same] == [0.333333]


def test_a_pair_that_the_table_lacks_is_selected_by_its_drafter_alone() -> None:
    def selected(workloads: list[str], drafters: list[str]) -> list[str]:
        chosen = select_configurations(workloads, drafters, [1], [], named=NAMED_PAIRS)
        return [configuration.name for configuration in chosen]

    assert selected([], ["eagle3"]) == ["code/eagle3/c1"]
    assert selected([], ["peagle", "dflash"]) == ["code/peagle/c1", "code/dflash/c1"]
    assert selected(["prose"], ["eagle3"]) == ["prose/eagle3/c1"]
    assert "code/eagle3/c1" not in selected(["code"], []) + selected([], [])


def test_a_pair_that_the_table_lacks_is_selected_by_its_workload_alone() -> None:
    def selected(workloads: list[str], drafters: list[str]) -> list[str]:
        chosen = select_configurations(workloads, drafters, [1], [], named=NAMED_PAIRS)
        return [configuration.name for configuration in chosen]

    assert selected(["edit"], []) == ["edit/good/c1", "edit/n-gram/c1"]
    assert selected(["records", "prose"], []) == ["prose/good/c1", "records/good/c1", "records/n-gram/c1"]
    assert selected(["records"], ["weak"]) == ["records/weak/c1"]
    assert selected([], ["n-gram"]) == ["code/n-gram/c1"]


@pytest.mark.parametrize("drafter", ["eagle3", "peagle", "dflash"])
def test_transformers_does_not_take_a_head(drafter: str) -> None:
    configuration = Configuration("code", drafter, 1)
    assert variants_of(configuration, ["transformers-off", "static-3"], quick=False) == (
        Variant("off"),
        Variant("static-3"),
    )


def test_transformers_is_not_compared_where_answers_are_forced() -> None:
    variants = variants_of(Configuration("edit", "good", 1), ["transformers-off", "static-3"], quick=False)
    assert variants == (Variant("off"), Variant("static-3"))


def test_what_is_named_twice_is_selected_once() -> None:
    """Its rounds would be played twice with the same loads, and count as twice as many."""
    chosen = select_configurations(["code", "code"], ["good"], [8, 8])
    assert [configuration.name for configuration in chosen] == ["code/good/c8"]


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="no workload 'poetry'; there are code, prose, mixed, shift"):
        select_configurations(["poetry"], [], [], [])


def test_transformers_is_not_compared_where_tokens_are_restricted() -> None:
    variants = variants_of(Configuration("mixed", "good", 1), ["transformers-off"], quick=False)
    assert variants == (Variant("off"),)


def test_off_always_competes_and_transformers_only_alone() -> None:
    alone, busy = Configuration("code", "good", 1), Configuration("code", "good", 8)

    assert variants_of(alone, ["static-15:after_draft", "off"], quick=False) == (
        Variant("off"),
        Variant("static-15", "after_draft"),
    )
    assert Variant("transformers-heuristic", emit=None) in variants_of(alone, (), quick=False)
    assert variants_of(busy, ["transformers-off"], quick=False) == (Variant("off"),)


def test_transformers_has_no_order_of_emission() -> None:
    assert Variant.parse("transformers-off").emit is None
    # No schedule has this name, which is told when it is looked up.
    assert Variant.parse("transformers-off:after_draft").policy == "transformers-off:after_draft"


@pytest.mark.parametrize("policies", [["adaptive", "mine/adaptive.yaml"], ["mine/off.yaml"]])
def test_two_files_of_one_name_are_refused(policies: list[str]) -> None:
    name = Variant(policies[-1]).name
    with pytest.raises(UserError, match=f"would both be called '{name}' in the results; rename one"):
        variants_of(Configuration("code", "good", 8), policies, quick=False)


def test_a_policy_may_compete_twice_with_different_orders_of_emission() -> None:
    variants = variants_of(
        Configuration("code", "good", 8), ["adaptive", "adaptive", "adaptive:after_draft"], quick=False
    )

    assert variants == (Variant("off"), Variant("adaptive"), Variant("adaptive", "after_draft"))
