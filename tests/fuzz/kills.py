"""Ends commands at random moments by SIGKILL, SIGTERM and SIGINT, and checks what is left.

    python -m tests.fuzz.kills --moments 50 --seed 1

Files must be whole or absent, no process may outlive the command by 5 s, nothing temporary may be left by SIGTERM or
SIGINT, and `--resume` must complete to the rows of a run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz import sandbox
from tests.fuzz.case import Case
from tests.fuzz.parameters import parameters
from tests.fuzz.places import make_places
from tests.fuzz.runner import remove, workplace
from tests.fuzz.sound import BENCH

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
END_SECONDS = 5.0
"""Time for all processes to end after a signal."""
LONGEST_SECONDS = 120.0
REQUESTS = 400
"""Of a simulated run, so that a command takes seconds."""


@dataclass(frozen=True, slots=True)
class Job:
    """A command that is ended."""

    line: str
    results: str
    """The file that it can be resumed from; empty where there is none."""
    outputs: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.line.split())

    @property
    def can_resume(self) -> bool:
        return any(one.command == self.words[:1] and one.name == "--resume" for one in parameters())


JOBS = (
    Job(
        "simulate scenario.yaml --policy static-1 --policy adaptive --seeds 12 --jobs 2 --json out.json "
        "--report out.html",
        "out.json",
        ("out.json", "out.html"),
    ),
    Job(
        "tune scenario.yaml --write new.yaml --trials 6 --seeds 2 --held-out 2 --jobs 2 --json out.json",
        "out.json",
        ("out.json", "new.yaml"),
    ),
    Job(
        "calibrate scenario.yaml --measured measured.csv --fit latency.verify_floor_seconds --seeds 2 --jobs 2 "
        "--evaluations 2 --json out.json --write new",
        "",
        ("out.json", "new/scenario.yaml"),
    ),
    Job(
        f"{BENCH} --concurrency 2 --policy static-2 --policy adaptive --report out.html --pictures pictures "
        "--traces traces",
        "out.json",
        ("out.json", "out.html"),
    ),
)


class Killer:
    """Runs jobs in folders of their own.

    Args:
        scratch: a folder for all of them.
        rng: draws jobs, moments and signals.
    """

    def __init__(self, scratch: Path, rng: random.Random) -> None:
        self._scratch = scratch
        self._rng = rng
        self._number = 0
        self._undisturbed: dict[Job, tuple[float, Any]] = {}

    def end_one(self, job: Job, number: signal.Signals) -> list[str]:
        """End a job at a random moment; what is wrong then."""
        seconds, rows = self._reference(job)
        folder = self._folder()
        moment = self._rng.uniform(0.0, seconds)
        code = self._run(job.words, folder, moment, number)
        where = f"{job.words[0]} ended by {number.name} after {moment:.2f} of {seconds:.2f} s"
        faults = [f"{where}: {fault}" for fault in self._left(job, folder, code, number)]
        if job.results and (folder / "work" / job.results).exists() and not faults and job.can_resume:
            words = [*job.words, "--resume", job.results]
            place = words.index("--json")
            del words[place : place + 2]
            if "--write" in words and (folder / "work/new.yaml").exists():  # ended after its policy was written
                words.append("--overwrite")
            code = self._run(tuple(words), folder)
            if code != 0:
                said = (folder / "streams/err").read_text().strip().splitlines()[-1:]
                faults.append(f"{where}: --resume ends with {code}: {said}")
            elif (resumed := _rows(job, folder)) != rows:
                faults.append(f"{where}: --resume completes to other rows: {_difference(rows, resumed)}")
        remove(folder)
        return faults

    def _reference(self, job: Job) -> tuple[float, Any]:
        """Seconds and rows of a run that nobody disturbs."""
        if job not in self._undisturbed:
            folder = self._folder()
            began = time.monotonic()
            code = self._run(job.words, folder)
            assert code == 0, (folder / "streams/err").read_text()
            self._undisturbed[job] = time.monotonic() - began, _rows(job, folder)
            remove(folder)
        return self._undisturbed[job]

    def _folder(self) -> Path:
        self._number += 1
        folder = self._scratch / f"run-{self._number}"
        shutil.copytree(self._scratch / "stock", folder / "work")
        make_places(folder / "work/places")
        for name in ("home", "tmp", "streams"):
            (folder / name).mkdir()
        return folder

    def _run(
        self, words: tuple[str, ...], folder: Path, moment: float | None = None, number: signal.Signals = signal.SIGKILL
    ) -> int:
        """Run a command and send it a signal after a time; its exit code."""
        process = os.fork()
        if not process:
            sandbox.be_child(Case("", words), folder, "")
        if moment is not None:
            deadline = time.monotonic() + moment
            while time.monotonic() < deadline and not _has_ended(process):
                time.sleep(0.01)
            if number == signal.SIGINT:
                os.killpg(process, number)  # Ctrl-C reaches all processes of the terminal
            else:
                os.kill(process, number)
        deadline = time.monotonic() + (LONGEST_SECONDS if moment is None else END_SECONDS)
        while not _has_ended(process):
            if time.monotonic() > deadline:
                os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)
                return -1000
            time.sleep(0.01)
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

    def _left(self, job: Job, folder: Path, code: int, number: signal.Signals) -> Iterator[str]:
        """What is wrong with what a command left."""
        if code == -1000:
            yield f"runs on after {END_SECONDS:.0f} s"
        if left := sandbox.left_behind(END_SECONDS):
            yield f"{len(left)} processes left: {left[0]}"
        if number != signal.SIGKILL and code not in (0, 128 + number, -number):
            said = (folder / "streams/err").read_text()[-300:]
            yield f"exit code {code}: {said}"
        work = folder / "work"
        for name in job.outputs:
            if (work / name).exists() and (why := _not_whole(work / name)):
                yield f"{name} is torn: {why}"
        if number != signal.SIGKILL:
            stray = [*work.rglob("*.part"), *(folder / "tmp").iterdir()]
            if stray := [path.name for path in stray if path.name != f"torchinductor_{os.environ.get('USER', 'root')}"]:
                yield f"temporary files left: {', '.join(stray)}"


def end_all(scratch: Path, moments: int, seed: int, jobs: tuple[Job, ...] = JOBS) -> Iterator[tuple[str, list[str]]]:
    """End jobs by turns, in a `workplace`; the name of each, and what was wrong."""
    scenario = scratch / "stock/scenario.yaml"
    scenario.write_text(scenario.read_text().replace("requests: 12", f"requests: {REQUESTS}"))
    sandbox.adopt_orphans()
    known = {one.command[0] + one.name for one in parameters()}
    killer = Killer(scratch, random.Random(seed))
    for moment in range(moments):
        job = _possible(jobs[moment % len(jobs)], known)
        number = SIGNALS[(moment // len(jobs)) % len(SIGNALS)]
        yield f"{job.words[0]} {number.name}", killer.end_one(job, number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", help="only commands with these names, separated by commas")
    options = parser.parse_args()
    jobs = tuple(job for job in JOBS if not options.jobs or job.words[0] in options.jobs.split(","))
    ended = failed = 0
    with workplace() as scratch:
        for name, faults in end_all(scratch, options.moments, options.seed, jobs):
            ended += 1
            failed += bool(faults)
            print(f"{ended}: {name}: {'; '.join(faults) or 'well'}", flush=True)
    print(f"{ended} commands ended, {failed} badly")
    return 1 if failed else 0


def _possible(job: Job, known: set[str]) -> Job:
    """The job without options that its command lacks."""
    words = list(job.words)
    for option in [word for word in words if word.startswith("--") and job.words[0] + word not in known]:
        place = words.index(option)
        del words[place : place + 2]
    return Job(" ".join(words), job.results, job.outputs)


def _has_ended(process: int) -> bool:
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _not_whole(path: Path) -> str:
    text = path.read_text()
    if path.suffix == ".html":
        return "" if text.rstrip().endswith("</html>") else "no end"
    if path.suffix == ".yaml":
        return "" if text.startswith(("#", "version")) and text.endswith("\n") else "no end"
    try:
        document = json.loads(text)
    except ValueError as error:
        return str(error)
    return "" if {"meta", "rows"} <= document.keys() else "no meta or rows"


def _rows(job: Job, folder: Path) -> Any:
    """What must be the same after `--resume`: all rows but their wall time; of a benchmark, what was measured."""
    path = folder / "work" / job.results
    if not job.results or not path.exists():
        return None
    rows = json.loads(path.read_text())["rows"]
    if job.words[0] == "bench":
        return [{name: row[name] for name in ("workload", "drafter", "concurrency", "policy", "emit")} for row in rows]
    return [{name: value for name, value in row.items() if name != "wall_seconds"} for row in rows]


def _difference(before: Any, after: Any) -> str:
    if before is None or after is None or len(before) != len(after):
        return f"{'none' if after is None else len(after)}, not {'none' if before is None else len(before)}"
    for place, (one, other) in enumerate(zip(before, after, strict=True)):
        if one != other:
            names = [name for name in {*one, *other} if one.get(name) != other.get(name)]
            return f"row {place}: {names[0]}: {one.get(names[0])}, then {other.get(names[0])}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
