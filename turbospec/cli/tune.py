"""`turbospec tune`: search a policy's settings on simulated servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turbospec.cli.compilation import say_when_compiling
from turbospec.cli.console import progress, stdout, table
from turbospec.cli.resuming import Resume, finished_runs, kept, results_file, say_cost
from turbospec.cli.scenario_options import MOST_SEEDS, Jobs, Rates, Settings, checked_rates, input_files
from turbospec.errors import UserError
from turbospec.files.writing import check_outputs
from turbospec.policy import find_policy, read_policy

MOST_TRIALS = 100_000

if TYPE_CHECKING:
    from turbospec_sim.tuning.search import Tuned


def tune(
    scenarios: Annotated[list[str], typer.Argument(help="Names or files of scenarios.", metavar="SCENARIO...")],
    write: Annotated[Path, typer.Option(help="Policy file to write.")],
    policy: Annotated[str, typer.Option(help="Name or file of the policy to tune.")] = "adaptive",
    search: Annotated[
        list[str] | None,
        typer.Option(
            help="field=low:high or field=low:high:log; repeatable. Default: all settings with a range of their own."
        ),
    ] = None,
    objective: Annotated[
        str, typer.Option(help="What to maximise: goodput or throughput; or a latency to minimise, as p99_ttft_ms.")
    ] = "goodput",
    trials: Annotated[int, typer.Option(min=5, max=MOST_TRIALS, help="About how many settings to try.")] = 40,
    seeds: Annotated[int, typer.Option(min=1, max=MOST_SEEDS, help="Seeds of each scenario in the search.")] = 3,
    held_out: Annotated[int, typer.Option(min=2, max=MOST_SEEDS, help="Seeds to evaluate the best settings on.")] = 6,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the search.")] = 0,
    rates: Rates = None,
    settings: Settings = None,
    jobs: Jobs = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    json: Annotated[
        Path | None, typer.Option(help="Write the runs of the search to this file, while they are finished.")
    ] = None,
    resume: Resume = None,
) -> None:
    """Search a policy's settings on scenarios, evaluate the best on held-out seeds, and write them as a policy file."""
    from turbospec.files.results_file import save
    from turbospec_sim.finished import FIGURES_ONLY, RUN_ID, scenario_settings
    from turbospec_sim.scenario_file import named_scenarios
    from turbospec_sim.tuning.objective import Trials, check_objective
    from turbospec_sim.tuning.policy_file import write_policy
    from turbospec_sim.tuning.search import tune as search_settings
    from turbospec_sim.tuning.space import search_space

    json = results_file(json, resume)
    check_objective(objective)
    config = read_policy(find_policy(policy))
    space = search_space(config, search or ())
    read = named_scenarios(scenarios, settings or ())
    check_outputs(write, json, inputs=input_files(scenarios, [policy], read))
    if write.exists() and not overwrite:
        raise UserError(f"--write {write}: the file exists; name another, or replace it with --overwrite")
    chosen = checked_rates(rates or (), read)
    about: dict[str, Any] = {
        "policy": config.model_dump(mode="json"),
        "scenarios": {
            name: scenario.model_dump(mode="json", exclude={"description"}) | scenario_settings(scenario)
            for name, scenario in read
        },
        "names": [name for name, _ in read],
        "rates": chosen,
        "search": [asdict(dimension) for dimension in space],
        "objective": objective,
        "trials": trials,
        "seeds": seeds,
        "held_out": held_out,
        "seed": seed,
    }
    meta = {
        "command": "tune",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": {"turbospec": version("turbospec"), **about},
    }
    finished = finished_runs(json, resume, meta, FIGURES_ONLY)
    training = Trials(read, chosen, objective, seeds, jobs=jobs, finished=finished)
    others = Trials(read, chosen, objective, held_out, skipped_seeds=seeds, jobs=jobs, finished=finished)
    cost = training.cost.times(trials + 1).plus(others.cost.times(2))
    say_cost(cost.times(max(0.0, 1.0 - len(finished) / cost.runs)), jobs)
    say_when_compiling(jobs)
    with progress() as bar, kept(finished):
        task = bar.add_task("runs", total=cost.runs)
        tuned = search_settings(
            config, space, training, others, trials=trials, seed=seed, done=lambda: bar.update(task, advance=1)
        )
    replaced = write.exists()
    heading = [
        f"The policy `{policy}`, tuned for {' and '.join(name for name, _ in read)} by `turbospec tune`:",
        f"best {objective} of {tuned.trials} settings within "
        + ", ".join(f"{dimension.field} {dimension.low:g} to {dimension.high:g}" for dimension in space)
        + f" on {seeds} seed{'s' * (seeds > 1)} (search seed {seed}).",
        *_verdict(tuned, objective),
    ]
    write_policy(write, tuned.config, heading)
    if json is not None:
        rows = {row[RUN_ID]: row for row in (*training.rows, *others.rows)}
        save(json, meta | {"changed": tuned.changed, "tried": tuned.trials}, [*rows.values()], digits=None)
    _show(tuned, objective)
    for line in _verdict(tuned, objective):
        stdout.print(line, soft_wrap=True)
    stdout.print(f"policy{' (replaced)' if replaced else ''}: {write}", soft_wrap=True)
    if json is not None:
        stdout.print(f"results: {json}", soft_wrap=True)


def _verdict(tuned: Tuned, objective: str) -> list[str]:
    """The result of tuning, in words."""
    if tuned.held_out is None:
        return ["No settings tried were better than the default; the file has the default settings."]
    found = f"Held-out seeds: {tuned.held_out} of the default's {objective} (above 1 is better)."
    if tuned.beyond_noise:
        return [found]
    return [found, "The gain is within noise: do not rely on it."]


def _show(tuned: Tuned, objective: str) -> None:
    shown = table("Tuning", "settings", f"{objective}: seeds of the search", "ratio", "held-out seeds", "ratio")
    rows: Sequence[tuple[str, tuple[float, float], str, str]] = [("default", tuned.default_figures, "1", "1")]
    if tuned.held_out is not None:
        rows = [*rows, ("tuned", tuned.tuned_figures, str(tuned.trained), str(tuned.held_out))]
    for name, (trained, held_out), trained_ratio, held_out_ratio in rows:
        shown.add_row(name, f"{trained:.4g}", trained_ratio, f"{held_out:.4g}", held_out_ratio)
    stdout.print(shown)
    for field, value in tuned.changed.items():
        stdout.print(f"{field}: {value:g}")
