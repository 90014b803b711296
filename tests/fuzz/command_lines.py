"""Runs hostile command lines and tells which of them end in anything but a result or one line.

    python -m tests.fuzz.command_lines --cases 2000 --seed 1 --jobs 2

A case that fails is printed with its number. `--only NUMBER --keep FOLDER` runs it again and keeps the case and what it
wrote to stderr, with the traceback; `python -m tests.fuzz.replay add` puts it into the corpus.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.fuzz.hostile import Hostile
from tests.fuzz.runner import run, workplace


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="cases that run at once")
    parser.add_argument("--only", help="numbers of the cases to run, separated by commas")
    parser.add_argument("--keep", type=Path, help="folder for the cases that fail")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no case begins later")
    options = parser.parse_args()
    numbers = options.only.split(",") if options.only else range(options.first, options.first + options.cases)
    began = time.monotonic()
    with workplace() as scratch:
        hostile = Hostile(scratch / "stock", options.seed)
        tally = run(
            scratch,
            [str(number) for number in numbers],
            lambda name: hostile.case(int(name)),
            jobs=options.jobs,
            keep=options.keep,
            seconds=options.seconds,
        )
    print(f"{len(tally.cases)} cases of seed {options.seed} in {time.monotonic() - began:.0f} s")
    tally.show()
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
