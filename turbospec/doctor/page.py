"""Reads the answer of an HTTP server: within a deadline for the whole conversation, of bounded size.

Built on `HTTPResponse` and plain sockets, because urllib's timeout is one for each read: a server that sends a byte a
second is never late. Proxies of the environment are not used; the server is reached directly.
"""

from __future__ import annotations

import base64
import io
import socket
import ssl
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse, IncompleteRead
from threading import Thread
from typing import Any, cast
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from turbospec.errors import UserError

DEADLINE_SECONDS = 10.0
"""For the whole conversation: look-up of the name, connections, redirects and bodies."""
MAX_BYTES = 64 * 2**20
"""Of all answers together, with their headers."""
PART_BYTES = 64 * 2**10
MAX_REDIRECTS = 3
PORTS = {"http": 80, "https": 443}
EXAMPLE = "http://127.0.0.1:8000"

ADVICE = {
    401: "put a user and a password into the address, http://USER:PASSWORD@HOST; no other authentication is supported",
    403: "ask for access, or give the address of the vLLM server itself, without a proxy before it",
}
"""What to do, by HTTP status."""
SERVER_FAILS = "the server fails; see its log"
NO_VLLM = f"give the address of a vLLM server, such as {EXAMPLE}"


@dataclass(slots=True, frozen=True)
class Address:
    """A place on an HTTP server. Its text has neither user nor password nor query, so that it can be printed."""

    scheme: str
    host: str
    port: int
    path: str
    query: str = ""
    authorization: str | None = None
    """Value of the HTTP header: user and password of the URL."""

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address that a URL names.

        Raises:
            UserError: it is not an http or https URL with a host.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
            host = parts.hostname
        except ValueError:  # its text may quote the password
            raise _no_address(url) from None
        # A user or a password with a slash in it ends the host too soon, and would be printed as the path.
        astray = "@" in url and "@" not in parts.netloc
        if parts.scheme not in PORTS or not host or astray or not url.isprintable() or " " in url:
            raise _no_address(url)
        return cls(
            parts.scheme,
            host,
            PORTS[parts.scheme] if port is None else port,
            quote(parts.path, safe="/%:@!$&'()*+,;=~") or "/",
            quote(parts.query, safe="/%:@!$&'()*+,;=~?"),
            _basic(parts),
        )

    def __str__(self) -> str:
        port = "" if self.port == PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self._bracketed}{port}{self.path}"

    def redirected(self, location: str) -> Address:
        """The address that this one redirects to. User and password go with it to the same server only.

        Raises:
            UserError: it is not an http or https URL.
        """
        try:
            target = Address.parse(urljoin(str(self), location))
        except (UserError, ValueError):
            raise UserError(f"{self} redirects to what is no address; {NO_VLLM}") from None
        if (target.scheme, target.host, target.port) != (self.scheme, self.host, self.port):
            return target
        return replace(target, authorization=self.authorization)

    def request(self) -> bytes:
        """The request for this page.

        Raises:
            UnicodeError: the host is not a name.
        """
        host = self._bracketed.encode("ascii" if self.host.isascii() else "idna").decode()
        lines = [
            f"GET {self.path}{'?' if self.query else ''}{self.query} HTTP/1.1",
            f"Host: {host}:{self.port}",
            "User-Agent: turbospec",
            "Accept: text/plain",
            "Accept-Encoding: identity",
            "Connection: close",
        ]
        if self.authorization is not None:
            lines.append(f"Authorization: {self.authorization}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def read_page(address: Address) -> bytes:
    """The body of the answer to a GET request.

    Raises:
        UserError: there is no complete answer with status 200 within `DEADLINE_SECONDS` and `MAX_BYTES`.
    """
    conversation = _Conversation()
    for _ in range(MAX_REDIRECTS + 1):
        try:
            status, location, body = _answer(address, conversation)
        except (OSError, HTTPException, ValueError) as error:
            raise UserError(f"{address} {_in_words(error)}") from error
        if status == HTTPStatus.OK:
            return body
        if location is None:
            raise UserError(f"{address} answers {_status(status)}; {_advice(status)}")
        address = address.redirected(location)
    raise UserError(f"{address}: redirected more than {MAX_REDIRECTS} times; {NO_VLLM}")


class _TooLong(OSError):
    """More bytes than `MAX_BYTES`."""


class _Conversation:
    """The time and the bytes that are left for a request, its redirects included."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + DEADLINE_SECONDS
        self._bytes = MAX_BYTES

    def seconds_left(self) -> float:
        """Seconds until the deadline, above 0.

        Raises:
            TimeoutError: there are none.
        """
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def count(self, received: int) -> None:
        """Count received bytes.

        Raises:
            _TooLong: there are too many.
        """
        self._bytes -= received
        if self._bytes < 0:
            raise _TooLong


class _Received(io.RawIOBase):
    """What a socket receives, as a file. Every read has the conversation's remaining time as its timeout."""

    def __init__(self, connection: socket.socket, conversation: _Conversation) -> None:
        self._connection = connection
        self._conversation = conversation

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(self._conversation.seconds_left())
        received = self._connection.recv_into(buffer)
        self._conversation.count(received)
        return received

    def makefile(self, mode: str) -> io.BufferedReader:
        """Stands for the socket, of which `HTTPResponse` needs this method alone."""
        return io.BufferedReader(self)


def _answer(address: Address, conversation: _Conversation) -> tuple[int, str | None, bytes]:
    """Status, target of a redirect, and body where the status is 200."""
    with _connect(address, conversation) as connection:
        connection.settimeout(conversation.seconds_left())
        connection.sendall(address.request())
        with HTTPResponse(cast(Any, _Received(connection, conversation)), method="GET") as response:
            response.begin()
            if response.status in (301, 302, 303, 307, 308) and (location := response.headers.get("Location")):
                return response.status, location, b""
            if response.status != HTTPStatus.OK:
                return response.status, None, b""
            if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
                raise HTTPException(f"its content is encoded as {encoding[:20]!r}")
            return response.status, None, _body(response)


def _connect(address: Address, conversation: _Conversation) -> socket.socket:
    """A connection to the first address of the host that takes one."""
    failed: OSError | None = None
    for family, kind, protocol, _, place in _look_up(address, conversation):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(conversation.seconds_left())
            connection.connect(place)
            if address.scheme == "https":
                connection = ssl.create_default_context().wrap_socket(connection, server_hostname=address.host)
        except OSError as error:
            connection.close()
            failed = error
        else:
            return connection
    raise failed or socket.gaierror(0, "no address")


def _look_up(address: Address, conversation: _Conversation) -> list[Any]:
    """The addresses of a host. In a thread, because the system's look-up has no timeout."""
    found = Future[list[Any]]()

    def look_up() -> None:
        try:
            found.set_result(socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))
        except Exception as error:
            found.set_exception(error)

    Thread(target=look_up, daemon=True).start()
    return found.result(conversation.seconds_left())


