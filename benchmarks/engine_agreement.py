"""Compare the simulator with the embedded engine on a benchmark that kept its traces.

    turbospec bench --workload code --drafter good --concurrency 8 --json runs/agreement.json --traces runs/agreement
    python benchmarks/engine_agreement.py runs/agreement.json runs/agreement

Every counted run is simulated with its own requests, clients and drafts: once with the step times that were measured
before the benchmark, once with those of the other policies' runs, and once with those of the run itself. Shown are
medians over the rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from turbospec.errors import exit_on_user_error
from turbospec.files.results_file import save
from turbospec.files.writing import check_outputs
from turbospec_bench.agreement import (
    BY_OTHERS,
    BY_PROFILE,
    BY_TRACE,
    FIGURES,
    Agreement,
    agreements,
    median_errors,
    read_rows,
)
from turbospec_bench.trace_folder import TraceFolder

SOURCES = {BY_PROFILE: "those of the profile", BY_OTHERS: "of other policies' runs", BY_TRACE: "of the run"}
HEADS = ("tokens/s", "TPOT", "TTFT")
FIRST = 30
"""Width of the first column."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("results", type=Path, help="what `turbospec bench --json` wrote")
    arguments.add_argument("traces", type=Path, help="folder that was given to it as --traces")
    arguments.add_argument("--json", type=Path, help="file for the figures of every run")
    options = arguments.parse_args()
    with exit_on_user_error():
        check_outputs(options.json, inputs=[options.results])
        found = list(agreements(read_rows(options.results), TraceFolder(options.traces)))
        _show(found)
        if options.json is not None:
            meta = {"results": str(options.results), "traces": str(options.traces)}
            save(options.json, meta, [agreement.document() for agreement in found])


def _show(found: list[Agreement]) -> None:
    by_source = {source: [run for run in found if run.step_times == source] for source in SOURCES}
    columns = [median_errors(runs, figure) for runs in by_source.values() for figure in FIGURES]
    print(f"{'step times:':{FIRST}}" + "".join(f"{source:>27}" for source in SOURCES.values()))
    print(f"{'simulated / measured − 1':{FIRST}}" + "".join(f"{head:>9}" for head in HEADS) * len(SOURCES))
    for configuration, policy, emit in columns[-1]:
        late = "" if emit == "before_draft" else f":{emit}"
        _print(
            f"{configuration.name} {policy}{late}", [column.get((configuration, policy, emit)) for column in columns]
        )
    sizes = [[abs(error) for error in column.values()] for column in columns]
    _print("mean absolute", [sum(own) / len(own) if own else None for own in sizes])
    _print("worst", [max(column.values(), key=abs) if column else None for column in columns])


def _print(name: str, errors: Sequence[float | None]) -> None:
    print(f"{name:{FIRST}}" + "".join(f"{'–':>9}" if error is None else f"{error:+9.1%}" for error in errors))


if __name__ == "__main__":
    main()
