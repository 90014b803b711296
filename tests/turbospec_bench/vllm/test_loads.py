from __future__ import annotations

import json
from pathlib import Path

import pytest

from turbospec import UserError
from turbospec_bench.configuration import Configuration
from turbospec_bench.texts import ANSWERED_PROMPT_TOKENS
from turbospec_bench.vllm.loads import LoadSource, VllmLoad, load_tokenizer, shape_of

CONFIGURATION = Configuration("text", "good", 8)


@pytest.fixture
def source(tiny: Path, tmp_path: Path) -> LoadSource:
    return LoadSource(tiny / "workloads", load_tokenizer(str(tiny / "models" / "target")), tmp_path, seed=3)


def option(load: VllmLoad, name: str) -> str:
    return load.arguments[load.arguments.index(name) + 1]


def requests(load: VllmLoad) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(option(load, "--dataset-path")).read_text().splitlines()]


def test_half_is_code_and_every_output_has_a_length_of_its_own(source: LoadSource) -> None:
    load = source.draw(CONFIGURATION, 0)
    drawn = requests(load)
    shape = shape_of(CONFIGURATION)

    assert len(drawn) == load.requests == int(option(load, "--num-prompts")) == shape.requests
    assert sum("c o d e" in str(request["prompt"]) for request in drawn) == shape.requests // 2
    lengths = [int(str(request["output_tokens"])) for request in drawn]
    assert shape.output_tokens * 3 // 4 <= min(lengths) < max(lengths) <= shape.output_tokens * 5 // 4
    assert option(load, "--custom-output-len") == "-1"
    assert option(load, "--max-concurrency") == option(load, "--num-warmups") == "8"


def test_a_larger_scale_is_more_requests() -> None:
    assert shape_of(CONFIGURATION, 3).requests == 3 * shape_of(CONFIGURATION).requests
    assert shape_of(CONFIGURATION, 3).output_tokens == shape_of(CONFIGURATION).output_tokens


def test_a_round_is_always_the_same_and_no_two_are(source: LoadSource) -> None:
    first, again, second, other = (
        requests(source.draw(configuration, number))
        for configuration, number in (
            (CONFIGURATION, 0),
            (CONFIGURATION, 0),
            (CONFIGURATION, 1),
            (Configuration("text", "good", 9), 0),
        )
    )

    assert first == again
    assert first != second
    assert first[:5] != other[:5]


def test_answered_prompts_are_whole_and_keep_their_end(tiny: Path, tmp_path: Path) -> None:
    short, long = "a = 1 " * 3, "b = 2 " * 100
    for kind in ("code", "prose", "edit"):
        lines = [json.dumps({"text": text, "answer": "an answer"}) for text in (short, long)]
        (tmp_path / f"{kind}.jsonl").write_text("\n".join(lines))
    tokenizer = load_tokenizer(str(tiny / "models" / "target"))
    source = LoadSource(tmp_path, tokenizer, tmp_path, seed=3, answered=["edit"])

    drawn = requests(source.draw(Configuration("edit", "eagle3", 8), 0))

    expected = {tokenizer.decode(tokenizer.encode(text)[-ANSWERED_PROMPT_TOKENS:]) for text in (short, long)}
    assert {request["prompt"] for request in drawn} == expected
    assert len(drawn) == shape_of(CONFIGURATION).requests


def test_random_requests_are_vllms_own(source: LoadSource) -> None:
    loads = [source.draw(Configuration("random", "good", 1), number) for number in (0, 0, 1)]

    assert option(loads[0], "--dataset-name") == "random"
    assert loads[0] == loads[1]
    assert option(loads[0], "--seed") != option(loads[2], "--seed")


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no target checkpoint .*; name the folder of the models with --models"):
        load_tokenizer(str(tmp_path))
