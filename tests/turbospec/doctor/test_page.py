"""Answers of servers that are hostile, broken or slow. They speak bytes, as an HTTP server would send none of them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread

import pytest

from turbospec.doctor import page
from turbospec.doctor.page import Address, read_page
from turbospec.errors import UserError

OK = b"HTTP/1.1 200 OK\r\n"
Reply = Callable[[socket.socket], None]


class Server:
    """Listens on a port of this machine, and replies to each connection as told."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/metrics"
        self.reply: Reply = lambda connection: None
        self.requests: list[bytes] = []
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                with connection, suppress(OSError):  # the client hangs up
                    self.requests.append(connection.recv(65536))
                    self.reply(connection)

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    serving = Server()
    yield serving
    serving.close()


def saying(*parts: bytes) -> Reply:
    def reply(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)

    return reply


def read(url: str) -> bytes:
    return read_page(Address.parse(url))


def refused(url: str) -> str:
    """The error of reading a page: one short line without control characters."""
    with pytest.raises(UserError) as error:
        read(url)
    line = str(error.value)
    assert len(line) < 400
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK + b"Content-Length: 3\r\n\r\nabc", b"abc"),
        (OK + b"\r\nabc", b"abc"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n", b"abc"),
        (OK + b"Content-Length: -5\r\n\r\nabc", b"abc"),
        (OK + b"Content-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"\r\nabc", b"abc"),
    ],
)
def test_complete_answers_are_read(server: Server, answer: bytes, body: bytes) -> None:
    server.reply = saying(answer)
    assert read(server.url) == body
    assert b"Accept-Encoding: identity\r\n" in server.requests[0]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x00\x00",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 99999 OK\r\n\r\n",
        b"HTTP/1.1",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 101 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 " + b"2" * 70_000,
        b"HTTP/1.1 200 \x1b[31m\r\nContent-Encoding: \x1b[31m\r\n\r\n",
        OK + b"Content-Length: 10\r\n\r\nabc",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\nab",
        OK + b"Transfer-Encoding: chunked\r\n\r\n-7\r\nab",
        OK + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffffffff\r\nab",
        OK + b"Transfer-Encoding: chunked\r\n\r\n",
        OK + b"Content-Encoding: gzip\r\n\r\n\x1f\x8b",
    ],
)
def test_answers_that_cannot_be_read_are_one_line(server: Server, answer: bytes) -> None:
    server.reply = saying(answer)
    line = refused(server.url)
    assert line.startswith(f"{server.url} gives no answer that can be read (")
    assert line.endswith("; give the address of a vLLM server, such as http://127.0.0.1:8000")
    assert line.isprintable()


def test_a_connection_that_is_reset_is_one_line(server: Server) -> None:
    def reply(connection: socket.socket) -> None:
        connection.sendall(OK + b"\r\nabc")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    server.reply = reply
    assert "does not answer (Connection reset by peer)" in refused(server.url)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (401, "answers 401 Unauthorized; put a user and a password into the address, http://USER:PASSWORD@HOST"),
        (403, "answers 403 Forbidden; ask for access"),
        (404, "answers 404 Not Found; give the address of a vLLM server"),
        (500, "answers 500 Internal Server Error; the server fails; see its log"),
        (503, "answers 503 Service Unavailable; the server fails; see its log"),
        (599, "answers 599; the server fails; see its log"),
        (204, "answers 204 No Content; give the address of a vLLM server"),
        (302, "answers 302 Found; give the address of a vLLM server"),
    ],
)
def test_other_statuses_are_answers(server: Server, status: int, says: str) -> None:
    server.reply = saying(f"HTTP/1.1 {status} \x1b[31mOh\r\n\r\n".encode())
    assert refused(server.url).startswith(f"{server.url} {says}")


def dripping(*parts: bytes) -> Reply:
    def reply(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)
        while True:
            connection.sendall(b"a")
            time.sleep(0.02)

    return reply


