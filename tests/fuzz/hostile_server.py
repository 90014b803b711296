"""An HTTP server that misbehaves: the first part of a path names how. It runs in a process of its own."""

from __future__ import annotations

import os
import random
import socket
import socketserver
import time
from collections.abc import Iterator
from contextlib import suppress

from tests.fuzz.contents import mutated_metrics
from tests.fuzz.stock import METRICS

DRIP_SECONDS = 1.0
END_SECONDS = 60.0
"""No answer lasts longer, so that a client that waits for ever is told from one with a deadline."""
PLAIN = {
    "empty": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "close": b"",
    "garbage": b"\x00\xffnonsense\r\n\r\n\x01\x02",
    "http09": METRICS.encode(),
    "nul": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n\x00\x00\x00\x00\x00",
    "many-headers": b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(5000)) + b"\r\n",
    "long-header": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    "truncated": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nvllm:x 1\n",
    "chunked-garbage": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\nabc\r\n",
    "chunked-truncated": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nabc",
    "chunked-huge": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc",
    "chunked-negative": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc\r\n",
    "length-negative": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n" + METRICS.encode(),
    "length-huge": b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 400 + b"\r\n\r\n" + METRICS.encode(),
    "length-x": b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n" + METRICS.encode(),
    "gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x08\x00",
    "latin": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-16\r\n\r\n\xff\xfe\xe9",
    "html": b"HTTP/1.1 200 OK\r\n\r\n<html>[/red][bold</html>",
    "json": b'HTTP/1.1 200 OK\r\n\r\n{"detail": "[/red]"}',
    "other": b"HTTP/1.1 200 OK\r\n\r\nother_total 3\nvllm:num_requests_running 1\n",
    "two-answers": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n# HTTP/1.1 500 No\r\n\r\n",
    "markup": b"HTTP/1.1 500 [/red][bold\x1b[31m\r\n\r\n",
}


class _Answer(socketserver.StreamRequestHandler):
    timeout = END_SECONDS

    def handle(self) -> None:
        with suppress(OSError):
            words = self.rfile.readline(200_000).split()
            while self.rfile.readline(200_000).strip():
                pass
            path = words[1].decode("latin-1") if len(words) > 1 else "/"
            self._end = time.monotonic() + END_SECONDS
            for piece in self._pieces([part for part in path.split("/") if part]):
                self.wfile.write(piece)
                if time.monotonic() > self._end:
                    break

    def _pieces(self, parts: list[str]) -> Iterator[bytes]:
        kind = parts[0] if parts else "file"
        if kind in PLAIN:
            yield PLAIN[kind]
            return
        ok = b"HTTP/1.1 200 OK\r\n"
        match kind:
            case "status":
                yield f"HTTP/1.1 {parts[1]} No\r\nWWW-Authenticate: Basic\r\nLocation: /\r\n\r\nno".encode()
            case "page":
                page = mutated_metrics(METRICS.encode(), random.Random(parts[1]))
                yield ok + b"\r\n" + page
            case "restarted":  # counts go up and down
                yield ok + b"\r\n" + METRICS.replace("600.0", f"{random.randrange(2000)}").encode()
            case "redirect":
                to = {
                    "loop": "/redirect/loop",
                    "file": "file:///etc/passwd",
                    "ftp": "ftp://127.0.0.1:1/",
                    "garbage": "http://[x:y",
                }
                yield f"HTTP/1.1 302 Found\r\nLocation: {to.get(parts[1], 'http://u:hunter2secret@127.0.0.1:1/')}\r\n\r\n".encode()
            case "idle":
                time.sleep(END_SECONDS)
            case "drip" | "drip-header" | "drip-body":
                text = ok + b"\r\n" + METRICS.encode()
                start = {"drip": 0, "drip-header": 12, "drip-body": len(ok) + 2}[kind]
                yield text[:start]
                for place in range(start, len(text)):
                    time.sleep(DRIP_SECONDS)
                    yield text[place : place + 1]
            case "endless":
                yield ok + b"\r\n"
                while True:
                    yield b"vllm:x_total 1\n" * 4096
            case "endless-line":
                yield ok + b"\r\n"
                while True:
                    yield b"x" * 65536
            case "endless-headers":
                yield ok
                while True:
                    yield b"X: 1\r\n"
            case _:
                yield ok + b"\r\n" + METRICS.encode()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # it is meant to break


class HostileServer:
    """The server; a context that is left stops it. `address` is HOST:PORT."""

    def __init__(self) -> None:
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        self.address = f"127.0.0.1:{listening.getsockname()[1]}"
        parent = os.getpid()
        self._process = os.fork()
        if not self._process:
            try:
                server = _Server(("127.0.0.1", 0), _Answer, bind_and_activate=False)
                server.socket.close()
                server.socket = listening
                server.timeout = 1.0
                while os.getppid() == parent:
                    server.handle_request()
            finally:
                os._exit(0)
        listening.close()

    def __enter__(self) -> HostileServer:
        return self

    def __exit__(self, *error: object) -> None:
        os.kill(self._process, 9)
        os.waitpid(self._process, 0)
