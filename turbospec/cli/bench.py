"""`turbospec bench`: every policy over the same requests, in interleaved rounds."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turbospec.cli.bench_output import conclude, open_results, show_configuration, surroundings
from turbospec.cli.bench_vllm import bench_vllm
from turbospec.cli.console import progress, stderr, stdout, table
from turbospec.cli.options import DEFAULT_DTYPE, Dtype
from turbospec.errors import UserError
from turbospec.models.profile import Profile
from turbospec.policy import find_policy, load_controller, read_policy
from turbospec_bench.configuration import Configuration
from turbospec_bench.trace_folder import TraceFolder

if TYPE_CHECKING:
    from turbospec_bench.contender import Contender
    from turbospec_bench.embedded.session import Session
    from turbospec_bench.embedded.workloads import Load
    from turbospec_bench.matrix import Variant
    from turbospec_bench.results import Results

    Plan = Sequence[tuple[Configuration, Sequence[Variant]]]

app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command("vllm")(bench_vllm)

FULL_ROUNDS = 6
QUICK_ROUNDS = 3
QUICK_CONFIGURATION_SECONDS, QUICK_LEAST_ROUNDS = 75.0, 2
"""Where a machine is so slow that a configuration of --quick takes longer, this many counted rounds have to do."""
TIMED_POLICIES = ("static-3", "ema-tiers", "goodput", "adaptive")


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    workload: Annotated[list[str] | None, typer.Option(help="code, prose, mixed or shift; repeat for several.")] = None,
    drafter: Annotated[list[str] | None, typer.Option(help="good, weak, mismatched or n-gram.")] = None,
    concurrency: Annotated[list[int] | None, typer.Option(min=1, help="Requests in flight.")] = None,
    request_rate: Annotated[
        list[float] | None, typer.Option(min=0.01, help="Poisson arrivals a second, in place of a fixed concurrency.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or file of a policy, or transformers-NAME; NAME:after_draft drafts before a step's tokens leave."
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Counted rounds a configuration: 6; with --quick 3, or 2 on a slow machine."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws the requests and the order of policies.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Three configurations that tell the story, in a few minutes.")
    ] = False,
    models: Annotated[
        Path, typer.Option(help="Folder of target, drafter, drafter-weak and drafter-mismatched.")
    ] = Path("models"),
    workloads: Annotated[Path, typer.Option(help="Folder of code.jsonl and prose.jsonl.")] = Path("workloads"),
    profile: Annotated[
        Path | None, typer.Option(help="Step times of the pair, for policies that predict; measured when absent.")
    ] = None,
    traces: Annotated[
        Path | None,
        typer.Option(help="Folder for each counted run's decision trace, and for step times, measured anew for it."),
    ] = None,
    device: Annotated[str, typer.Option(help="Where the models run.")] = "cpu",
    dtype: Dtype = DEFAULT_DTYPE,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; all cores when absent.")] = None,
    json: Annotated[
        Path | None, typer.Option(help="Results, written after every configuration; under runs/ when absent.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="HTML report; beside the results when absent.")] = None,
    pictures: Annotated[Path | None, typer.Option(help="Folder for the report's pictures as SVG files.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Results of an interrupted run of the same selection, to be completed.")
    ] = None,
) -> None:
    """Compare policies over the same requests: tokens/s, TTFT and TPOT, as ratios to `off` too.

    The whole table has 21 configurations; --workload, --drafter, --concurrency, --policy and --rounds select from it.
    """
    if context.invoked_subcommand is not None:
        return
    from turbospec_bench.embedded.pairs import Pairs
    from turbospec_bench.embedded.profiles import CACHE, MeasuredProfiles
    from turbospec_bench.embedded.session import Session
    from turbospec_bench.embedded.workloads import USUAL_SAMPLING
    from turbospec_bench.matrix import QUICK_TABLE, select_configurations, variants_of
    from turbospec_bench.targets import judge

    if quick and (workload or drafter or concurrency or request_rate):
        raise UserError("--quick has configurations of its own; leave it out to select others")
    configurations = (
        QUICK_TABLE
        if quick
        else select_configurations(workload or (), drafter or (), concurrency or (), request_rate or ())
    )
    plan = [(configuration, variants_of(configuration, policy or (), quick=quick)) for configuration in configurations]
    for variant in {variant for _, variants in plan for variant in variants if not variant.is_transformers}:
        read_policy(find_policy(variant.policy))
    configuration_seconds = QUICK_CONFIGURATION_SECONDS if quick and rounds is None else math.inf
    rounds = rounds or (QUICK_ROUNDS if quick else FULL_ROUNDS)
    pairs = Pairs(models, device, dtype, threads)
    meta = {"seed": seed, "rounds": rounds, "device": device, "dtype": dtype, "threads": threads or os.cpu_count()}
    meta |= surroundings()
    results = open_results(resume, json, meta, ("seed", "device", "dtype", "threads"))
    given = None if profile is None else Profile.load(profile)
    conditions = {"dtype": dtype, "temperature": USUAL_SAMPLING.temperature, "top_p": USUAL_SAMPLING.top_p}
    if given is not None and (differences := given.differences(conditions)):
        stderr.print(f"{profile} was measured with {', '.join(differences)}; predictions will be off", markup=False)
    folder = None if traces is None else TraceFolder(traces)
    if folder is not None:
        folder.make()
    # Runs are simulated from step times that go with them, not from those of another day.
    cache = CACHE if folder is None else None
    source = pairs.source(workloads, seed)
    session = Session(
        pairs=pairs,
        source=source,
        profile_of=MeasuredProfiles(pairs, stderr.print, source.text(), cache) if given is None else lambda _: given,
        seed=seed,
        traces=folder,
    )
    interrupted = False
    try:
        _play(session, plan, rounds, results, configuration_seconds)
    except KeyboardInterrupt:
        interrupted = True
    if results.rows:
        conclude(results, judge(results.rows), report, pictures)
    if interrupted:
        finished = sum(results.has(configuration, variants, rounds) for configuration, variants in plan)
        stderr.print(
            f"{finished} of {len(plan)} configurations are finished; the same command with --resume goes on from there"
        )
        raise KeyboardInterrupt


@app.command("controller")
def controller_cost(
    policy: Annotated[list[str] | None, typer.Option(help="Name or file of a policy; repeat for several.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests in the batch.")] = 256,
    max_draft: Annotated[int, typer.Option(min=1, help="Longest draft, tokens.")] = 15,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are timed.")] = 500,
    profile: Annotated[Path | None, typer.Option(help="Measured step times for policies that need them.")] = None,
) -> None:
    """Time plan and observe alone, on a synthetic batch and without any model."""
    import numpy as np

    from turbospec_bench.decision_cost import measure_decisions

    measured = Profile.load(profile) if profile else None
    shown = table(f"µs a step, {requests} requests, K ≤ {max_draft}", "policy", "median", "P99", "plan", "observe")
    for name in policy or TIMED_POLICIES:
        controller = load_controller(name, profile=measured)
        cost = measure_decisions(controller, requests=requests, max_draft=max_draft, steps=steps)
        columns = (np.median(cost.total), np.percentile(cost.total, 99), np.median(cost.plan), np.median(cost.observe))
        shown.add_row(name, *(f"{seconds * 1e6:.0f}" for seconds in columns))
    stdout.print(shown)


def _play(session: Session, plan: Plan, rounds: int, results: Results, configuration_seconds: float) -> None:
    """Play the configurations that the results lack. What a configuration has when it is interrupted is kept, and when its time is up."""
    from turbospec_bench.targets import best_fixed_line

    left = [
        (configuration, variants)
        for configuration, variants in plan
        if not results.has(configuration, variants, rounds)
    ]
    with progress() as bar:
        task = bar.add_task("runs", total=sum(len(variants) * (rounds + 1) for _, variants in left))
        for configuration, variants in left:

            def on_run(contender: Contender[Load], configuration: Configuration = configuration) -> None:
                bar.update(task, advance=1, description=f"{configuration.name} {contender.variant.policy}")

            enough_at = time.monotonic() + configuration_seconds
            results.collect(
                configuration,
                variants,
                session.play(configuration, variants, rounds, on_run),
                lambda played, at=enough_at: played >= QUICK_LEAST_ROUNDS and time.monotonic() > at,
            )
            show_configuration(results, configuration, best_fixed_line)
