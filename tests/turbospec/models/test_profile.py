"""Profile files: what is written is read again; what cannot be read is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.turbospec.factories import make_outcome, make_view
from turbospec.errors import UserError
from turbospec.models.profile import LatencySample, Profile


def a_profile(**meta: object) -> Profile:
    return Profile.from_outcomes([make_outcome(make_view(2), 3, 1)], **meta)


def test_a_sample_is_the_latency_part_of_an_outcome() -> None:
    (sample,) = a_profile().samples
    assert sample == LatencySample(
        draft_rows=(2, 2, 2),
        draft_context_tokens=600,
        catch_up_tokens=0,
        tokens_batched=8,
        prefill_tokens=0,
        context_tokens=200,
        draft_seconds=0.002,
        verify_seconds=0.007,
        step_seconds=0.010,
        requests=2,
    )


def test_steps_that_were_not_timed_are_left_out() -> None:
    view = make_view(2)
    outcomes = [make_outcome(view, 3, 1, step_seconds=seconds) for seconds in (0.0, 0.010)]
    assert [sample.step_seconds for sample in Profile.from_outcomes(outcomes).samples] == [0.010]


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new" / "profile.json"
    profile = a_profile(dtype="float32", date="today")
    profile.save(path)
    assert Profile.load(path) == profile


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "no such profile"),
        ("{", "not a profile"),
        ("[]", "not a profile (document"),
        ("[" * 10**5, "nested"),
        ('{"format": 2, "meta": {}, "samples": []}', "not a profile (format"),
        ('{"format": 1, "meta": {}, "samples": [{"draft_rows": [1]}]}', "not a profile (samples.0"),
    ],
)
def test_a_file_that_is_no_profile_is_named_with_the_fix(tmp_path: Path, content: str | None, named: str) -> None:
    path = tmp_path / "profile.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError) as error:
        Profile.load(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert named in message
    assert "make one with `turbospec profile`" in message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step_seconds", "NaN"),
        ("step_seconds", "1e999"),
        ("step_seconds", "0"),
        ("verify_seconds", "-0.001"),
        ("verify_seconds", "1e300"),
        ("draft_seconds", '"fast"'),
        ("tokens_batched", "0"),
        ("context_tokens", "1e15"),
        ("catch_up_tokens", "1" + "0" * 400),
        ("draft_rows", "[-1]"),
        ("draft_rows", json.dumps([1] * 10**5)),
    ],
)
def test_a_sample_that_cannot_be_fitted_is_refused(tmp_path: Path, field: str, value: str) -> None:
    path = tmp_path / "profile.json"
    a_profile().save(path)
    document = json.loads(path.read_text())
    document["samples"][0][field] = "here"
    path.write_text(json.dumps(document).replace('"here"', value))
    with pytest.raises(UserError) as error:
        Profile.load(path)
    assert str(error.value).startswith(f"{path}: not a profile (")


@pytest.mark.parametrize("meta", [[], {"target": "a\0b"}, {"drafter": {}}, {"dtype": []}, {"graph_sizes": "many"}])
def test_meta_that_is_read_has_its_types(tmp_path: Path, meta: object) -> None:
    path = tmp_path / "profile.json"
    a_profile().save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"meta": meta}))
    with pytest.raises(UserError, match=r"not a profile \(meta"):
        Profile.load(path)


def test_no_samples_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    Profile([]).save(path)
    with pytest.raises(UserError, match="samples"):
        Profile.load(path)


def test_differences_name_the_conditions_that_both_sides_state() -> None:
    measured = a_profile(dtype="float32", device="cpu", threads=2, date="yesterday", target="models/../models/target")
    assert measured.differences({"dtype": "bfloat16", "device": "cpu", "top_p": 0.9, "date": "today"}) == [
        "dtype float32, not bfloat16"
    ]
    assert measured.differences({"target": "models/target"}) == []
