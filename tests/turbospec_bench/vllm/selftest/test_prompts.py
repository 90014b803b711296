from __future__ import annotations

from pathlib import Path

import pytest

from turbospec.errors import UserError
from turbospec_bench.vllm.selftest.prompts import prompt_texts


def test_built_in_prompts_differ_as_far_as_there_are_any() -> None:
    assert len(set(prompt_texts(50, []))) == 50
    assert len(prompt_texts(200, [])) == 200


def test_prompts_are_the_beginnings_of_texts(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('{"text": "abcdef"}\n\n{"text": "xy"}\n')
    assert prompt_texts(3, [file], characters=4) == ["abcd", "xy", "abcd"]


@pytest.mark.parametrize("content", ["", "{", '{"other": 1}', "[1]", '{"text": 3}', '{"text": ""}'])
def test_a_file_without_texts_is_one_line(content: str, tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text(content)
    with pytest.raises(UserError, match=r"texts\.jsonl"):
        prompt_texts(1, [file])
    with pytest.raises(UserError, match="no such workload file"):
        prompt_texts(1, [tmp_path / "none"])
