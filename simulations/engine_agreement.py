"""Compare the simulator with the embedded engine, run by run, on a benchmark that kept its traces.

    turbospec bench --workload code --drafter good --concurrency 8 --json runs/agreement.json --traces runs/agreement
    python simulations/engine_agreement.py runs/agreement.json runs/agreement

Every counted run is simulated with its own requests, clients and drafts: once with the step times that were measured
before the benchmark, once with those of the run itself.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from turbospec.errors import UserError
from turbospec.telemetry.trace_folder import TraceFolder
from turbospec_sim.replay.agreement import (
    BY_PROFILE,
    BY_TRACE,
    FIGURES,
    Agreement,
    agreements,
    mean_and_worst,
    read_rows,
)
from turbospec_sim.results import save

SOURCES = {BY_PROFILE: "step times of the profile", BY_TRACE: "step times of the run"}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("results", type=Path, help="what `turbospec bench --json` wrote")
    arguments.add_argument("traces", type=Path, help="folder that was given to it as --traces")
    arguments.add_argument("--json", type=Path, help="file for the figures of every run")
    options = arguments.parse_args()
    try:
        found = list(agreements(read_rows(options.results), TraceFolder(options.traces)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{'simulated / measured − 1':38}" + "".join(f"{source:>36}" for source in SOURCES.values()))
    print(f"{'run':38}" + f"{'tokens/s':>12}{'TPOT':>12}{'TTFT':>12}" * len(SOURCES))
    for run in [agreement for agreement in found if agreement.step_times == BY_PROFILE]:
        print(f"{_name(run):38}" + "".join(_errors(_same_run(found, run, source)) for source in SOURCES))
    summaries = {source: _of(found, source) for source in SOURCES}
    for place, name in enumerate(("mean, without sign", "worst")):
        values = [mean_and_worst(runs, figure)[place] for runs in summaries.values() for figure in FIGURES]
        print(f"{name:38}" + "".join(f"{value:12.1%}" if place == 0 else f"{value:+12.1%}" for value in values))
    if options.json is not None:
        meta = {"results": str(options.results), "traces": str(options.traces)}
        save(options.json, meta, [dict(agreement.document()) for agreement in found])


def _of(found: list[Agreement], source: str) -> list[Agreement]:
    return [agreement for agreement in found if agreement.step_times == source]


def _same_run(found: list[Agreement], run: Agreement, source: str) -> Agreement:
    return next(agreement for agreement in _of(found, source) if agreement.run == run.run)


def _name(run: Agreement) -> str:
    late = "" if run.emit == "before_draft" else f":{run.emit}"
    return f"{run.cell.name} {run.policy}{late} {run.number}"


def _errors(run: Agreement) -> str:
    return "".join(f"{run.error(figure):+12.1%}" for figure in FIGURES)


if __name__ == "__main__":
    main()
