"""Runs one case in a child process of its own: a fork, in which the heavy modules are there already, or a new one.

The child has a session, a folder, limits and streams of its own, and no right to ignore permissions, even as root. All
processes that it leaves behind are found and ended.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import hashlib
import io
import os
import resource
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from tests.fuzz import template
from tests.fuzz.case import Case
from tests.fuzz.places import make_places

SECONDS = 30.0
"""Time of a case; it is then ended, and has hung. Where others use the machine too, it takes its share longer."""
MOST_LONGER = 4.0
GRACE_SECONDS = 3.0
"""Time for its children to end after it."""
FILE_BYTES = 256 * 2**20
MEMORY_BYTES = 4 * 2**30
"""Added to what the forked process has already."""
TORCH_CACHE = "torchinductor_"
"""Torch makes this folder among the temporary files, and keeps it."""
HASHED_BYTES = 2 * 2**20
CAPABILITIES = (0, 1, 2, 3, 4, 27)
"""chown, dac_override, dac_read_search, fowner, fsetid, mknod."""
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER = 1, 24, 36
_libc = ctypes.CDLL(None, use_errno=True)

Entry = tuple[str, ...]
"""What a path is: its kind, and what must not change about it."""


@dataclass(slots=True)
class Outcome:
    """How a case ended."""

    code: int
    """The exit code; minus the number of the signal that ended it."""
    out: str
    err: str
    seconds: float
    hung: bool
    left: list[str]
    """Command lines of the processes that outlived it."""
    before: dict[str, Entry] = field(default_factory=dict[str, Entry])
    """Everything in its folder."""
    after: dict[str, Entry] = field(default_factory=dict[str, Entry])
    folder: Path = Path()
    report: str = ""
    """The traceback that the last boundary kept; where the case hung, where it did."""
    temporary: tuple[str, ...] = ()
    """Other temporary files that are left."""


def adopt_orphans() -> None:
    """Make this process the parent of whatever its children leave behind."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run(case: Case, folder: Path, stock: Path, server: str, seconds: float = SECONDS) -> Outcome:
    """Run a case in `folder`, which is made."""
    work = folder / "work"
    folder.mkdir(parents=True)
    shutil.copytree(stock, work)
    make_places(work / "places")
    for name in ("home", "tmp", "streams"):
        (folder / name).mkdir()
    _place_files(case, work)
    before = _entries(work)
    began = time.monotonic()
    process = os.fork()
    if not process:
        be_child(case, folder, server)
    hung, code = _wait(process, began + seconds * _longer())
    seconds = time.monotonic() - began
    left = left_behind()
    out, err = (_text(folder / "streams" / name) for name in ("out", "err"))
    reports = [*(folder / "tmp").glob("turbospec-error-*")]
    left_files = [path for path in (folder / "tmp").iterdir() if path not in reports]
    temporary = tuple(path.name for path in left_files if not path.name.startswith(TORCH_CACHE))
    report = "".join(map(_text, [*reports, *(folder / "streams").glob("hang")]))
    return Outcome(code, out, err, seconds, hung, left, before, _entries(work), work, report, temporary)


def _text(path: Path) -> str:
    return path.read_bytes()[:HASHED_BYTES].decode("utf-8", "replace")


def _place_files(case: Case, work: Path) -> None:
    for name, content in case.files.items():
        path = work / name
        path.unlink(missing_ok=True)
        if content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                path.symlink_to(content)
            else:
                path.write_bytes(content)


def _entries(work: Path) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for folder, folders, files in os.walk(work):
        for name in [*folders, *files]:
            path = Path(folder, name)
            about = path.lstat()
            kind = stat.filemode(about.st_mode)
            if stat.S_ISREG(about.st_mode):
                entry = (kind[0], str(about.st_size), _digest(path, about.st_size))
            elif stat.S_ISLNK(about.st_mode):
                entry = (kind[0], os.readlink(path))
            elif stat.S_ISDIR(about.st_mode):
                entry = (kind[0],)
            else:
                entry = (kind[0], str(about.st_rdev), str(about.st_ino))
            found[str(path.relative_to(work))] = entry
    return found


def _digest(path: Path, size: int) -> str:
    with contextlib.suppress(OSError):
        return hashlib.sha256(path.read_bytes()).hexdigest() if size <= HASHED_BYTES else ""
    return ""


def _longer() -> float:
    """By how much other processes slow this one down, about."""
    return min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), MOST_LONGER)


def _wait(process: int, deadline: float) -> tuple[bool, int]:
    """Wait for the child; whether it hung, and its exit code."""
    pause = 0.002
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return False, os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            return True, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        time.sleep(pause)
        pause = min(pause * 1.3, 0.05)


