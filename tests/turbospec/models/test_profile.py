"""Profile files: what is written is read again; what cannot be read is named."""

from __future__ import annotations

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
    )


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new" / "profile.json"
    profile = a_profile(dtype="float32", date="today")
    profile.save(path)
    assert Profile.load(path) == profile


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "cannot read it"),
        ("{", "not a profile (document"),
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


def test_differences_name_the_conditions_that_both_sides_state() -> None:
    measured = a_profile(dtype="float32", device="cpu", threads=2, date="yesterday", target="models/../models/target")
    assert measured.differences({"dtype": "bfloat16", "device": "cpu", "top_p": 0.9, "date": "today"}) == [
        "dtype float32, not bfloat16"
    ]
    assert measured.differences({"target": "models/target"}) == []
