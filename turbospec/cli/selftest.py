"""`turbospec selftest vllm`: does TurboSpec work with this vLLM, model and machine, and does it pay?"""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from turbospec.cli.console import stderr, stdout, table
from turbospec.cli.vllm_runs import installed_vllm
from turbospec.errors import UserError
from turbospec.files.reading import parse_json
from turbospec.files.results_file import keep_earlier
from turbospec.files.writing import check_outputs, write_whole
from turbospec.interface import MAX_DRAFT_LENGTH

if TYPE_CHECKING:
    from turbospec_bench.vllm.selftest.session import SelfTest, Settings

TARGET, DRAFTER = Path("models/target"), Path("models/eagle3")
TEXTS = (Path("workloads/code.jsonl"), Path("workloads/prose.jsonl"))
"""The repository's own models and texts, used where no model is named."""
PAIR_ENGINE = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 64, "kv_cache_memory_bytes": 2**30}
CHECK_FAILED = 1
"""Exit status where a check failed; a user's mistake is 2."""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback()
def selftest() -> None:
    """Test TurboSpec on your machine, in the engine that you use."""


@app.command("vllm")
def selftest_vllm(
    model: Annotated[
        str | None, typer.Option(help="Target model, as for vllm serve. Default: the repository's pair.")
    ] = None,
    speculative_config: Annotated[
        str | None, typer.Option(help="vLLM's --speculative-config, as JSON. Needed with --model.")
    ] = None,
    engine_args: Annotated[
        str, typer.Option(help='Further arguments of vllm.LLM, as JSON: {"tensor_parallel_size": 2}.')
    ] = "{}",
    prompts: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Prompts. Default 64; 24 with --quick.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, max=100_000, help="Output tokens of each prompt.")] = 64,
    concurrency: Annotated[int, typer.Option(min=1, max=10_000, help="Requests in flight.")] = 8,
    rounds: Annotated[int | None, typer.Option(min=1, max=1000, help="Rounds. Default 3; 1 with --quick.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer prompts, one round, fewer fixed lengths.")] = False,
    json: Annotated[
        Path | None, typer.Option(help="Results file. Default: turbospec-selftest-DATE.json in this folder.")
    ] = None,
) -> None:
    """Compare outputs with and without TurboSpec, count drafter passes, and measure it against vLLM alone.

    Run it in vLLM's environment. One vLLM runs at a time: without speculation, with draft lengths drawn at random for
    every step and request (sync and async scheduling), then no speculation, vLLM's fixed draft lengths, its table, its
    adaptive verification and TurboSpec in turns. The results file can be attached to an issue; the logs of every vLLM
    are in a folder beside it. Exit code 1 says that a check failed.
    """
    from turbospec_bench.vllm.selftest.job import Vllms
    from turbospec_bench.vllm.selftest.session import SelfTest

    settings = _settings(
        model,
        speculative_config,
        _json_object("--engine-args", engine_args),
        prompts or (24 if quick else 64),
        max_tokens,
        concurrency,
        rounds or (1 if quick else 3),
        quick=quick,
    )
    path = json or Path(f"turbospec-selftest-{datetime.now():%Y%m%d-%H%M%S}.json")
    check_outputs(path)
    logs = path.with_name(f"{path.stem}-logs")
    check_outputs(logs / "reference.log")
    keep_earlier(path)
    stderr.print(f"vLLM {installed_vllm()}: {settings.engine['model']}")
    began = time.monotonic()

    def say(line: str) -> None:
        stderr.print(f"{time.monotonic() - began:5.0f} s  {line}")

    test = SelfTest(
        settings,
        Vllms(logs),
        say,
        lambda report: write_whole(path, json_module.dumps(report, indent=2) + "\n"),
    )
    try:
        test.run()
    except KeyboardInterrupt:
        if path.exists():
            stderr.print(f"what was finished is in {path}")
        raise
    _show(test)
    stdout.print(f"results: {path}")
    if not test.passed:
        raise typer.Exit(CHECK_FAILED)