def left_behind(seconds: float = GRACE_SECONDS) -> list[str]:
    """Command lines of children that do not end by themselves in some seconds; they are ended."""
    deadline = time.monotonic() + seconds
    while children := _children():
        if time.monotonic() > deadline:
            names = [_command_line(child) for child in children]
            for child in children:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.05)
            _children()
            return names
        time.sleep(0.02)
    return []


def _children() -> list[int]:
    """Children of this process that run, those of ended cases among them; ended ones are reaped."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _command_line(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")[:200]
    return "?"


def be_child(case: Case, folder: Path, server: str) -> NoReturn:
    """In a forked process: run a case in its folder, and end with its exit code."""
    code = 1
    try:
        os.setsid()
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.chdir(folder / "work")
        arguments = [
            word.replace("{server}", f"http://{server}")
            .replace("{host}", server)
            .replace("{folder}", str(folder / "work"))
            for word in case.arguments
        ]
        _environment(case, folder)
        _limits()
        _drop_capabilities()
        # Opened while the three streams are, so that it does not take the place of one.
        where = (folder / "streams" / "hang").open("w")
        _streams(case, folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if case.real:
            # As the installed command does it.
            start = "import sys; sys.argv[0] = 'turbospec'; from turbospec.cli import main; sys.exit(main())"
            words = [sys.executable, "-c", start, *arguments]
            os.execv(sys.executable, [os.fsencode(word.replace("\0", "")) for word in words])
        faulthandler.dump_traceback_later(SECONDS * _longer() - 2.0, file=where)
        template.after_fork(arguments)
        code = _main(arguments)
    except BaseException:
        with contextlib.suppress(BaseException):
            os.write(2, b"harness: " + traceback.format_exc().encode())
    finally:
        os._exit(code)


def _main(arguments: list[str]) -> int:
    """What an interpreter does with the command: its exit code, and what happens at the end."""
    for name in [name for name in sys.modules if name.split(".")[:2] == ["turbospec", "cli"]]:
        del sys.modules[name]  # they look at the streams and the environment as they are imported
    tempfile.tempdir = None
    sys.argv = ["turbospec", *arguments]
    code = 0
    try:
        import turbospec.cli

        turbospec.cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
    except BaseException:
        if sys.stderr is not None:
            traceback.print_exc()
        code = 1
    with contextlib.suppress(BaseException):
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception as error:
            with contextlib.suppress(Exception):
                os.write(2, f"Exception ignored on flushing: {error!r}\n".encode())
            code = 120
    return code & 0xFF


def _environment(case: Case, folder: Path) -> None:
    own = {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "PATH": os.environ.get("PATH", ""),
        # Cases share the cores: a thread that spins at an OpenMP barrier delays the thread that it waits for.
        "OMP_WAIT_POLICY": "passive",
    }
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "LANG", "VIRTUAL_ENV") if name in os.environ}
    given = {name: value.replace("{folder}", str(folder / "work")) for name, value in case.environment.items()}
    os.environ.clear()
    os.environ.update(kept | own | given)


def _limits() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for limit, value in (
        (resource.RLIMIT_AS, used + MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))


def _drop_capabilities() -> None:
    """Root that has to respect permissions, as everybody else."""
    if os.geteuid():
        return
    for capability in CAPABILITIES:
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    dropped = sum(1 << capability for capability in CAPABILITIES)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    if _libc.capget(header, data) == 0:
        for word in range(3):
            data[word] &= ~dropped
        _libc.capset(header, data)


def _streams(case: Case, folder: Path) -> None:
    """Replace the three streams, and Python's objects for them."""
    kinds: tuple[tuple[str, int, Callable[[], int]], ...] = (
        (case.stdin, 0, lambda: os.open(case.stdin, os.O_RDONLY)),
        (case.stdout, 1, lambda: os.open(folder / "streams" / "out", os.O_WRONLY | os.O_CREAT)),
        (case.stderr, 2, lambda: os.open(folder / "streams" / "err", os.O_WRONLY | os.O_CREAT)),
    )
    for name in ("out", "err"):
        (folder / "streams" / name).touch()
    opened: list[int] = []
    for kind, number, usual in kinds:
        if kind == "closed":
            opened.append(-1)
        elif kind == "full" and number:
            opened.append(os.open("/dev/full", os.O_WRONLY))
        elif kind == "pipe" and number:
            reading, writing = os.pipe()
            os.close(reading)
            opened.append(writing)
        else:
            opened.append(usual())
    for number, descriptor in enumerate(opened):
        if descriptor < 0:
            os.close(number)
        else:
            os.dup2(descriptor, number)
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8:").partition(":")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream: io.TextIOWrapper | None = None
        if opened[number] >= 0:
            how = errors or ("backslashreplace" if number == 2 else "strict")
            raw = io.FileIO(number, "wb" if number else "rb", closefd=False)
            buffered = io.BufferedWriter(raw) if number else io.BufferedReader(raw)
            stream = io.TextIOWrapper(buffered, encoding or "utf-8", how, line_buffering=number == 2)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
