"""Two processes write one file while a third reads it.

python -m tests.fuzz.two_writers --times 5000
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from turbospec.files import write_whole

WRITERS = 2


@dataclass(slots=True)
class Seen:
    """What the reader saw."""

    reads: int = 0
    torn: int = 0
    failed_writers: int = 0
    left: tuple[str, ...] = ()
    """Files beside the one that was written."""

    @property
    def well(self) -> bool:
        return self.reads > 0 and not (self.torn or self.failed_writers or self.left)


def collide(folder: Path, times: int) -> Seen:
    """Write `folder`/results.json that often from each of two processes, and read it meanwhile."""
    path = folder / "results.json"
    write_whole(path, _text(0, 0))
    writers = [_start(lambda writer=writer: _write(path, writer, times)) for writer in range(WRITERS)]
    seen = Seen()
    running = set(writers)
    while running:
        seen.reads += 1
        seen.torn += not _is_whole(path.read_text(encoding="utf-8"))
        for process in [*running]:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                running.remove(process)
                seen.failed_writers += status != 0
    seen.left = tuple(sorted(each.name for each in folder.iterdir() if each != path))
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5000)
    with tempfile.TemporaryDirectory() as folder:
        seen = collide(Path(folder), parser.parse_args().times)
    print(seen)
    return 0 if seen.well else 1


def _write(path: Path, writer: int, times: int) -> None:
    for time in range(times):
        write_whole(path, _text(writer, time))


def _text(writer: int, time: int) -> str:
    """Long enough for several blocks of a file system, and of changing length."""
    return json.dumps(
        {"writer": writer, "time": time, "rows": [[writer, time]] * (100 + 37 * time % 1500), "end": time}
    )


def _is_whole(text: str) -> bool:
    try:
        document = json.loads(text)
    except ValueError:
        return False
    return document["time"] == document["end"] and all(row == document["rows"][0] for row in document["rows"])


def _start(work: Callable[[], None]) -> int:
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
