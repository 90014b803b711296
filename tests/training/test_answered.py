"""Workloads whose answers repeat their prompts: the same on every build, held out, of the right lengths, repetitive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest
from tokenizers import Tokenizer

from training import edits, listings
from training.answered import ANSWER_TOKENS, PROMPT_TOKENS, Cutter, edit_records, listing_records
from training.corpus import is_read, split_of

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("edit", "records")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(ROOT / "models" / "target" / "tokenizer.json"))


def records_of(kind: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / "workloads" / f"{kind}.jsonl").read_text("utf-8").splitlines()]


def repeated_share(prompt: list[int], answer: list[int]) -> float:
    """Share of the answer's 4-grams that occur in the prompt."""

    def grams(tokens: list[int]) -> Iterator[tuple[int, ...]]:
        return (tuple(tokens[start : start + 4]) for start in range(len(tokens) - 3))

    known, asked = set(grams(prompt)), list(grams(answer))
    return sum(gram in known for gram in asked) / len(asked)


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_distinct_and_fit_the_benchmark(kind: str, tokenizer: Tokenizer) -> None:
    records = records_of(kind)
    assert 200 <= len(records) <= 300
    assert len({record["id"] for record in records}) == len({record["text"] for record in records}) == len(records)
    assert [record["id"] for record in records] == sorted(record["id"] for record in records)
    for record in records:
        prompt, answer = (len(tokenizer.encode(record[key]).ids) for key in ("text", "answer"))
        assert PROMPT_TOKENS[0] <= prompt <= PROMPT_TOKENS[1]
        assert ANSWER_TOKENS <= answer < 2 * ANSWER_TOKENS


@pytest.mark.parametrize("kind", KINDS)
def test_records_come_from_files_that_no_model_was_trained_on(kind: str) -> None:
    for record in records_of(kind):
        path = PurePath(record["source"].partition(":")[2])
        assert split_of(record["source"]) == "heldout" or not is_read(path)


def test_answers_repeat_their_prompts_where_continued_code_does_not(tokenizer: Tokenizer) -> None:
    shares = {
        kind: [
            repeated_share(tokenizer.encode(record["text"]).ids, tokenizer.encode(record["answer"]).ids)
            for record in records_of(kind)
        ]
        for kind in KINDS
    }
    code = [tokenizer.encode(record["text"]).ids for record in records_of("code")]
    shares["code"] = [repeated_share(ids[:200], ids[200:290]) for ids in code if len(ids) >= 290]
    mean = {kind: sum(values) / len(values) for kind, values in shares.items()}
    assert mean["edit"] > 0.7
    assert mean["records"] > 0.4
    assert mean["code"] < 0.25


def test_edits_are_rebuilt_from_the_code_records(tokenizer: Tokenizer) -> None:
    excerpts = [(record["source"], record["text"]) for record in records_of("code")]
    assert [vars(record) for record in edit_records(excerpts, Cutter(tokenizer))] == records_of("edit")


def test_a_listing_is_cut_into_pieces_that_do_not_overlap(tokenizer: Tokenizer) -> None:
    lines = tuple(f"row {number}: the value of column {number} is {number * 7}" for number in range(200))
    records = listing_records([listings.Listing("package:table.txt", lines, most=3)], Cutter(tokenizer))
    assert len(records) == 3
    pieces = sorted(((record.text + record.answer).split("\n") for record in records), key=lambda piece: piece[0])
    used = [line for piece in pieces for line in piece]
    assert len(used) == len(set(used))
    assert set(used) <= set(lines)


def test_an_edit_renames_one_identifier_throughout() -> None:
    lines = ["def total(amount):", "    amount = amount + 1", "    print(amount)", "    return amount"]
    changed = edits.changed(lines, 2, "package:module.py")
    assert changed is not None
    assert len(changed) in (len(lines), len(lines) - 1)
    assert all(("amount" in line) is ("amount" in was) for line, was in zip(changed[:2], lines, strict=False))
    assert changed[:2] != lines[:2]
    assert edits.changed(lines, 2, "package:module.py") == changed
    assert edits.changed(["return self"], 1, "package:module.py") is None


def test_listings_are_read_from_the_formats_of_their_files() -> None:
    table = "    '\\x7f'     #  0x7F -> DELETE\n    '\\u2500'   #  0x80 -> BOX DRAWINGS LIGHT HORIZONTAL\n"
    assert listings.table_rows(table) == ["'\\u2500'   #  0x80 -> BOX DRAWINGS LIGHT HORIZONTAL"]

    cases = "-- a comment\nacos0000 acos 0.0 -0.0 -> 1.57 0.0 ignore-real-sign\n"
    assert [json.loads(line) for line in listings.json_lines(cases)] == [
        {
            "id": "acos0000",
            "function": "acos",
            "arguments": ["0.0", "-0.0"],
            "expected": ["1.57", "0.0", "ignore-real-sign"],
        }
    ]

    log = (
        "2001-07-20 11:35  elguavas\n\n\t* README.txt,\n\tNEWS.txt: bring up to date\n\n"
        "Thu Apr 22 23:20:17 1999  Guido van Rossum  <guido@example.org>\n\n\t* help.txt: Bump version.\n"
    )
    assert listings.log_lines(log) == [
        "2001-07-20 11:35 elguavas README.txt: bring up to date",
        "2001-07-20 11:35 elguavas NEWS.txt: bring up to date",
        "1999-04-22 23:20 guido help.txt: Bump version.",
    ]
