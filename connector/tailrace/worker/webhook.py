"""One call of a webhook: a POST that is over in time, whatever the other side does.

A socket's own timeout is per step, and a server that sends a byte now and then never runs into it. Here one deadline
holds for the whole call. Redirects are not followed: they would take the headers, which are secrets, to an address
nobody chose. Of the answer only its status is looked at.

What is said about a call names neither the address behind the host, which often holds a token, nor a header, nor
anything the server sent: it may echo both.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import SplitResult, urlsplit

from tailrace import __version__
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

OURS = {"Content-Type": "application/json", "User-Agent": f"tailrace/{__version__}", "Connection": "close"}
_RESERVED = {name.lower() for name in OURS} | {"host", "content-length", "transfer-encoding", "accept-encoding"}
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t -~]*")


class Verdict(Enum):
    """What a call came to: done, not worth another try, or worth one."""

    TOLD = "told"
    REFUSED = "refused"
    FAILED = "failed"


class Answer(NamedTuple):
    verdict: Verdict
    words: str


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """Whom to tell, and how often at most: once per `interval` for the same reason and type."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 5.0
    interval: float = 60.0

    def __post_init__(self) -> None:
        _parts(self.url)
        for name, value in self.headers.items():
            if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
                raise ConfigError(
                    f"the webhook's header {name!r} cannot be sent",
                    why="It is not a header's name, or one that Tailrace sets itself.",
                    remedy="Remove it, or correct its name.",
                )
            if not _VALUE.fullmatch(value):
                raise ConfigError(
                    f"the value of the webhook's header {name} cannot be sent",
                    why="A header's value is one line of ASCII; this one has a line break or another character in it.",
                    remedy="Look at the variable or file it comes from: a line break at its end is easily missed.",
                )

    @property
    def place(self) -> str:
        """The address as far as it may be shown."""
        parts = _parts(self.url)
        return f"{parts.scheme}://{parts.netloc}"


class WebhookCaller:
    """Calls one address. Certificates are verified against the system's, or those that SSL_CERT_FILE names."""

    def __init__(self, options: WebhookOptions) -> None:
        parts = _parts(options.url)
        self._timeout = options.timeout
        self._host = cast(str, parts.hostname)
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {**OURS, **options.headers}
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection

    def post(self, body: bytes, seconds: float) -> Answer:
        """One call, within `seconds` and the webhook's own timeout. Never raises."""
        seconds = min(seconds, self._timeout)
        try:
            return _judged(self._status(body, time.monotonic() + seconds))
        except TimeoutError:
            return Answer(Verdict.FAILED, f"no answer within {max(seconds, 0.0):.1f} s")
        except ssl.SSLCertVerificationError as error:
            return Answer(Verdict.FAILED, f"its certificate is not accepted: {error.verify_message}")
        except OSError as error:
            return Answer(Verdict.FAILED, error.strerror or type(error).__name__)
        except Exception as error:  # noqa: BLE001 - a stranger's server must not end the thread that calls it
            # Its name only: such errors quote what the server sent.
            return Answer(Verdict.FAILED, f"what it answers is not HTTP ({type(error).__name__})")

    def _status(self, body: bytes, deadline: float) -> int:
        with self._connected(deadline) as sock:
            connection = self._kind(self._host, self._port)
            connection.sock = cast(socket.socket, _InTime(sock, deadline))
            connection.request("POST", self._path, body, self._headers)
            with connection.getresponse() as response:
                return response.status

    def _connected(self, deadline: float) -> socket.socket:
        sock = socket.create_connection((self._host, self._port), _left(deadline))
        if self._tls is None:
            return sock
        try:
            sock.settimeout(_left(deadline))
            return self._tls.wrap_socket(sock, server_hostname=self._host)
        except BaseException:
            sock.close()
            raise


class _InTime:
    """What http.client uses of a socket, each step with what is left of the time. Closing it is the caller's."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(_left(self._deadline))
        self._sock.sendall(data)

    def receive(self, buffer: WriteableBuffer) -> int:
        self._sock.settimeout(_left(self._deadline))
        return self._sock.recv_into(buffer)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Received(self))

    def close(self) -> None:
        pass


class _Received(io.RawIOBase):
    def __init__(self, source: _InTime) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._source.receive(buffer)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _judged(status: int) -> Answer:
    if 200 <= status < 300:
        return Answer(Verdict.TOLD, f"status {status}")
    if 300 <= status < 400:
        return Answer(Verdict.REFUSED, f"status {status}, a redirect, which is not followed")
    again = status in (408, 429) or not 400 <= status < 500
    return Answer(Verdict.FAILED if again else Verdict.REFUSED, f"status {status}")


def _parts(url: str) -> SplitResult:
    """The address in parts; the error does not repeat it, because of what it may hold."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not re.fullmatch(r"[!-~]+", url) or "@" in parts.netloc or "#" in url:
        raise ConfigError(
            "the webhook's address cannot be used",
            why="It is http:// or https://, a host and perhaps a port and a path, in ASCII, without user and password.",
            remedy="Write it like https://hooks.example.org/tailrace, and credentials as a header.",
        )
    return parts
