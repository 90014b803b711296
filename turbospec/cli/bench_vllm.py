"""`turbospec bench vllm`: policies in vLLM's own server, under load by vLLM's own benchmark."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import packages_distributions, version
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turbospec.cli.bench_output import conclude, open_results, show_configuration, surroundings
from turbospec.cli.console import progress, stderr, stdout
from turbospec.cli.options import DEFAULT_DTYPE, Dtype
from turbospec.errors import UserError
from turbospec_bench.configuration import Configuration

if TYPE_CHECKING:
    from turbospec_bench.contender import Contender
    from turbospec_bench.matrix import Variant
    from turbospec_bench.results import Results
    from turbospec_bench.vllm.loads import VllmLoad
    from turbospec_bench.vllm.session import VllmSession

ROUNDS = 4
TABLES = "vllm_tables"
"""Where the results' meta has the table of each drafter."""


def bench_vllm(
    workload: Annotated[list[str] | None, typer.Option(help="text or random; repeat for several.")] = None,
    drafter: Annotated[
        list[str] | None, typer.Option(help="good, weak, mismatched, eagle3, eagle3-untrained or n-gram.")
    ] = None,
    concurrency: Annotated[list[int] | None, typer.Option(min=1, help="Requests in flight.")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="vLLM's own static-K and vllm-table, or name or file of a policy of TurboSpec."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Counted rounds a configuration.")] = ROUNDS,
    seed: Annotated[int, typer.Option(help="Draws the requests and the order of policies.")] = 0,
    models: Annotated[Path, typer.Option(help="Folder of the target and its drafters.")] = Path("models"),
    workloads: Annotated[Path, typer.Option(help="Folder of code.jsonl and prose.jsonl.")] = Path("workloads"),
    dtype: Dtype = DEFAULT_DTYPE,
    vllm: Annotated[str, typer.Option(help="The command that starts vLLM.")] = "vllm",
    json: Annotated[
        Path | None,
        typer.Option(help="Results, written after every configuration, and a folder of logs; under runs/ when absent."),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="HTML report; beside the results when absent.")] = None,
    pictures: Annotated[Path | None, typer.Option(help="Folder for the report's pictures as SVG files.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Results of an interrupted run of the same selection, to be completed.")
    ] = None,
) -> None:
    """Compare policies in `vllm serve` under load by `vllm bench serve`, as ratios to `off` too.

    Run it in the environment that vLLM is in. The whole table has 21 configurations; --workload, --drafter, --concurrency,
    --policy and --rounds select from it.
    """
    # The report needs matplotlib; where that is missing, it is to be said before hours of measuring.
    import turbospec_bench.reports.benchmark  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from turbospec_bench.matrix import select_configurations
    from turbospec_bench.vllm.client_process import BenchClient
    from turbospec_bench.vllm.contender import Bench
    from turbospec_bench.vllm.fleet import Fleet
    from turbospec_bench.vllm.launch import Launches
    from turbospec_bench.vllm.loads import LoadSource, load_tokenizer
    from turbospec_bench.vllm.matrix import PAIRS, variants_of
    from turbospec_bench.vllm.session import VllmSession
    from turbospec_bench.vllm.targets import judge

    configurations = select_configurations(workload or (), drafter or (), concurrency or (), table=PAIRS)
    variants = variants_of(policy or ())
    command = _command(vllm)
    launches = Launches(models, dtype, max(configuration.concurrency or 1 for configuration in configurations))
    tokenizer = load_tokenizer(launches.target)
    meta = {"seed": seed, "rounds": rounds, "dtype": dtype, "vllm": _vllm_version()} | surroundings()
    results = open_results(resume, json, meta, ("seed", "dtype", "vllm"))
    logs = results.path.with_name(f"{results.path.stem}-logs")
    with ExitStack() as stack:
        stack.enter_context(_interrupted_by_signals())
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turbospec-bench-")))
        source = LoadSource(workloads, tokenizer, scratch, seed)
        fleet = stack.enter_context(Fleet(command, logs))
        # Ends before the servers do: they wait for requests that are still open.
        client = stack.enter_context(BenchClient(logs / "client.log"))
        session = VllmSession(fleet, launches, Bench(client, launches.target, tokenizer, scratch), source, seed)
        stopped: BaseException | None = None
        try:
            _play(session, configurations, variants, rounds, results)
        except (KeyboardInterrupt, UserError) as error:
            stopped = error
    if results.rows:
        conclude(results, judge(results.rows), report, pictures)
    if stopped is not None and results.path.exists():
        finished = sum(results.has(configuration, variants, rounds) for configuration in configurations)
        stderr.print(
            f"{finished} of {len(configurations)} configurations are finished; --resume {results.path} goes on from there"
        )
    if stopped is not None:
        raise stopped


def _play(
    session: VllmSession,
    configurations: Sequence[Configuration],
    variants: Sequence[Variant],
    rounds: int,
    results: Results,
) -> None:
    """Play the configurations that the results lack, drafter by drafter."""
    from turbospec_bench.vllm.session import runs_of
    from turbospec_bench.vllm.targets import best_other_line

    drafters = [configuration.drafter for configuration in configurations]
    left = sorted(
        (configuration for configuration in configurations if not results.has(configuration, variants, rounds)),
        key=lambda configuration: drafters.index(configuration.drafter),
    )
    with progress() as bar:
        task = bar.add_task("runs", total=runs_of(variants, rounds) * len(left))

        def on_run(configuration: Configuration, contender: Contender[VllmLoad]) -> None:
            bar.update(task, advance=1, description=f"{configuration.name} {contender.variant.policy}")

        for drafter, group in groupby(left, key=lambda configuration: configuration.drafter):
            own = [*group]
            bar.update(task, description=f"{drafter}: starting servers")
            tables: dict[str, Any] = results.meta.setdefault(TABLES, {})
            lengths = session.warm_up(own, variants, tables.get(drafter), on_run)
            if lengths is not None:
                tables[drafter] = [[*line] for line in lengths]
                results.save()
                stdout.print(f"{drafter}: tuned table {tables[drafter]}", markup=False)
            for configuration in own:
                results.collect(configuration, variants, session.play(configuration, variants, rounds, on_run))
                show_configuration(results, configuration, best_other_line)


def _vllm_version() -> str:
    """Whatever its distribution is called.

    Raises:
        UserError: it is not installed beside us.
    """
    if not (names := packages_distributions().get("vllm")):
        raise UserError(
            f"vLLM is not installed for {sys.executable}; run this with the Python that has it (`make bench-vllm` does)"
        )
    return version(names[0])


def _command(words: str) -> list[str]:
    """The command that starts vLLM, looked for beside our own Python first.

    Raises:
        UserError: it cannot be split or is not found.
    """
    try:
        command = shlex.split(words)
    except ValueError as error:
        raise UserError(f"--vllm {words}: not a command ({error})") from None
    beside_our_own = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    found = shutil.which(command[0], path=beside_our_own) if command else None
    if found is None:
        raise UserError(f"--vllm {words}: there is no such command; name the one that starts vLLM")
    return [found, *command[1:]]


@contextmanager
def _interrupted_by_signals() -> Generator[None]:
    """To be told to end is like Ctrl-C: the servers are stopped first."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
