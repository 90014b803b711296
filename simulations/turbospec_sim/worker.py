"""The program of a process that calls functions for the process that started it; see `processes`.

It is run as a file, not imported: it watches its stdin before anything large is imported, and the main module of a
user's script is never imported again. It ends when its stdin does, that is with the process that started it, however
that one ended.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
import traceback
from queue import SimpleQueue
from threading import Thread
from typing import BinaryIO

LENGTH = struct.Struct("!Q")
"""Before every message: its bytes."""


def send(stream: BinaryIO, message: bytes) -> None:
    """Write one message, pickled already."""
    stream.write(LENGTH.pack(len(message)))
    stream.write(message)
    stream.flush()


def receive(stream: BinaryIO) -> bytes:
    """Read one message, still pickled.

    Raises:
        EOFError: the stream has ended.
    """
    return _read(stream, LENGTH.unpack(_read(stream, LENGTH.size))[0])


def work() -> None:
    """Answer calls until stdin ends: (function, argument) becomes (result, None) or (None, exception)."""
    # A signal to the whole group of processes is answered by the process that started this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # What is printed must not come between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    calls: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_forward, args=(sys.stdin.buffer, calls), daemon=True).start()
    sys.path[:] = pickle.loads(calls.get())
    while True:
        answer = _answer(calls.get())
        try:
            send(answers, answer)
        except OSError:  # nobody reads it any more
            os._exit(0)


def _answer(call: bytes) -> bytes:
    try:
        function, argument = pickle.loads(call)
        return pickle.dumps((function(argument), None))
    except Exception as error:
        return pickle.dumps((None, _picklable(error)))


def _picklable(error: Exception) -> Exception:
    """The exception with its traceback as a note; another one in its place if it cannot be sent."""
    told = traceback.format_exc()
    try:
        error.add_note(told)
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__} in a worker:\n{told}")
    return error


def _forward(stream: BinaryIO, calls: SimpleQueue[bytes]) -> None:
    try:
        while True:
            calls.put(receive(stream))
    finally:
        # Without waiting for the call in progress, which may take hours.
        os._exit(0)


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


if __name__ == "__main__":
    work()
