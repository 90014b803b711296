from __future__ import annotations

import pytest

from turbospec import UserError
from turbospec.policy import PolicyConfig, find_policy, read_policy
from turbospec_sim.tuning.space import Dimension, search_space


def adaptive() -> PolicyConfig:
    return read_policy(find_policy("adaptive"))


def test_without_a_choice_what_the_schema_bounds_is_searched() -> None:
    (share,) = search_space(adaptive(), [])
    assert share == Dimension("probe_share", 0.0, 0.2, log=False, whole=False)
    goodput = search_space(read_policy(find_policy("goodput")), [])
    assert [one.field for one in goodput] == ["initial_acceptance", "acceptance_weight"]
    discount = next(one for one in search_space(read_policy(find_policy("bandit")), []) if one.field == "discount")
    assert (discount.low, discount.high) == (0.001, 1.0), "it may be 1, and not 0"


def test_choices_are_read() -> None:
    texts = ["first_token_weight=0.5:64:log", "max_draft=1:5"]
    weight, longest = search_space(adaptive(), texts)
    assert weight == Dimension("first_token_weight", 0.5, 64.0, log=True, whole=False)
    assert longest == Dimension("max_draft", 1.0, 5.0, log=False, whole=True)


def test_places_and_values_go_together() -> None:
    weight = Dimension("w", 1.0, 100.0, log=True, whole=False)
    assert [weight.value(place) for place in (0.0, 0.5, 1.0)] == [1.0, 10.0, 100.0]
    assert weight.place(10.0) == pytest.approx(0.5)
    assert weight.place(1000.0) == 1.0
    assert weight.value(0.123456) == float(f"{100**0.123456:.4g}")
    number = Dimension("n", 1, 4, log=False, whole=True)
    values = [number.value((i + 0.5) / 400) for i in range(400)]
    assert [values.count(n) for n in (1, 2, 3, 4)] == [100] * 4
    assert {type(value) for value in values} == {int}
    assert [number.value(number.place(n)) for n in (1, 2, 3, 4)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("probe_share", "write field=low:high"),
        ("probe_share=0:0.1:lg", "write field=low:high"),
        ("prob_share=0:0.1", "did you mean `probe_share`?"),
        ("probe_share=a:b", "bounds are numbers"),
        ("probe_share=0.1:0.05", "must be below"),
        ("probe_share=0:0.1:log", "above 0"),
        ("probe_share=0:0.5", "as high as 0.5"),
        ("probe_share=-1:0.1", "as low as -1"),
        ("tpot_slo_ms=0:50", "as low as 0"),
        ("max_draft=1:2.5", "is an integer"),
        ("probe_share=0:nan", "must be below"),
    ],
)
def test_mistakes_are_named(text: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        search_space(adaptive(), [text])
    assert str(error.value).startswith(f"--search {text}: ")
    assert words in str(error.value)


def test_a_field_is_searched_once() -> None:
    with pytest.raises(UserError, match="twice"):
        search_space(adaptive(), ["probe_share=0:0.1", "probe_share=0:0.2"])


def test_policies_without_bounds_need_a_choice() -> None:
    with pytest.raises(UserError, match=r"known: draft_length\)"):
        search_space(read_policy(find_policy("static-3")), [])
    with pytest.raises(UserError, match="nothing to tune"):
        search_space(read_policy(find_policy("off")), [])