def _settings(
    model: str | None,
    speculative_config: str | None,
    engine_args: Mapping[str, Any],
    prompts: int,
    max_tokens: int,
    concurrency: int,
    rounds: int,
    *,
    quick: bool,
) -> Settings:
    """What to test.

    Raises:
        UserError: one of model and drafter is missing, or no draft length is given.
    """
    from turbospec_bench.vllm.selftest.prompts import prompt_texts
    from turbospec_bench.vllm.selftest.session import Settings

    texts: list[Path] = []
    if model is None and speculative_config is None:
        if not TARGET.is_dir() or not DRAFTER.is_dir():
            raise UserError(
                "there is no models/target here; name a model with --model, a drafter with --speculative-config"
            )
        speculation = {"method": "eagle3", "model": str(DRAFTER.resolve()), "num_speculative_tokens": 6}
        engine = PAIR_ENGINE | {"model": str(TARGET.resolve())}
        texts = [*TEXTS]
    elif model is None or speculative_config is None:
        raise UserError(
            "--model and --speculative-config belong together; name both, or neither for the repository's pair"
        )
    else:
        speculation = _json_object("--speculative-config", speculative_config)
        length = speculation.get("num_speculative_tokens")
        if not isinstance(length, int) or isinstance(length, bool) or not 1 <= length <= MAX_DRAFT_LENGTH:
            raise UserError(
                f"--speculative-config {speculative_config}: needs num_speculative_tokens, from 1 to {MAX_DRAFT_LENGTH}"
            )
        engine = {"model": model, "max_model_len": 2048}
    return Settings(
        engine={**engine, **engine_args},
        speculative_config=speculation,
        prompts=prompt_texts(prompts, texts),
        max_tokens=max_tokens,
        concurrency=concurrency,
        rounds=rounds,
        quick=quick,
    )


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        value: Any = parse_json(text)
    except ValueError as error:
        raise UserError(f"{option} {text}: is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise UserError(f'{option} {text}: must be a JSON object, as {{"name": 1}}')
    return cast("dict[str, Any]", value)


def _show(test: SelfTest) -> None:
    from turbospec_bench.vllm.selftest.contenders import ADAPTIVE, OFF
    from turbospec_bench.vllm.selftest.session import best_fixed

    resolved = test.resolved["reference"]
    stdout.print(
        f"model runner {resolved['model_runner']}, {resolved['device']}, {resolved['dtype']}, "
        f"CUDA graphs {resolved['cudagraph_mode']}",
        markup=False,
    )
    checks = table("Checks", "check", "verdict", "detail")
    for check in test.checks:
        checks.add_row(check.name, check.verdict, check.detail)
    checks.columns[2].justify = "left"
    stdout.print(checks)
    figures = test.figures()
    by_name = {each.name: each for each in figures}
    settings = test.settings
    title = f"{settings.concurrency} requests in flight, {settings.max_tokens} tokens each, rounds: {settings.rounds}"
    measured = table(title, "", "tokens/s", "range", "times off", "accepted length", "differing outputs")
    for each in figures:
        times = f"{each.median / by_name[OFF].median:.2f}" if OFF in by_name else ""
        spread = f"{min(each.rates):.0f} to {max(each.rates):.0f}"
        row = (each.name, f"{each.median:.0f}", spread, times, f"{each.accepted_length:.2f}", str(each.differing))
        measured.add_row(*row)
    stdout.print(measured)
    for name, why in test.skipped.items():
        stdout.print(f"{name}: skipped: {why}")
    best = best_fixed(figures)
    if best is not None and ADAPTIVE in by_name:
        ratio = by_name[ADAPTIVE].median / best.median
        stdout.print(f"adaptive reaches {ratio:.2f} of the best fixed draft length ({best.name})")
