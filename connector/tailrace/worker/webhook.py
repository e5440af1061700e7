"""Calls the webhook that receives alerts: one POST with one deadline.

The timeout of a socket bounds a single read, so a timer ends the call of a server that answers a byte at a time.
Redirects are not followed: they would send the headers, which are secrets, to an address that nobody chose. Only the
status of the response is used.

Messages about a call name the scheme and host only: the path often holds a token, and the server may echo secrets.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, cast
from urllib.parse import SplitResult, urlsplit

from tailrace import __version__
from tailrace.errors import ConfigError

OWN_HEADERS = {"Content-Type": "application/json", "User-Agent": f"tailrace/{__version__}", "Connection": "close"}
_RESERVED = {name.lower() for name in OWN_HEADERS} | {"host", "content-length", "transfer-encoding", "accept-encoding"}
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t -~]*")


class CallOutcome(Enum):
    """Whether a call succeeded, must not be repeated, or may be repeated."""

    DELIVERED = "delivered"
    REFUSED = "refused"
    FAILED = "failed"


class CallResult(NamedTuple):
    outcome: CallOutcome
    detail: str


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """The address and headers of the webhook; at most one call per `interval` for the same reason and type."""

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
                    why="It is not a valid header name, or Tailrace sets this header itself.",
                    remedy="Remove the header, or correct its name.",
                )
            if not _VALUE.fullmatch(value):
                raise ConfigError(
                    f"the value of the webhook's header {name} cannot be sent",
                    why="A header value is one line of ASCII. This one contains a line break or another character.",
                    remedy="Check the variable or file that it comes from, especially for a line break at its end.",
                )

    @property
    def host(self) -> str:
        """Scheme, host and port: the part of the address that may be shown."""
        parts = _parts(self.url)
        return f"{parts.scheme}://{parts.netloc}"


class WebhookCaller:
    """Posts to one address. Certificates are verified with the system's CAs, or those of SSL_CERT_FILE."""

    def __init__(self, options: WebhookOptions) -> None:
        parts = _parts(options.url)
        self._timeout = options.timeout
        self._host, self._port = cast(str, parts.hostname), parts.port
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {**OWN_HEADERS, **options.headers}
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None

    def post(self, body: bytes, seconds: float) -> CallResult:
        """Calls once, within `seconds` and the webhook's timeout. Never raises."""
        seconds = max(min(seconds, self._timeout), 0.001)
        expired = threading.Event()
        try:
            return _result(self._status(body, seconds, expired))
        except ssl.SSLCertVerificationError as error:
            return CallResult(CallOutcome.FAILED, f"its certificate is not accepted: {error.verify_message}")
        except Exception as error:  # noqa: BLE001 - an answer of any kind must not end the thread that sends alerts
            if expired.is_set() or isinstance(error, TimeoutError):
                return CallResult(CallOutcome.FAILED, f"no answer within {seconds:.1f} s")
            if isinstance(error, OSError):
                return CallResult(CallOutcome.FAILED, error.strerror or type(error).__name__)
            # Only the name of the error: its text quotes what the server sent.
            return CallResult(CallOutcome.FAILED, f"its answer is not HTTP ({type(error).__name__})")

    def _status(self, body: bytes, seconds: float, expired: threading.Event) -> int:
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        else:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=self._tls)

        def expire() -> None:
            expired.set()
            with suppress(OSError, AttributeError):  # not connected, or closed at this moment
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            connection.request("POST", self._path, body, self._headers)
            with connection.getresponse() as response:
                if expired.is_set():
                    raise TimeoutError  # a response cut off within its headers looks complete
                return response.status
        finally:
            timer.cancel()
            connection.close()


def _result(status: int) -> CallResult:
    if 200 <= status < 300:
        return CallResult(CallOutcome.DELIVERED, f"status {status}")
    if 300 <= status < 400:
        return CallResult(CallOutcome.REFUSED, f"status {status}, a redirect, which is not followed")
    may_pass = status in (408, 429) or not 400 <= status < 500
    return CallResult(CallOutcome.FAILED if may_pass else CallOutcome.REFUSED, f"status {status}")


def _parts(url: str) -> SplitResult:
    """Splits the address. The error does not repeat it, because it may contain a secret."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not re.fullmatch(r"[!-~]+", url) or "@" in parts.netloc or "#" in url:
        raise ConfigError(
            "the webhook's address cannot be used",
            why="It must be http:// or https:// with a host, in ASCII, and without user and password.",
            remedy="Write it like https://hooks.example.org/tailrace, and put credentials into a header.",
        )
    return parts
