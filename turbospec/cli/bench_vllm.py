"""`turbospec bench vllm`: policies in vLLM's own server, under load by vLLM's own benchmark."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turbospec.cli.bench_options import CheckTargets, Json, Models, Pictures, Report, Resume, Seed, Workloads
from turbospec.cli.bench_output import (
    Outputs,
    conclude_or_stop,
    show_configuration,
)
from turbospec.cli.bench_progress import BenchProgress
from turbospec.cli.bench_targets import judge_file
from turbospec.cli.console import progress, stderr, stdout
from turbospec.cli.options import DEFAULT_DTYPE, Dtype
from turbospec.cli.vllm_runs import gpu_name, installed_vllm
from turbospec.errors import UserError
from turbospec.files.writing import check_folder
from turbospec.policy import find_policy
from turbospec_bench.configuration import Configuration
from turbospec_bench.inputs import checkpoints
from turbospec_bench.matrix import MAX_ROUNDS, TARGET
from turbospec_bench.texts import TEXT_KINDS, answered_kinds

if TYPE_CHECKING:
    from turbospec_bench.results import Results
    from turbospec_bench.variant import Variant
    from turbospec_bench.vllm.session import VllmSession

ROUNDS = 4
MAX_SCALE = 100
TABLES = "vllm_tables"
"""Where the results' meta has the table of each drafter."""
TUNED_ON = "vllm_tables_tuned_on"
"""Where it has the configurations that each was tuned on."""


def bench_vllm(
    workload: Annotated[
        list[str] | None, typer.Option(help="text, edit, records or random; repeat for several.")
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(help="good, weak, mismatched, eagle3, eagle3-untrained, peagle, dflash or n-gram."),
    ] = None,
    concurrency: Annotated[list[int] | None, typer.Option(help="Requests in flight.")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="vLLM's own static-K, ngram-K (its look-up) and vllm-table, or name or file of a policy of TurboSpec; "
            "NAME+ngram offers it a look-up beside the drafter."
        ),
    ] = None,
    scale: Annotated[
        int,
        typer.Option(min=1, max=MAX_SCALE, help="Multiplies the number of requests in each run."),
    ] = 1,
    rounds: Annotated[int, typer.Option(min=1, max=MAX_ROUNDS, help="Counted rounds of a configuration.")] = ROUNDS,
    seed: Seed = 0,
    models: Models = Path("models"),
    workloads: Workloads = Path("workloads"),
    dtype: Dtype = DEFAULT_DTYPE,
    vllm: Annotated[str, typer.Option(help="The command that starts vLLM.")] = "vllm",
    json: Json = None,
    report: Report = None,
    pictures: Pictures = None,
    resume: Resume = None,
    check_targets: CheckTargets = False,
) -> None:
    """Compare policies in `vllm serve` under load by `vllm bench serve`, as ratios to `off` too.

    Run it in the environment that vLLM is in. The whole matrix has 21 configurations of workload, drafter and load;
    --workload, --drafter, --concurrency, --policy and --rounds select from it. The logs of servers and client are in a
    folder beside the results.
    """
    # Imports what the report needs: a missing package is reported before hours of measuring.
    import turbospec_bench.reports.benchmark  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from turbospec_bench.cost import Cost
    from turbospec_bench.matrix import select_configurations
    from turbospec_bench.other_processes import other_cores_now, shared_machine
    from turbospec_bench.results import Results
    from turbospec_bench.rounds import DisturbanceCheck
    from turbospec_bench.vllm.client_process import BenchClient
    from turbospec_bench.vllm.contender import Bench
    from turbospec_bench.vllm.fleet import Fleet
    from turbospec_bench.vllm.launch import Launches
    from turbospec_bench.vllm.loads import LoadSource, load_tokenizer, shape_of
    from turbospec_bench.vllm.matrix import NAMED_PAIRS, PAIRS, check_lookups, is_turbospec, variants_of
    from turbospec_bench.vllm.session import VllmSession, runs_of
    from turbospec_bench.vllm.speculation import DRAFTERS

    configurations = select_configurations(
        workload or (), drafter or (), concurrency or (), pairings=PAIRS, named=NAMED_PAIRS
    )
    variants = variants_of(policy or ())
    check_lookups(configurations, variants)
    command = _command(vllm)
    vllm_version, gpu = installed_vllm(), gpu_name()
    most = max(configuration.concurrency or 1 for configuration in configurations)
    launches = Launches(models, dtype, most, on_gpu=gpu is not None)
    meta = {"seed": seed, "rounds": rounds, "dtype": dtype, "vllm": vllm_version, "scale": scale, "gpu": gpu}
    meta["highest_concurrency"] = most
    resumed = None if resume is None else Results.load(resume)
    answered = answered_kinds(configurations)
    texts = [workloads / f"{kind}.jsonl" for kind in (*TEXT_KINDS, *answered)]
    policies = [find_policy(variant.policy) for variant in variants if is_turbospec(variant)]
    outputs = Outputs.check(json, report, pictures, None, resumed, (*policies, *texts))
    logs = outputs.results.parent / f"{outputs.results.stem}-logs"
    check_folder(logs)
    folders = {DRAFTERS[configuration.drafter][1] for configuration in configurations}
    named = {path.name: path for path in (*policies, *texts)}
    compared = ("seed", "dtype", "vllm", "scale", "gpu", "highest_concurrency")
    results = outputs.open_results(resumed, meta, compared, named | checkpoints(models, {TARGET, *folders}))
    # Before the run: what stops the run itself saves its rounds.
    for configuration in configurations:
        if results.missing_rounds(configuration, variants, rounds):
            _check_table(results, configuration, variants)
    cost = Cost.of(
        [(each, variants) for each in configurations], rounds, resumed, runs_of, partial(shape_of, scale=scale)
    )
    cost.check()
    stderr.print(cost.line(), soft_wrap=True)
    tokenizer = load_tokenizer(launches.target)
    with ExitStack() as stack:
        shown = BenchProgress(stack.enter_context(progress()), "starting the client, `vllm bench serve`")
        if (remark := shared_machine(other_cores_now())) is not None:
            shown.remark(remark)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turbospec-bench-")))
        source = LoadSource(workloads, tokenizer, scratch, seed, answered, scale)
        fleet = stack.enter_context(Fleet(command, logs))
        # Ends before the servers do: they wait for requests that are still open.
        client = stack.enter_context(BenchClient(logs / "client.log", scale))
        bench = Bench(client, launches.target, tokenizer, scratch)
        session = VllmSession(fleet, launches, bench, source, seed, DisturbanceCheck(say=shown.remark))
        stopped: BaseException | None = None
        try:
            _play(session, configurations, variants, rounds, results, shown)
        except (KeyboardInterrupt, UserError) as error:
            stopped = error
        shown.phase("stopping the servers")
    finished = sum(results.has(configuration, variants, rounds) for configuration in configurations)
    conclude_or_stop(results, outputs, stopped, finished, len(configurations))
    if check_targets:
        raise typer.Exit(judge_file(results.path))