@pytest.mark.parametrize(
    "reply",
    [
        dripping(),
        dripping(OK + b"A: "),
        dripping(OK + b"\r\n"),
        dripping(OK + b"Content-Length: 1000000\r\n\r\n"),
        dripping(OK + b"Transfer-Encoding: chunked\r\n\r\nfffff\r\n"),
        dripping(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"),
        lambda connection: connection.recv(1),
    ],
)
def test_a_slow_server_is_left_at_the_deadline(server: Server, reply: Reply, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "DEADLINE_SECONDS", 0.2)
    server.reply = reply
    began = time.monotonic()
    assert "gives no complete answer within 0.2 s" in refused(server.url)
    assert time.monotonic() - began < 5.0


def endless(head: bytes, part: bytes) -> Reply:
    def reply(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(part)

    return reply


@pytest.mark.parametrize(
    "reply",
    [
        endless(OK + b"\r\n", b"a" * 65536),
        endless(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"400\r\n" + b"a" * 0x400 + b"\r\n"),
        endless(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"Trailer: a\r\n" * 1000),
        endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    ],
)
def test_an_endless_answer_is_left_at_the_bound(server: Server, reply: Reply, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_BYTES", 2**20)
    server.reply = reply
    assert "sends more than 1 MiB" in refused(server.url)


def moved(location: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {location}\r\n\r\n".encode()


def test_a_redirect_is_followed(server: Server) -> None:
    server.reply = lambda connection: connection.sendall(
        moved("/elsewhere?a=b") if len(server.requests) == 1 else OK + b"\r\nabc"
    )
    assert read(server.url.replace("http://", "http://me:secret@")) == b"abc"
    assert server.requests[1].startswith(b"GET /elsewhere?a=b HTTP/1.1\r\n")
    assert all(b"Authorization: Basic bWU6c2VjcmV0\r\n" in request for request in server.requests)


def test_a_password_is_not_sent_to_another_server(server: Server) -> None:
    other = Server()
    server.reply, other.reply = saying(moved(other.url)), saying(OK + b"\r\nabc")
    assert read(server.url.replace("http://", "http://me:secret@")) == b"abc"
    assert b"Authorization" not in other.requests[0]
    other.close()


def test_a_circle_of_redirects_ends(server: Server) -> None:
    server.reply = saying(moved("/metrics"))
    assert "redirected more than 3 times" in refused(server.url)
    assert len(server.requests) == 4


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/", "http://[", "//:x/", "http://a b/"])
def test_a_redirect_to_what_is_no_address_is_one_line(server: Server, location: str) -> None:
    server.reply = saying(moved(location))
    assert "redirects to what is no address" in refused(server.url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:1", "http://127.0.0.1:1/ does not answer (Connection refused); is the server up"),
        ("http://", "http://: not an address; give one such as http://"),
        ("127.0.0.1:8000", "127.0.0.1:8000: not an address; give one such as http://"),
        ("file:///etc/passwd", "file:///etc/passwd: not an address; give one such as http://"),
        ("http://127.0.0.1:99999", "http://127.0.0.1:99999: not an address"),
        ("http://127.0.0.1:abc", "http://127.0.0.1:abc: not an address"),
        ("http://127.0.0.1:-1", "http://127.0.0.1:-1: not an address"),
        ("http://[::1", "http://[::1: not an address"),
        ("http://127.0.0.1 :80/", "http://127.0.0.1 :80/: not an address"),
        ("http://127.0.0.1/\x1b[31m", "http://127.0.0.1/\x1b[31m: not an address"),
        ("http://a..b/", "http://a..b/ does not answer (the host is unknown: "),
        (f"http://{'a' * 300}/", f"http://{'a' * 300}/ does not answer (the host is unknown: "),
    ],
)
def test_an_address_that_leads_nowhere_is_the_users_mistake(url: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        read(url)
    assert str(error.value).startswith(says)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:hidden@127.0.0.1:1/x",
        "http://me:hid/den@127.0.0.1:1/x",
        "http://me:hid?den@127.0.0.1:1",
        "http://me:hid#den@127.0.0.1:1",
        "http://me:hidden@127.0.0.1:port",
        "http://127.0.0.1:1/?token=hidden",
        "me:hidden@127.0.0.1:1",
        "ftp://me:hidden@127.0.0.1",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    line = refused(url)
    assert "hid" not in line
    assert "den" not in line
    assert "127.0.0.1" in line


def test_a_look_up_that_takes_long_is_left_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "DEADLINE_SECONDS", 0.1)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(1.0))
    assert "gives no complete answer within 0.1 s" in refused("http://127.0.0.1/")


def test_a_server_without_tls_is_one_line(server: Server) -> None:
    server.reply = saying(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert "does not speak TLS" in refused(server.url.replace("http://", "https://"))


def test_proxies_of_the_environment_are_not_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    server.reply = saying(OK + b"\r\nabc")
    assert read(server.url) == b"abc"
