"""The kept corpus: command lines that once failed, one file each.

python -m tests.fuzz.replay --jobs 2                        # run all of them again
python -m tests.fuzz.replay add KEPT/12.json long-name      # from the folder of `command_lines --keep`
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.case import dump, load
from tests.fuzz.runner import run, workplace

CORPUS = Path(__file__).with_name("corpus")
MAX_BYTES = 60_000
"""Of a file of the corpus."""


def add(file: Path, name: str) -> None:
    """Put a case into the corpus."""
    path = CORPUS / f"{name}.json"
    dump(load(file), path)
    if path.stat().st_size > MAX_BYTES:
        path.unlink()
        sys.exit(f"{file}: too large for the corpus, of which no file has more than {MAX_BYTES} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="add FILE NAME")
    parser.add_argument("--jobs", type=int, default=1, help="cases that run at once")
    options = parser.parse_args()
    if options.words:
        _, file, name = options.words
        add(Path(file), name)
        return 0
    names = sorted(path.stem for path in CORPUS.glob("*.json"))
    with workplace() as scratch:
        tally = run(scratch, names, lambda name: load(CORPUS / f"{name}.json"), jobs=options.jobs)
    print(f"{len(tally.cases)} cases of the corpus, {len(tally.failed)} failed")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