def _play(
    session: VllmSession,
    configurations: Sequence[Configuration],
    variants: Sequence[Variant],
    rounds: int,
    results: Results,
    shown: BenchProgress,
) -> None:
    """Play the configurations that the results lack, drafter by drafter."""
    from turbospec_bench.vllm.session import runs_of
    from turbospec_bench.vllm.targets import best_other_lines

    drafters = [configuration.drafter for configuration in configurations]
    missing = {
        configuration: numbers
        for configuration in configurations
        if (numbers := results.missing_rounds(configuration, variants, rounds))
    }
    left = sorted(missing, key=lambda configuration: drafters.index(configuration.drafter))
    shown.expect(sum(runs_of(variants, len(numbers)) for numbers in missing.values()), "starting servers")
    for drafter, group in groupby(left, key=lambda configuration: configuration.drafter):
        own = [*group]
        shown.phase(f"{drafter}: starting servers")
        tables: dict[str, Any] = results.meta.setdefault(TABLES, {})
        lengths = session.warm_up(own, variants, tables.get(drafter), shown.on_run)
        if lengths is not None:
            tables[drafter] = [[*line] for line in lengths]
            results.meta.setdefault(TUNED_ON, {}).setdefault(drafter, [each.name for each in own])
            results.save()
            stdout.print(f"{drafter}: tuned table {tables[drafter]}")
        for configuration in own:
            numbers = missing[configuration]
            results.collect(configuration, variants, session.play(configuration, variants, numbers, shown.on_run))
            show_configuration(results, configuration, best_other_lines)


def _check_table(results: Results, configuration: Configuration, variants: Sequence[Variant]) -> None:
    """Refuse a configuration that vLLM's table in the results was not tuned on.

    Raises:
        UserError: it is one.
    """
    from turbospec_bench.vllm.matrix import BATCH_TABLE

    tabled = any(variant.policy == BATCH_TABLE for variant in variants)
    if not tabled or configuration.drafter not in results.meta.get(TABLES, {}):
        return
    tuned_on: Sequence[str] = results.meta.get(TUNED_ON, {}).get(configuration.drafter, ())
    if configuration.name not in tuned_on:
        raise UserError(
            f"{results.path}: its {BATCH_TABLE} was not tuned on {configuration.name}; resume with the same selection, "
            "or start a new file"
        )


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