def _body(response: HTTPResponse) -> bytes:
    """The body, read in parts: a server may announce more than there is memory for."""
    parts: list[bytes] = []
    while part := response.read(PART_BYTES):
        parts.append(part)
    if response.length:
        raise IncompleteRead(b"", response.length)
    return b"".join(parts)


def _in_words(error: Exception) -> str:
    """What went wrong and what to do, as the predicate of a sentence about the server."""
    # Some quote what the server sent.
    reason = getattr(error, "strerror", None) or str(error)[:100].encode("unicode_escape").decode()
    match error:
        case _TooLong():
            return f"sends more than {MAX_BYTES // 2**20} MiB; {NO_VLLM}"
        case TimeoutError():
            return f"gives no complete answer within {DEADLINE_SECONDS:g} s; is the server up, and is this its port?"
        case socket.gaierror() | UnicodeError():
            return f"does not answer (the host is unknown: {reason}); is its name right?"
        case ssl.SSLCertVerificationError():
            why = error.verify_message
            return f"shows no certificate to be trusted ({why}); name that of its authority in SSL_CERT_FILE"
        case ssl.SSLError():
            return f"does not speak TLS ({error.reason or reason}); does the address begin with http://?"
        case HTTPException() | ValueError():
            return (
                f"gives no answer that can be read ({type(error).__name__}{': ' if reason else ''}{reason}); {NO_VLLM}"
            )
        case _:
            return f"does not answer ({reason}); is the server up, and is this its port?"


def _status(status: int) -> str:
    """Such as `404 Not Found`; the words are the standard's, not the server's."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _advice(status: int) -> str:
    return ADVICE.get(status, SERVER_FAILS if status >= 500 else NO_VLLM)


def _basic(parts: SplitResult) -> str | None:
    if parts.username is None:
        return None
    text = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {base64.b64encode(text.encode('utf-8', errors='replace')).decode()}"


def _no_address(url: str) -> UserError:
    shown = url.rpartition("@")[2].partition("?")[0]
    return UserError(f"{shown[:200]}: not an address; give one such as {EXAMPLE}")
