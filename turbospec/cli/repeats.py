"""`turbospec repeats`: fit what a look-up finds in recorded text, for the request classes of scenarios."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from turbospec.cli.console import stderr, stdout
from turbospec.errors import UserError
from turbospec.files.reading import read_text

WORDS = re.compile(r" ?[^\W\d_]+| ?\d{1,3}| ?_+| ?[^\w\s]+|\s+")
"""Words with the space before them, numbers, punctuation and white space: roughly the tokens of a language model."""
HINT = "give JSON lines of prompts and answers"
PROMPT_FIELDS, OUTPUT_FIELDS = ("prompt", "text"), ("answer", "output")


def repeats(
    files: Annotated[
        list[Path],
        typer.Argument(help="JSON lines with a `prompt` or `text`, and its `answer` or `output`.", metavar="FILE..."),
    ],
    min_match: Annotated[
        int, typer.Option(min=1, max=1000, help="Tokens that match before the look-up finds something.")
    ] = 3,
    min_repeat: Annotated[
        int,
        typer.Option(min=2, max=1000, help="Tokens of the shortest repeat; shorter coincidences are false matches."),
    ] = 8,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Of a text without an answer: tokens that are its prompt.")
    ] = 128,
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json of the model; default: words, numbers and punctuation.")
    ] = None,
) -> None:
    """Fit a request class's `lookup` to prompts and outputs, and print it for a scenario file."""
    from turbospec_sim.repeats_fit import fitted, observe

    if min_repeat <= min_match:
        raise UserError(f"--min-repeat {min_repeat}: must be more than --min-match {min_match}")
    tokens_of = WORDS.findall if tokenizer is None else _tokenizer(tokenizer)
    texts = [text for file in files for text in _texts(file, tokens_of, prompt_tokens)]
    observed = observe(texts, min_match, min_repeat)
    block = fitted(observed, min_match, min_repeat).model_dump(mode="json", exclude_none=True)
    stderr.print(
        f"{observed.outputs:,} outputs of {observed.tokens:,} tokens: {observed.repeated_share:.0%} in "
        f"{len(observed.repeats.lengths):,} repeats; the look-up was tried at {observed.tried:,} other positions",
        soft_wrap=True,
    )
    stdout.print("lookup:", soft_wrap=True, highlight=False)
    for name, value in block.items():
        stdout.print(f"  {name}: {_yaml(value)}", soft_wrap=True, highlight=False)


def _texts(
    file: Path, tokens_of: Callable[[str], list[str]], prompt_tokens: int
) -> list[tuple[Sequence[str], Sequence[str]]]:
    """Tokens of the prompts and outputs of a file.

    Raises:
        UserError: the file cannot be read, or a line has no text.
    """
    from turbospec_sim.workload.files import parsed_lines

    texts: list[tuple[Sequence[str], Sequence[str]]] = []
    for line, value in parsed_lines(file, read_text(file, "file of texts", hint=HINT)):
        prompt, output = (_field(value, names) for names in (PROMPT_FIELDS, OUTPUT_FIELDS))
        if prompt is None:
            raise UserError(f"{file}:{line}: has no `prompt` or `text`; {HINT}")
        # An answer is a continuation: tokens do not cross its beginning.
        tokens = tokens_of(prompt)
        if output is None:
            texts.append((tokens[:prompt_tokens], tokens[prompt_tokens:]))
        else:
            texts.append((tokens, tokens_of(output)))
    if not any(output for _, output in texts):
        raise UserError(f"{file}: no output in it; give answers, or texts longer than --prompt-tokens")
    return texts


def _field(value: Any, names: Sequence[str]) -> str | None:
    fields = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    return next((fields[name] for name in names if isinstance(fields.get(name), str)), None)


def _tokenizer(file: Path) -> Callable[[str], list[str]]:
    """A model's tokenizer.

    Raises:
        UserError: the file cannot be read.
        ModuleNotFoundError: `tokenizers` is not installed.
    """
    from tokenizers import Tokenizer

    text = read_text(file, "tokenizer", hint="name a tokenizer.json")
    try:
        loaded: Any = Tokenizer.from_str(text)
    except Exception as error:  # the package raises nothing more precise
        raise UserError(f"--tokenizer {file}: cannot be read ({error}); name a tokenizer.json") from error
    return lambda text: loaded.encode(text, add_special_tokens=False).tokens


def _yaml(value: Any) -> str:
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        return "{" + ", ".join(f"{name}: {_yaml(each)}" for name, each in fields.items()) + "}"
    return value if isinstance(value, str) else json.dumps(value)
