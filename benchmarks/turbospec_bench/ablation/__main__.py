"""Switches off one mechanism of `adaptive` at a time, simulates, and prints what each earns.

python -m turbospec_bench.ablation --seeds 4 --jobs 2 --json ablation.json --markdown ablation.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from turbospec.errors import UserError, exit_on_user_error
from turbospec.files.suggestions import nearest
from turbospec.files.writing import check_outputs, write_whole
from turbospec_bench.ablation.cases import (
    CONCURRENCIES,
    PROFILES,
    AnyCase,
    RecordedCase,
    changing_cases,
    shipped_cases,
    synthetic_cases,
)
from turbospec_bench.ablation.checkpoint import Checkpoint, sources_digest
from turbospec_bench.ablation.mechanisms import MECHANISMS, NOTHING
from turbospec_bench.ablation.runs import Part, Row, fixed_lengths, run_cases
from turbospec_bench.ablation.table import GOODPUT, best_fixed, descriptions, effect, markdown, plain_text, table
from turbospec_sim.arguments import positive
from turbospec_sim.backends import workers

CHUNK = 4
"""Runs that a process does in one go."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        Its exit status.

    Raises:
        UserError: an option is wrong, or a file cannot be read or written.
    """
    options = _options(arguments)
    check_outputs(options.json, options.markdown, inputs=options.trace)
    cases = _cases(options)
    mechanisms = _mechanisms(options.mechanism)
    checkpoint = Checkpoint(options.json, {"sources": sources_digest(options.trace), "shorter": options.shorter})
    wanted: list[Part] = []
    for seed in range(options.seeds):
        for name in (NOTHING.name, *mechanisms):
            wanted += [(case, name, seed) for case in cases]
        if options.fixed:
            wanted += [(case, name, seed) for case in cases for name in fixed_lengths(case)]
    confirmed: set[tuple[str, str]] = set()
    try:
        _run_all(wanted, checkpoint, options.jobs)
        if options.confirm:
            parts = _unclear(cases, mechanisms, checkpoint.rows, options)
            confirmed = {(case.name, mechanism) for case, mechanism, _ in parts if mechanism != NOTHING.name}
            _run_all(parts, checkpoint, options.jobs)
    finally:
        checkpoint.save()
    names = {case.name for case in cases}
    seeds = options.seeds + options.confirm
    rows = [row for row in checkpoint.rows if row["case"] in names and row["seed"] < seeds]
    # The first seeds chose these cases by the effect that they showed.
    rows = [row for row in rows if row["seed"] >= options.seeds or (row["case"], row["mechanism"]) not in confirmed]
    lines, fixed = table(rows, cases), best_fixed(rows)
    print(plain_text(lines))
    if len(fixed) > 1:
        print("\n" + plain_text(fixed))
    if options.markdown is not None:
        parts = [markdown(each) for each in (descriptions(), lines, fixed) if len(each) > 1]
        write_whole(options.markdown, "\n\n".join(parts) + "\n")
    return 0


def _run_all(wanted: Sequence[Part], checkpoint: Checkpoint, jobs: int) -> None:
    """Run what the checkpoint lacks."""
    missing = [part for part in wanted if (part[0].name, part[1], part[2]) not in checkpoint]
    print(f"{len(wanted)} runs, {len(wanted) - len(missing)} of them done before", file=sys.stderr)
    chunks = [missing[place : place + CHUNK] for place in range(0, len(missing), CHUNK)]
    for _, rows in workers("local", jobs).map(run_cases, chunks):
        for row in rows:
            checkpoint.add(row)


def _unclear(
    cases: Sequence[AnyCase], mechanisms: Sequence[str], rows: Sequence[Row], options: argparse.Namespace
) -> list[Part]:
    """Further seeds of the cases in which a mechanism seems to earn or to cost something."""
    first = [row for row in rows if row["seed"] < options.seeds]
    parts: dict[tuple[str, str, int], Part] = {}
    for mechanism in mechanisms:
        found = effect(first, mechanism, GOODPUT, {case.name for case in cases})
        chosen = {*found.losing(), *found.gaining()}
        for case in cases:
            if case.name in chosen:
                for seed in range(options.seeds, options.seeds + options.confirm):
                    for name in (NOTHING.name, mechanism):
                        parts[case.name, name, seed] = (case, name, seed)
    return list(parts.values())


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m turbospec_bench.ablation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=positive, default=2, help="seeds of each run (default 2)")
    parser.add_argument(
        "--confirm",
        type=positive,
        default=0,
        help="further seeds where a mechanism earns or costs 0.5 %%; they replace the first ones there (default 0)",
    )
    parser.add_argument("--jobs", type=positive, default=1, help="processes (default 1)")
    parser.add_argument("--shorter", type=float, default=1.0, help="factor by which runs are shorter (default 1)")
    parser.add_argument(
        "--only", action="append", metavar="PATTERN", help="cases or groups, such as 'gpu-8b 64 *'; repeat"
    )
    parser.add_argument("--mechanism", action="append", metavar="NAME", help="what is switched off; repeat; all")
    parser.add_argument("--concurrency", type=positive, action="append", help="of the synthetic engines; repeat")
    parser.add_argument("--profile", choices=PROFILES, action="append", help="of the synthetic engines; repeat")
    parser.add_argument("--trace", type=Path, action="append", default=[], help="decision trace to replay too; repeat")
    parser.add_argument("--fixed", action="store_true", help="compare `adaptive` with all fixed draft lengths too")
    parser.add_argument("--json", type=Path, help="file for the rows; those that it has are not simulated again")
    parser.add_argument("--markdown", type=Path, help="file for the tables")
    return parser.parse_args(arguments)


def _cases(options: argparse.Namespace) -> list[AnyCase]:
    if not 1.0 <= options.shorter <= 1000.0:
        raise UserError("--shorter: a factor from 1 to 1000")
    found: list[AnyCase] = [
        *shipped_cases(options.shorter),
        *synthetic_cases(
            options.shorter,
            concurrencies=options.concurrency or CONCURRENCIES,
            profiles=options.profile or PROFILES,
        ),
        *changing_cases(),
        *(RecordedCase(path) for path in options.trace),
    ]
    if options.only is None:
        return found
    for pattern in options.only:
        if not any(_matches(case, pattern) for case in found):
            groups = {group for case in found for group in case.groups}
            raise UserError(f"--only {pattern}: no such case or group; {nearest(pattern, groups)}")
    return [case for case in found if any(_matches(case, pattern) for pattern in options.only)]


def _matches(case: AnyCase, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (case.name, *case.groups))


def _mechanisms(names: list[str] | None) -> list[str]:
    for name in names or ():
        if name not in MECHANISMS:
            raise UserError(f"--mechanism {name}: no such mechanism; {nearest(name, MECHANISMS)}")
    return list(MECHANISMS) if names is None else names


if __name__ == "__main__":
    with exit_on_user_error():
        sys.exit(main())
