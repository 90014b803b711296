"""Runs many cases in forked workers, prints those that fail as they come, and counts."""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Protocol

from tests.fuzz import sandbox, template
from tests.fuzz.case import Case, dump
from tests.fuzz.hostile_server import HostileServer
from tests.fuzz.judge import faults, is_serious
from tests.fuzz.stock import make_stock


class Counted(Protocol):
    """A number that processes share."""

    value: int


@dataclass(slots=True)
class Tally:
    """What came of the cases, by the name of each."""

    cases: dict[str, Case] = field(default_factory=dict[str, Case])
    faults: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Of the cases that failed."""

    @property
    def failed(self) -> list[str]:
        """Names of the cases in which something happened that never must."""
        return [name for name, found in self.faults.items() if any(map(is_serious, found))]

    def show(self) -> None:
        """Print the counts by class of input, and by kind of fault."""
        kinds = Counter(case.kind for case in self.cases.values())
        failed = Counter(self.cases[name].kind for name in self.failed)
        for kind, count in sorted(kinds.items()):
            print(f"  {kind:<14} {count:>6} cases {failed[kind]:>6} failed")
        words = Counter(fault.partition(":")[0] for found in self.faults.values() for fault in found)
        for word, count in words.most_common():
            print(f"  {word:<14} {count:>6}{'' if is_serious(word) else '  (listed apart)'}")


@contextmanager
def workplace() -> Generator[Path]:
    """A scratch folder with the stock in `stock`, in a process that can be forked."""
    # No `TemporaryDirectory`: the end of every forked case would remove it.
    scratch = Path(tempfile.mkdtemp(prefix="turbospec-fuzz-"))
    try:
        make_stock(scratch / "stock")
        template.prepare()
        yield scratch
    finally:
        remove(scratch)


def run(
    scratch: Path,
    names: Sequence[str],
    case_of: Callable[[str], Case],
    *,
    jobs: int = 1,
    keep: Path | None = None,
    seconds: float = float("inf"),
) -> Tally:
    """Run cases.

    Args:
        scratch: a `workplace`.
        names: of the cases.
        case_of: the case of a name.
        jobs: cases that run at once.
        keep: folder for the cases that fail.
        seconds: no case begins later.
    """
    tally = Tally()
    begun: Counted = multiprocessing.get_context("fork").Value("i", 0)
    end = time.monotonic() + seconds
    with HostileServer() as server:

        def one(name: str) -> list[str]:
            case = case_of(name)
            outcome = sandbox.run(case, scratch / f"case-{name}", scratch / "stock", server.address)
            found = faults(case, outcome)
            if keep is not None and found:
                keep.mkdir(parents=True, exist_ok=True)
                dump(case, keep / f"{name}.json")
                (keep / f"{name}.err").write_text(outcome.err + outcome.report, encoding="utf-8")
            remove(scratch / f"case-{name}")
            return found

        for line in _in_workers(jobs, lambda: _work(names, begun, end, one)):
            name, found = json.loads(line)
            tally.cases[name] = case_of(name)
            if found:
                tally.faults[name] = found
                print(f"{name}: {tally.cases[name].kind}: {tally.cases[name].line}")
                print("".join(f"    {fault}\n" for fault in found), end="", flush=True)
    return tally


def remove(folder: Path) -> None:
    """Remove a folder, whatever its permissions are."""
    for path, _, _ in os.walk(folder):
        with suppress(OSError):
            os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _work(
    names: Sequence[str], begun: Counted, end: float, one: Callable[[str], list[str]]
) -> Iterator[tuple[str, list[str]]]:
    """In a worker: take one name after another that no worker has begun."""
    sandbox.adopt_orphans()
    while time.monotonic() < end:
        with begun.get_lock():  # pyright: ignore[reportAttributeAccessIssue]
            place, begun.value = begun.value, begun.value + 1
        if place >= len(names):
            return
        yield names[place], one(names[place])


def _in_workers(jobs: int, work: Callable[[], Iterator[object]]) -> Iterator[str]:
    """Lines of JSON from forked processes, as they come.

    Raises:
        RuntimeError: a worker failed.
    """
    reading: dict[int, bytes] = {}
    processes: list[int] = []
    failed = False
    sys.stdout.flush()
    for _ in range(jobs):
        source, sink = os.pipe()
        process = os.fork()
        if not process:
            _report(sink, work())
        os.close(sink)
        processes.append(process)
        reading[source] = b""
    try:
        while reading:
            for source in select.select([*reading], [], [])[0]:
                data = os.read(source, 2**20)
                *lines, reading[source] = (reading[source] + data).split(b"\n")
                yield from (line.decode() for line in lines)
                if not data:
                    os.close(source)
                    del reading[source]
    finally:
        for process in processes:
            if reading:  # the caller takes no more
                os.kill(process, signal.SIGTERM)
            failed |= os.waitpid(process, 0)[1] != 0
    if failed:
        raise RuntimeError("a worker failed; its traceback is above")


def _report(sink: int, told: Iterator[object]) -> NoReturn:
    """In a worker: write what it tells, and end."""
    status = 1
    try:
        for each in told:
            os.write(sink, json.dumps(each).encode() + b"\n")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
