"""The last boundary of the command line: whatever a command raises becomes one line on stderr and an exit status."""

from __future__ import annotations

import errno
import io
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version

import typer

from turbospec.cli.console import printable
from turbospec.cli.signals import SignalsInterrupt
from turbospec.errors import UserError

USER_ERROR = 2
READER_GONE = 1
"""Exit status where stdout is a pipe whose reader has ended; what typer and rich exit with."""
INTERNAL_ERROR = 70
"""Exit status of a fault of TurboSpec itself; EX_SOFTWARE of sysexits.h."""
INTERRUPTED = 130

EXTRAS = {
    "engine": ("torch", "transformers", "safetensors", "tokenizers", "turbospec_engine"),
    "bench": ("matplotlib", "jinja2"),
    "ray": ("ray",),
}
"""Modules that an extra of the package installs."""

EXTRA_NAMES = {"engine": "the engine", "bench": "reports and pictures", "ray": "Ray"}


def guarded(command: Callable[[], int]) -> int:
    """Run a command and return its exit status. Its exceptions become one line on stderr.

    A user's mistake has status 2. An unexpected exception has status 70; its traceback is written to a file that the
    line names.
    """
    _prepare_streams()
    with SignalsInterrupt() as signals:
        try:
            status = command()
            sys.stdout.flush()
        except UserError as error:
            status = _fail(str(error))
        except typer.TyperException as error:
            # Some of these messages end with a full stop, some do not.
            message = error.format_message().rstrip(".")
            end = "" if message.endswith("?") else "."
            status = _fail(f"{message}{end} --help lists options and arguments.")
        except ModuleNotFoundError as error:
            status = _missing_package(error)
        except MemoryError as error:
            status = _fail(f"not enough memory ({error})" if str(error) else "not enough memory")
        except (KeyboardInterrupt, typer.Abort):
            status = INTERRUPTED
        except SystemExit as end:  # rich's, where it finds that the reader of a stream is gone
            status = end.code if isinstance(end.code, int) else READER_GONE
        except Exception as error:
            status = _stream_failed(error) if _is_of_stream(error) else _unexpected(error)
        if status == INTERRUPTED:  # typer turns KeyboardInterrupt into this status
            _say("interrupted")
            status = signals.exit_status
        _flush_stderr()
    return status


def _prepare_streams() -> None:
    """Open standard streams that were closed, and let none of them fail on a character that its encoding lacks."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            # Otherwise the next file that is opened gets the stream's number, and is written to by libraries.
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != descriptor:
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _fail(message: str, status: int = USER_ERROR) -> int:
    _say(f"error: {printable(message)}")
    return status


def _say(line: str) -> None:
    with suppress(OSError):  # stderr is full or gone: the exit status has to say it
        print(line, file=sys.stderr, flush=True)


def _flush_stderr() -> None:
    """Write what loggers have left in the buffer; where that fails, drop it, or the interpreter's end fails too."""
    try:
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr.fileno())


def _missing_package(error: ModuleNotFoundError) -> int:
    module = (error.name or "").partition(".")[0]
    extras = [name for name, modules in EXTRAS.items() if module in modules]
    if not extras:
        return _unexpected(error)
    # Not by the package's name, which is not on PyPI.
    ways = [f"{EXTRA_NAMES[extra]} with: pip install '.[{extra}]'" for extra in extras]
    return _fail(f"{module} is not installed; in a clone of TurboSpec get {', or '.join(ways)}")


def _is_of_stream(error: Exception) -> bool:
    """Whether a standard stream could not be written. Errors of files are UserErrors or name the file."""
    return (
        isinstance(error, OSError)
        and error.filename is None
        and error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF)
    )


def _stream_failed(error: Exception) -> int:
    assert isinstance(error, OSError)
    _discard(sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return READER_GONE
    return _fail(f"the output cannot be written ({error.strerror}); send stdout elsewhere")


def _discard(descriptor: int) -> None:
    """Send what is still buffered for a stream nowhere, so that it does not fail again when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _unexpected(error: Exception) -> int:
    what = type(error).__name__
    try:
        words = f": {error}" if str(error) else ""
    except Exception:  # of an exception class from elsewhere
        words = ""
    try:
        # Readable by this user only, because messages may quote files.
        descriptor, place = tempfile.mkstemp(prefix="turbospec-error-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"turbospec {version('turbospec')}, Python {platform.python_version()}, {platform.platform()}\n")
            traceback.print_exception(error, file=file)
    except OSError:
        place = "no file, because none can be written"
    return _fail(
        f"a fault of turbospec, not of yours ({what}{printable(words, 300)}); please report it with the traceback in "
        f"{place}",
        INTERNAL_ERROR,
    )
