"""The corpus split is a deterministic function of the file name, and workloads stay on the held-out side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from training.corpus import Document, prose_in, split_of, without_doctests
from training.workloads import excerpts_of

ROOT = Path(__file__).resolve().parents[2]


def test_split_is_deterministic_and_holds_out_about_four_percent() -> None:
    names = [f"package:module_{number}.py" for number in range(5000)]
    first = [split_of(name) for name in names]
    assert first == [split_of(name) for name in names]
    assert 0.03 < first.count("heldout") / len(names) < 0.05
    assert split_of("stdlib:queue.py") == Document("stdlib:queue.py", "code", "").split


@pytest.mark.parametrize("kind", ["code", "prose"])
def test_workloads_come_from_held_out_files(kind: str) -> None:
    records = [json.loads(line) for line in (ROOT / "workloads" / f"{kind}.jsonl").read_text("utf-8").splitlines()]
    assert len(records) >= 300
    assert len({record["id"] for record in records}) == len(records)
    assert len({record["text"] for record in records}) == len(records)
    for record in records:
        assert split_of(record["source"]) == "heldout"
        assert 1000 <= len(record["text"]) <= 2500


def test_workloads_are_small() -> None:
    assert sum(path.stat().st_size for path in (ROOT / "workloads").glob("*.jsonl")) < 1_750_000


def test_code_excerpts_start_at_a_definition_and_do_not_repeat_known_lines() -> None:
    body = "".join(f"    value_{number} = compute(value_{number - 1}, {number})\n" for number in range(1, 40))
    text = "import this\n\n\ndef long_function(value_0):\n" + body
    (excerpt,) = excerpts_of("package:module.py", text, "code", known=set())
    assert excerpt.text.startswith("def long_function")
    assert excerpt.text.endswith("\n")


def test_prose_is_taken_from_long_strings_without_doctests() -> None:
    sentence = "A sentence about the behaviour of this function. "
    (text,) = prose_in(f'def f():\n    """{sentence * 8}\n\n    >>> f()\n    1\n\n    {sentence}\n    """\n')
    assert ">>>" not in text
    assert text.count("sentence") == 9
    assert without_doctests("a\n>>> b\nc\n\nd") == "a\n\nd\n"
