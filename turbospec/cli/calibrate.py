"""`turbospec calibrate`: fit unknown coefficients of simulated servers to measurements of real ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from turbospec.cli.compilation import say_when_compiling
from turbospec.cli.console import progress, stdout, table
from turbospec.cli.resuming import Resume, finished_runs, kept, results_file, say_cost
from turbospec.cli.scenario_options import MOST_SEEDS, Jobs, input_files
from turbospec.errors import UserError
from turbospec.files.reading import read_text
from turbospec.files.writing import check_outputs

if TYPE_CHECKING:
    from turbospec_sim.calibration import Calibration, Case, Coefficient
    from turbospec_sim.scenario import Scenario


def calibrate(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            help="Names or files of scenarios; =RUN names the measured run where its name differs.",
            metavar="SCENARIO[=RUN]...",
        ),
    ],
    measured: Annotated[list[Path], typer.Option(help="A CSV, or JSON of vllm bench serve; repeatable.")],
    fit: Annotated[
        list[str] | None,
        typer.Option(
            help="A field to fit in all scenarios, or in one: SCENARIO:field. Fields joined by commas share one "
            "value. Repeatable; without it, measured and simulated figures are only compared."
        ),
    ] = None,
    figure: Annotated[
        list[str] | None,
        typer.Option(help="A figure to compare; repeatable. Default: all of a CSV, common ones of JSON."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="field=value, used in place of the scenarios' value before the fit; repeatable."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=MOST_SEEDS, help="Simulations of each measured run.")] = 4,
    jobs: Jobs = 1,
    evaluations: Annotated[
        int,
        typer.Option(
            min=1, max=10_000, help="Most points of each of the two fits; 1: only the intervals at the start."
        ),
    ] = 8,
    json: Annotated[
        Path | None, typer.Option(help="Write coefficients, their errors and all figures to this JSON file.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write scenario files with the fitted values to this folder.")
    ] = None,
    resume: Resume = None,
) -> None:
    """Fit fields of scenarios to measured runs, jointly, and report which fields the measurements do not identify."""
    from turbospec.files.results_file import keep_earlier, save
    from turbospec_sim import calibration
    from turbospec_sim.finished import FIGURES_ONLY, scenario_settings
    from turbospec_sim.scenario_file import find_scenario, read_scenario

    if settings and write is not None:
        raise UserError(
            "--write edits the scenario files, which do not have the values of --set; put these into the files first"
        )
    json = results_file(json, resume)
    sources = [source.partition("=")[::2] for source in scenarios]
    files = {path.stem: path for path in (find_scenario(source) for source, _ in sources)}
    if len(files) < len(sources):
        raise UserError("two scenarios have the same name; give each once")
    read = {name: read_scenario(path, settings or ()) for name, path in files.items()}
    texts = {name: read_text(path, "scenario file") for name, path in files.items()}
    if write is not None:
        _check_paths(read, texts)
    runs = {run or name: name for name, (_, run) in zip(files, sources, strict=True)}
    if len(runs) < len(files):
        raise UserError("two scenarios have the same measured run; give each its own")
    cases = _cases(measured, figure or (), runs, read)
    policies = sorted({case.measured.policy for case in cases if case.measured.policy is not None})
    inputs = [*measured, *input_files([source for source, _ in sources], policies, [*read.items()])]
    check_outputs(json, *(write / f"{name}.yaml" for name in files if write is not None), inputs=inputs)
    coefficients = [_coefficient(text, read) for text in fit or ()]
    _check_number(coefficients, cases)
    if write is not None:  # before the fit: afterwards its result would be lost
        _check_fields(texts, coefficients)
        for name in files:
            keep_earlier(write / f"{name}.yaml")
    meta = {
        "command": "calibrate",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "turbospec": version("turbospec"),
        "seeds": seeds,
        "settings": {
            "turbospec": version("turbospec"),
            "scenarios": {
                name: scenario.model_dump(mode="json") | scenario_settings(scenario) for name, scenario in read.items()
            },
            "fit": fit or [],
            "seeds": seeds,
            "evaluations": evaluations,
        },
    }
    finished = finished_runs(json, resume, meta, FIGURES_ONLY)
    cost = calibration.most_cost(read, cases, coefficients, seeds, evaluations)
    say_cost(cost.times(max(0.0, 1.0 - len(finished) / cost.runs)), jobs, at_most=True)
    say_when_compiling(jobs)
    with progress() as bar, kept(finished):
        task = bar.add_task("points", total=None)

        def tell(misfit: float) -> None:
            bar.update(task, advance=1, description=f"points (misfit {misfit:.1%})")

        found = calibration.calibrate(
            read, cases, coefficients, seeds=seeds, jobs=jobs, evaluations=evaluations, progress=tell, finished=finished
        )
    # Files come first: printing ends the command where stdout is closed.
    if json is not None:
        meta |= {
            "coefficients": [_document(found, place) for place in range(len(coefficients))],
            "unidentified": [list(names) for names in found.unidentified],
            "converged": found.converged,
            "at_limit": found.at_limit,
            "scenarios": {name: scenario.model_dump(mode="json") for name, scenario in found.scenarios.items()},
        }
        save(json, meta, _rows(found))
    written = [] if write is None else _write(write, texts, found)
    _show(found)
    if json is not None:
        stdout.print(f"results: {json}", soft_wrap=True)
    for path in written:
        stdout.print(f"scenario: {path}", soft_wrap=True)


def _check_paths(read: Mapping[str, Scenario], texts: Mapping[str, str]) -> None:
    """Refuse to write scenarios with paths, unless these are absolute: relative ones would lead elsewhere from a copy.

    A path that was read has its folder before it. It was absolute in the file if the file has all of it.
    """
    from turbospec.files.shipped import is_name

    for name, scenario in read.items():
        paths = [*scenario.files, *([] if is_name(scenario.policy) else [Path(scenario.policy)])]
        for path in paths:
            if not (path.is_absolute() and str(path) in texts[name]):
                raise UserError(
                    f"--write: {name} names {path.name} by a path relative to its own file; write {path.absolute()} "
                    "there, or leave out --write and take the values from --json"
                )


def _check_fields(texts: Mapping[str, str], coefficients: Sequence[Coefficient]) -> None:
    """Check that the scenario files' texts can hold fitted values.

    Raises:
        UserError: one cannot.
    """
    from turbospec_sim.scenario_edit import with_values

    for name, text in texts.items():
        fields = [field for one in coefficients if name in one.scenarios for field in one.fields]
        try:
            with_values(text, dict.fromkeys(fields, 1.0))
        except UserError as error:
            raise UserError(f"--write: {name}: {error}") from None


def _cases(
    paths: Sequence[Path], figures: Sequence[str], runs: Mapping[str, str], read: Mapping[str, Scenario]
) -> list[Case]:
    """The measured runs of the scenarios; other runs in the files are ignored."""
    from turbospec_sim.calibration import Case
    from turbospec_sim.measurements import read_measurements
    from turbospec_sim.run import BEST_STATIC, check_policy

    rows = [row for path in paths for row in read_measurements(path, figures)]
    for name in figures:
        if not any(name in row.figures for row in rows):
            raise UserError(f"--figure {name}: no run was measured by it; leave it out")
    there = sorted({row.run for row in rows})
    if len(there) == 1 and [*runs] == [*runs.values()] and len(runs) == 1:  # no run was named
        runs = dict.fromkeys(there, next(iter(runs.values())))
    for run, name in runs.items():
        if run not in there:
            raise UserError(
                f"no measured run is called `{run}`; name that of {name} with {name}=RUN (measured: {', '.join(there)})"
            )
    cases = [Case(runs[row.run], row) for row in rows if row.run in runs]
    for case in cases:
        scenario, rate = read[case.scenario], case.measured.rate
        if scenario.workload.has_rates and rate is None:
            raise UserError(f"run `{case.measured.run}` has no request rate, but {case.scenario} needs one")
        if not scenario.workload.has_rates and rate is not None:
            raise UserError(f"run `{case.measured.run}` has a request rate, but {case.scenario} has no rates")
        clients = getattr(scenario.workload.arrivals, "concurrency", None)
        if clients is not None and case.measured.concurrency not in (None, clients):
            raise UserError(
                f"run `{case.measured.run}` had {case.measured.concurrency:g} requests at a time, but {case.scenario} "
                f"has {clients}; set workload.arrivals.concurrency"
            )
        requests = scenario.workload.requests
        if requests is not None and case.measured.requests not in (None, requests):
            raise UserError(
                f"run `{case.measured.run}` had {case.measured.requests:.0f} requests, but {case.scenario} has "
                f"{requests}; set workload.requests"
            )
        policy = case.measured.policy or scenario.policy
        if policy == BEST_STATIC:
            raise UserError(f"run `{case.measured.run}`: a fit needs one policy, not {BEST_STATIC}; name static-K")
        check_policy(policy)
    return cases


def _coefficient(text: str, read: Mapping[str, Scenario]) -> Coefficient:
    from turbospec.files.suggestions import nearest
    from turbospec_sim.calibration import Coefficient

    name, colon, fields = text.rpartition(":")
    if colon and name not in read:
        raise UserError(f"--fit {text}: {name or 'nothing'} is not one of the scenarios; {nearest(name, read)}")
    try:
        return Coefficient.of(text, fields.split(","), {name: read[name]} if colon else read)
    except UserError as error:
        raise UserError(f"--fit {error}") from error


def _check_number(coefficients: Sequence[Coefficient], cases: Sequence[Case]) -> None:
    seen: set[tuple[str, str]] = set()
    for one in coefficients:
        pairs = {(name, field) for name in one.scenarios for field in one.fields}
        if twice := sorted(seen & pairs):
            raise UserError(f"--fit {one.name}: {twice[0][1]} is fitted already; name each field once")
        seen |= pairs
    figures = sum(len(case.measured.figures) for case in cases)
    if len(coefficients) > figures:
        raise UserError(f"{len(coefficients)} fields cannot be fitted to {figures} figures; fit fewer")


def _rows(found: Calibration) -> list[dict[str, Any]]:
    """One row per measured figure; simulated ones are geometric means over seeds, with their spread (NaN for one)."""
    mean = found.log_ratios.mean(axis=0)
    several = len(found.log_ratios) > 1
    spread = found.log_ratios.std(axis=0, ddof=1) if several else np.full(len(mean), math.nan)
    return [
        {
            "scenario": case.scenario,
            "policy": case.measured.policy or found.scenarios[case.scenario].policy,
            "request_rate": case.measured.rate,
            "figure": figure,
            "measured": case.measured.figures[figure],
            "simulated": case.measured.figures[figure] * math.exp(mean[place]),
            "error": math.exp(mean[place]) - 1.0,
            "spread_over_seeds": spread[place],
        }
        for place, (case, figure) in enumerate(found.figures)
    ]


def _document(found: Calibration, place: int) -> dict[str, Any]:
    one, (low, high) = found.coefficients[place], found.interval(place)
    return {
        "name": one.name,
        "fields": list(one.fields),
        "scenarios": list(one.scenarios),
        "start": one.start,
        "value": one.value(float(found.changes[place])),
        "low": low,
        "high": high,
        "log_standard_error": float(found.errors[place]),
    }


def _show(found: Calibration) -> None:
    rows = _rows(found)
    shown = table(
        "measured and simulated", "scenario", "policy", "req/s", "figure", "measured", "simulated", "error", "spread"
    )
    for row in rows:
        rate = "–" if row["request_rate"] is None else f"{row['request_rate']:g}"
        figures = (f"{row[name]:.4g}" for name in ("measured", "simulated"))
        spread = "–" if math.isnan(row["spread_over_seeds"]) else f"{row['spread_over_seeds']:.1%}"
        shown.add_row(row["scenario"], row["policy"], rate, row["figure"], *figures, f"{row['error']:+.1%}", spread)
    stdout.print(shown)
    for figure in dict.fromkeys(row["figure"] for row in rows):
        error = np.mean([abs(row["error"]) for row in rows if row["figure"] == figure])
        stdout.print(f"{figure}: mean absolute error {error:.1%}")
    if not found.coefficients:
        return
    shown = table("coefficients", "field", "start", "fitted", "approximate 95 % interval")
    for place, one in enumerate(found.coefficients):
        low, high = found.interval(place)
        value = f"{one.value(float(found.changes[place])):.4g}"
        shown.add_row(one.name, f"{one.start:.4g}", value, f"{low:.3g} to {high:.3g}")
    stdout.print(shown)
    if not found.converged:
        stdout.print("the fit has not converged; raise --evaluations")
    for name in found.at_limit:
        stdout.print(f"{name} changed as far as a fit allows; start from another value")
    for names in found.unidentified:
        what = " and ".join(names)
        said = "is not identified by these data" if len(names) == 1 else "cannot be told apart by these data"
        stdout.print(f"{what} {said}; set what you know otherwise, and leave it out of the fit")


def _write(folder: Path, texts: Mapping[str, str], found: Calibration) -> list[Path]:
    """Write the scenario files' texts with the fitted values; returns the files."""
    from turbospec.files.writing import write_whole
    from turbospec_sim.scenario_edit import with_values

    paths: list[Path] = []
    for name, text in texts.items():
        values = {
            field: one.value(float(change))
            for one, change in zip(found.coefficients, found.changes, strict=True)
            for field in one.fields
            if name in one.scenarios
        }
        paths.append(folder / f"{name}.yaml")
        write_whole(paths[-1], with_values(text, values))
    return paths
