"""`turbospec bench`: every policy over the same requests, in interleaved rounds."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turbospec.cli.bench_options import CheckTargets, Json, Models, Pictures, Report, Resume, Seed, Workloads
from turbospec.cli.bench_output import (
    Outputs,
    conclude_or_stop,
    show_configuration,
)
from turbospec.cli.bench_progress import BenchProgress
from turbospec.cli.bench_targets import bench_targets, judge_file
from turbospec.cli.bench_vllm import bench_vllm
from turbospec.cli.console import progress, stderr, stdout, table
from turbospec.cli.options import DEFAULT_DTYPE, Dtype, Lookup
from turbospec.errors import UserError
from turbospec.interface import MAX_DRAFT_LENGTH
from turbospec.models.profile import Profile
from turbospec.policy import find_policy, load_controller, read_policy
from turbospec_bench.configuration import Configuration
from turbospec_bench.inputs import checkpoints
from turbospec_bench.matrix import MAX_ROUNDS, TARGET, runs_of
from turbospec_bench.other_processes import (
    MAX_THREADS,
    choose_threads,
    cores,
    other_cores_now,
    threads_from_environment,
)
from turbospec_bench.texts import TEXT_KINDS, Shape, answered_kinds
from turbospec_bench.trace_folder import TraceFolder

if TYPE_CHECKING:
    from turbospec_bench.embedded.session import Session
    from turbospec_bench.results import Results
    from turbospec_bench.variant import Variant

    Plan = Sequence[tuple[Configuration, Sequence[Variant]]]

app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command("vllm")(bench_vllm)
app.command("targets")(bench_targets)

FULL_ROUNDS = 6
QUICK_ROUNDS = 3
QUICK_REPEATS = 1
"""Rounds of a configuration that --quick repeats at most, because other processes disturbed them."""
QUICK_SECONDS, QUICK_LEAST_ROUNDS = 55.0, 2
"""Where a machine is so slow that a configuration of --quick takes longer, this many counted rounds are enough."""
ROW_SECONDS = 5e-8
"""Of a policy for one request, draft token and step, roughly."""
SWEEP_SECONDS = 0.06
"""To empty the caches twice in a step."""
MAX_TIMED_SECONDS = 12 * 3600.0
TIMED_POLICIES = ("static-3", "ema-tiers", "goodput", "adaptive")


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    workload: Annotated[
        list[str] | None, typer.Option(help="code, prose, mixed, shift, edit or records; repeat for several.")
    ] = None,
    drafter: Annotated[
        list[str] | None, typer.Option(help="good, weak, mismatched, n-gram, eagle3, peagle or dflash.")
    ] = None,
    lookup: Lookup = None,
    concurrency: Annotated[list[int] | None, typer.Option(help="Requests in flight.")] = None,
    request_rate: Annotated[
        list[float] | None, typer.Option(help="Poisson arrivals per second, in place of a fixed concurrency.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or file of a policy, or transformers-NAME; NAME:after_draft drafts before it emits tokens."
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_ROUNDS, help="Counted rounds of a configuration: 6; with --quick 3, or 2 on a slow machine."
        ),
    ] = None,
    seed: Seed = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Three configurations and five policies, in a few minutes.")
    ] = False,
    models: Models = Path("models"),
    workloads: Workloads = Path("workloads"),
    profile: Annotated[
        Path | None, typer.Option(help="Step times of the models, for policies that predict; measured when absent.")
    ] = None,
    traces: Annotated[
        Path | None,
        typer.Option(help="Folder for the decision trace of each counted run, and for step times measured for it."),
    ] = None,
    device: Annotated[str, typer.Option(help="Where the models run.")] = "cpu",
    dtype: Dtype = DEFAULT_DTYPE,
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_THREADS, help="CPU threads; when absent, all cores that other processes leave."),
    ] = None,
    json: Json = None,
    report: Report = None,
    pictures: Pictures = None,
    resume: Resume = None,
    check_targets: CheckTargets = False,
) -> None:
    """Compare policies over the same requests: tokens/s, TTFT and TPOT, as ratios to `off` too.

    The whole matrix has 21 configurations of workload, drafter and load; --workload, --drafter, --concurrency,
    --policy and --rounds select from it.
    """
    if context.invoked_subcommand is not None:
        sources = {name: context.get_parameter_source(name) for name in context.params}
        if given := [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]:
            option = f"--{given[0].replace('_', '-')}"
            raise UserError(f"{option} before {context.invoked_subcommand} does nothing; leave it out")
        return
    # Imports what the report needs: a missing package is reported before minutes of measuring.
    import turbospec_bench.reports.benchmark  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from turbospec_bench.matrix import NAMED_PAIRS, QUICK_MATRIX, check_takes_part, select_configurations, variants_of
    from turbospec_bench.results import Results
    from turbospec_bench.rounds import MAX_REPEATS, DisturbanceCheck

    if quick and (workload or drafter or concurrency or request_rate):
        raise UserError("--quick has configurations of its own; leave it out to select others")
    configurations = (
        QUICK_MATRIX
        if quick
        else select_configurations(
            workload or (), drafter or (), concurrency or (), request_rate or (), named=NAMED_PAIRS
        )
    )
    plan = [(configuration, variants_of(configuration, policy or (), quick=quick)) for configuration in configurations]
    check_takes_part(policy or (), [variant for _, variants in plan for variant in variants])
    policies = {
        find_policy(variant.policy) for _, variants in plan for variant in variants if not variant.is_transformers
    }
    for path in policies:
        read_policy(path)
    enough_seconds = QUICK_SECONDS if quick and rounds is None else math.inf
    rounds = rounds or (QUICK_ROUNDS if quick else FULL_ROUNDS)
    given = None if profile is None else Profile.load(profile)
    if given is not None and len({configuration.drafter for configuration in configurations}) > 1:
        raise UserError("--profile has the step times of one drafter; choose it with --drafter")
    resumed = None if resume is None else Results.load(resume)
    if resumed is not None and resumed.meta.get("omp_wait_policy"):
        os.environ.setdefault("OMP_WAIT_POLICY", resumed.meta["omp_wait_policy"])
    answered = answered_kinds(configurations)
    texts = [workloads / f"{kind}.jsonl" for kind in (*TEXT_KINDS, *answered)]
    outputs = Outputs.check(json, report, pictures, traces, resumed, (profile, *policies, *texts))
    folder = None if traces is None else TraceFolder(traces)
    _say_cost(plan, rounds, resumed)
    if threads is None:
        threads = threads_from_environment() if resumed is None else resumed.meta.get("threads")
    if device == "cpu":
        threads = _threads_beside_others(threads, resumed=resumed is not None)
    with progress() as bar:
        shown = BenchProgress(bar, "loading the models")
        # Loads torch, whose OpenMP reads the environment at that moment and never again.
        from turbospec_bench.embedded.pairs import DRAFTERS, Pairs
        from turbospec_bench.embedded.profiles import CACHE, MeasuredProfiles
        from turbospec_bench.embedded.session import Session
        from turbospec_bench.embedded.workloads import USUAL_SAMPLING

        pairs = Pairs(models, device, dtype, threads, lookup)
        source = pairs.source(workloads, seed, answered)
        meta = {"seed": seed, "rounds": rounds, "device": device, "gpu": pairs.gpu, "dtype": dtype}
        meta["threads"] = pairs.threads_in_use
        meta["omp_wait_policy"] = os.environ.get("OMP_WAIT_POLICY", "")
        meta["lookup"] = lookup or ""
        meta["profile"] = "measured" if profile is None else "given"
        meta["traces"] = "" if traces is None else str(traces.resolve())
        compared = ("seed", "device", "gpu", "dtype", "threads", "omp_wait_policy", "lookup", "profile")
        named = {path.name: path for path in (*policies, *texts)} | ({} if profile is None else {"--profile": profile})
        folders = {DRAFTERS.get(configuration.drafter) for configuration in configurations}
        results = outputs.open_results(resumed, meta, compared, named | checkpoints(models, {TARGET, *folders}))
        # Before the run: what stops the run itself saves its rounds.
        for configuration, variants in plan:
            results.missing_rounds(configuration, variants, rounds)
        conditions = {"dtype": dtype, "temperature": USUAL_SAMPLING.temperature, "top_p": USUAL_SAMPLING.top_p}
        if given is not None and (differences := given.differences(conditions)):
            stderr.print(f"{profile} was measured with {', '.join(differences)}; predictions will be off")
        # Runs are simulated from step times measured with them, not on another day.
        cache = CACHE if folder is None else None
        earlier = folder if resumed is not None and resumed.meta.get("traces") == meta["traces"] else None
        check = DisturbanceCheck(
            spare_cores=max(0, cores() - (pairs.threads_in_use if device == "cpu" else 1)),
            repeats=QUICK_REPEATS if quick else MAX_REPEATS,
            say=shown.remark,
        )
        measured = MeasuredProfiles(pairs, shown.announce, source.text(), cache, earlier, check)
        session = Session(
            pairs=pairs,
            source=source,
            profile_of=measured if given is None else lambda _: given,
            seed=seed,
            traces=folder,
            check=check,
        )
        stopped: BaseException | None = None
        try:
            _play(session, plan, rounds, results, enough_seconds, shown)
        except (KeyboardInterrupt, UserError) as error:
            stopped = error
    finished = sum(results.has(configuration, variants, rounds) for configuration, variants in plan)
    conclude_or_stop(results, outputs, stopped, finished, len(plan))
    if check_targets:
        raise typer.Exit(judge_file(results.path))


@app.command("controller")
def controller_cost(
    policy: Annotated[list[str] | None, typer.Option(help="Name or file of a policy; repeat for several.")] = None,
    requests: Annotated[int, typer.Option(min=1, max=10_000, help="Requests in the batch.")] = 256,
    max_draft: Annotated[int, typer.Option(min=1, max=MAX_DRAFT_LENGTH, help="Longest draft, tokens.")] = 15,
    steps: Annotated[int, typer.Option(min=1, max=10**6, help="Steps that are timed.")] = 500,
    profile: Annotated[Path | None, typer.Option(help="Measured step times for policies that need them.")] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Empty the processor's caches before each call.")] = False,
) -> None:
    """Time plan and observe alone, on a synthetic batch and without any model."""
    import numpy as np

    from turbospec_bench.decision_cost import measure_decisions

    names = policy or TIMED_POLICIES
    seconds = (ROW_SECONDS * requests * max_draft + (SWEEP_SECONDS if cold else 0.0)) * steps * len(names)
    if seconds > MAX_TIMED_SECONDS:
        raise UserError(
            f"{steps} steps of {requests} requests with K up to {max_draft} take about {seconds / 3600:.0f} hours; "
            "lower --steps, --requests or --max-draft"
        )
    measured = Profile.load(profile) if profile else None
    caches = ", cold caches" if cold else ""
    shown = table(
        f"µs a step, {requests} requests, K ≤ {max_draft}{caches}", "policy", "median", "P99", "plan", "observe"
    )
    for name in names:
        controller = load_controller(name, profile=measured)
        cost = measure_decisions(controller, requests=requests, max_draft=max_draft, steps=steps, cold=cold)
        columns = (np.median(cost.total), np.percentile(cost.total, 99), np.median(cost.plan), np.median(cost.observe))
        shown.add_row(name, *(f"{seconds * 1e6:.0f}" for seconds in columns))
    stdout.print(shown)


def _say_cost(plan: Plan, rounds: int, resumed: Results | None) -> None:
    """Say how many runs and requests are to be measured, and for how long where that is known.

    Raises:
        UserError: they would take weeks.
    """
    from turbospec_bench.cost import Cost

    cost = Cost.of(plan, rounds, resumed, runs_of, Shape.of)
    cost.check()
    stderr.print(cost.line(), soft_wrap=True)


def _threads_beside_others(asked: int | None, *, resumed: bool) -> int | None:
    """Threads of the models; None for as many as torch takes. Says so where other processes use the machine.

    A run that is resumed keeps its way to wait for threads, whatever else runs now.
    """
    threads, remark = choose_threads(asked, other_cores_now(), cores())
    if remark is not None:
        stderr.print(remark, soft_wrap=True)
        if not resumed:
            # Threads that sleep at the end of a parallel region are slower, and do not hold one another up.
            os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    return threads


def _play(
    session: Session, plan: Plan, rounds: int, results: Results, enough_seconds: float, shown: BenchProgress
) -> None:
    """Play the configurations that the results lack, each no longer than some seconds where it has enough rounds."""
    from turbospec_bench.comparisons import best_rival_line

    left = [
        (configuration, variants, missing)
        for configuration, variants in plan
        if (missing := results.missing_rounds(configuration, variants, rounds))
    ]
    shown.expect(sum(runs_of(variants, len(missing)) for _, variants, missing in left), "starting the engines")
    for configuration, variants, missing in left:
        enough_at = time.monotonic() + enough_seconds
        results.collect(
            configuration,
            variants,
            session.play(configuration, variants, missing, shown.on_run),
            lambda played, at=enough_at: played >= QUICK_LEAST_ROUNDS and time.monotonic() > at,
        )
        show_configuration(results, configuration, lambda rows: best_rival_line(rows, "the best fixed K"))
