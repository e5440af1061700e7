"""Bounds one request to a schema registry in time, size and retries, and words every failure.

The client library waits as long as any bytes arrive and reads answers of any size. Here a request has one deadline,
which includes its retries. Read timeouts cannot enforce it, because each byte of a slow answer starts a new one; so a
timer closes the connection at the deadline. An answer larger than MAX_BYTES is rejected.

Only temporary failures are retried. Messages quote the registry's own error text, shortened. They never quote another
server's text, nor the library's text about a request, which may contain a credential.
"""

from __future__ import annotations

import importlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from tailrace.errors import RegistryRefused, RegistryUnavailable, SchemaError, TailraceError

T = TypeVar("T")

MAX_BYTES = 16 * 1024 * 1024
"""Of one answer: enough for a hundred thousand subjects, or a schema far larger than a registry accepts."""
ATTEMPTS = 3
FIRST_PAUSE = 0.1
SHOWN = 300
"""Characters of a registry's own error text that are shown."""
_SUBJECT_CODES = range(40400, 40500)
_UNSENT = "The request cannot be sent: a credential contains a character that is not allowed in a header."


class NotRegistered(Exception):
    """The registry has no such subject, version or schema."""


class _Unfit(Exception):
    """An answer that is not read to its end."""


class Calls:
    """Runs requests through the library's HTTP sessions, one at a time.

    `hidden` are values that no message may show.
    """

    def __init__(self, sessions: Sequence[Any], url: str, timeout: float, hidden: Sequence[str] = ()) -> None:
        self._url = url
        self._timeout = timeout
        self._hidden = hidden
        self._lock = threading.Lock()
        # The library uses one of two HTTP clients.
        self._http: Any = importlib.import_module(type(sessions[0]).__module__.partition(".")[0])
        self._deadline = 0.0
        self._socket: socket.socket | None = None
        for session in sessions:
            session.event_hooks = {"request": [self._prepare], "response": [self._limit]}
            # A compressed answer could be small on the wire and huge in memory.
            session.headers["Accept-Encoding"] = "identity"

    def ask(self, question: Callable[[], T]) -> T:
        """Returns what `question` returns. Raises NotRegistered, RegistryUnavailable, RegistryRefused or
        SchemaError."""
        with self._lock, self._until(time.monotonic() + self._timeout):
            pause = FIRST_PAUSE
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    return question()
                except Exception as error:  # noqa: BLE001 - the library raises anything
                    failure = self._translated(error)
                if attempt == ATTEMPTS or not isinstance(failure, RegistryUnavailable):
                    break
                if time.monotonic() + pause >= self._deadline:
                    break
                time.sleep(pause)
                pause *= 2
            raise failure

    @contextmanager
    def _until(self, deadline: float) -> Iterator[None]:
        self._deadline = deadline
        timer = threading.Timer(deadline - time.monotonic(), self._hang_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _hang_up(self) -> None:
        """Wakes the thread that waits for the connection. Uses the plain socket's method, without a TLS goodbye."""
        connection = self._socket
        if connection is not None:
            try:
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed already

    def _prepare(self, request: Any) -> None:  # noqa: ANN401
        left = max(self._deadline - time.monotonic(), 0.001)
        request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), left)
        request.extensions["trace"] = self._connected

    def _connected(self, event: str, info: dict[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")

    def _limit(self, response: Any) -> None:  # noqa: ANN401
        if response.headers.get("content-encoding", "identity") != "identity":
            raise _Unfit("its answer is compressed, which was not requested")
        inner = response.stream

        class Counted(self._http.SyncByteStream):  # type: ignore[misc,name-defined]
            def __iter__(self) -> Iterator[bytes]:
                size = 0
                for chunk in inner:
                    size += len(chunk)
                    if size > MAX_BYTES:
                        raise _Unfit(f"its answer is larger than {MAX_BYTES:,} bytes")
                    yield chunk

            def close(self) -> None:
                inner.close()

        response.stream = Counted()

    def _translated(self, error: Exception) -> Exception:
        status = getattr(error, "http_status_code", None)
        if isinstance(status, int):
            code, message = getattr(error, "error_code", None), getattr(error, "error_message", None)
            # An answer without an error code does not come from a registry.
            own = isinstance(code, int) and code > 0 and isinstance(message, str)
            return _of_status(status, code, self._quoted(str(message)) if own else "", self._url)
        if isinstance(error, _Unfit):
            return _no_registry(self._url, f"{str(error)[:1].upper()}{str(error)[1:]}.")
        cause = _cause(error, ssl.SSLError)
        # A connection that is cut during the TLS handshake says nothing about certificates.
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return _no_trust(cause, self._url)
        if isinstance(error, self._http.LocalProtocolError):
            return RegistryRefused(
                f"the schema registry at {self._url} cannot be asked",
                why=_UNSENT,
                remedy="Remove line breaks from the registry's settings: a file with a token often ends in one.",
            )
        if type(error).__name__ == "OAuthTokenError" and not _cause(error, self._http.TransportError):
            return RegistryRefused(
                f"no token for the schema registry at {self._url} was granted",
                why="The token endpoint rejected the credentials, or is not a token endpoint.",
                remedy="Check bearer.auth.issuer.endpoint.url, bearer.auth.client.id and bearer.auth.client.secret.",
            )
        if _cause(error, self._http.TransportError):
            return self._away(error)
        if isinstance(error, ValueError | TypeError | KeyError | AttributeError | RecursionError):
            return _no_registry(self._url, "Its answer is not the JSON of a registry.")
        return error

    def _away(self, error: Exception) -> RegistryUnavailable:
        peer = (
            "token endpoint of the schema registry" if type(error).__name__ == "OAuthTokenError" else "schema registry"
        )
        system = _cause(error, OSError)
        if time.monotonic() >= self._deadline or _cause(error, self._http.TimeoutException):
            why = f"There was no complete answer within {self._timeout:g} s."
        elif isinstance(system, OSError) and system.strerror:
            why = f"{system.strerror}."
        else:
            why = "The connection ended before the answer was complete."
        return RegistryUnavailable(
            f"the {peer} at {self._url} cannot be reached",
            why=why,
            remedy="Check that it runs and that this machine can reach it.",
        )

    def _quoted(self, text: str) -> str:
        for value in self._hidden:
            text = text.replace(value, "***")
        plain = " ".join(text.split())
        return plain if len(plain) <= SHOWN else plain[:SHOWN] + "…"


def _of_status(status: int, code: object, quoted: str, url: str) -> Exception:
    """Words an HTTP status. `code` and `quoted` come from the registry, if the answer was a registry's."""
    if status == 404 and code in _SUBJECT_CODES:
        return NotRegistered(quoted)
    if status in {401, 403}:
        known = "rejects these credentials" if status == 401 else "denies these credentials access"
        return RegistryRefused(
            f"the schema registry at {url} {known} (HTTP {status})",
            why=quoted,
            remedy="Set basic.auth.user.info or bearer.auth.* among the registry's settings to a user with the rights.",
        )
    if status in {408, 429} or status >= 500:
        late = "asks for fewer requests" if status == 429 else "cannot answer now"
        return RegistryUnavailable(
            f"the schema registry at {url} {late} (HTTP {status})", why=quoted, remedy="See the registry's log."
        )
    if 300 <= status < 400:
        return RegistryRefused(
            f"the schema registry at {url} redirects the request (HTTP {status})",
            why="Redirects are not followed, because they could send the credentials to another host.",
            remedy="Set the registry's url to its final address.",
        )
    if status in {409, 422}:
        refusal = "is not compatible with what is registered" if status == 409 else "is not valid"
        return SchemaError(
            f"the schema registry rejects the schema: it {refusal} (HTTP {status})",
            why=quoted,
            remedy="Change the schema, or the compatibility level of its subject.",
        )
    return _no_registry(url, f"It answers HTTP {status}. {quoted}".strip())


def _no_registry(url: str, why: str) -> TailraceError:
    return RegistryRefused(
        f"there is no schema registry at {url}",
        why=why,
        remedy="Set the registry's url to the root of its Confluent-compatible API: the address before /subjects.",
    )


def _no_trust(cause: ssl.SSLError, url: str) -> TailraceError:
    said = cause.verify_message if isinstance(cause, ssl.SSLCertVerificationError) else cause.reason
    return RegistryRefused(
        f"no trusted connection to the schema registry at {url}",
        why=f"TLS: {said or type(cause).__name__}.",
        remedy="Set ssl.ca.location to the certificate of the authority that signed the registry's, and check that the "
        "url names the host of the certificate.",
    )


def _cause(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    """Returns the first error of type `kind` in the chain of causes."""
    for _ in range(20):
        if error is None or isinstance(error, kind):
            return error
        error = error.__cause__ or error.__context__
    return None
