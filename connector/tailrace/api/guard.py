"""The guard of an HTTP port: authentication, roles, rates and the audit log, before anything else sees a request."""

from __future__ import annotations

import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailrace.api import access
from tailrace.api.access import IDENTITY, LOCAL, READING, Identity
from tailrace.api.audit import AUDIT_KEY, AuditedRequest, AuditLog, request_id
from tailrace.api.rates import MAX_KEYS, Rates, network_of
from tailrace.config.http_port import HttpSettings
from tailrace.errors import NotAuthenticated, NotAuthorized, TailraceError, TooManyRequests

PEER, CERTIFICATE = "peer", "client_certificate"
"""Keys of the state of a request: the address of the other end, and its verified certificate."""
JSON_API = "/api/v1"
CHALLENGE = b'Bearer realm="tailrace", Basic realm="tailrace", charset="UTF-8"'


class _RefusedRequest(NamedTuple):
    status: int
    error: TailraceError
    headers: tuple[tuple[bytes, bytes], ...] = ()
    identity: Identity | None = None


class AccessGuard:
    """ASGI middleware. `settings` returns those that are valid now."""

    def __init__(
        self, app: ASGIApp, settings: Callable[[], HttpSettings], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._settings = settings
        self._clock = clock
        self._audit = AuditLog()
        self._limits = settings().limits
        self._requests, self._failures = self._rates()
        self._let_in: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Addresses with the identity that they have proved. Wrong tokens of others do not lock these out."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        settings = self._settings()
        if settings.limits != self._limits:
            self._limits = settings.limits
            self._requests, self._failures = self._rates()
        client = _client_of(scope, settings)
        if settings.behind_tls_proxy:
            scope["scheme"] = "https"
        found = self._judged(scope, settings, network_of(client))
        identity = found.identity if isinstance(found, _RefusedRequest) else found
        audited = AuditedRequest(
            request_id(_header(scope, b"x-request-id")),
            identity.who if identity else "nobody",
            identity.role if identity else "",
            client,
            scope["method"],
            scope["path"],
        )
        sending = _Sending(send, audited.id)
        if isinstance(found, _RefusedRequest):
            self._audit.refused(audited, found.status, found.error.code)
            await sending.refuse(found, scope["path"])
            return
        scope.setdefault("state", {}).update({IDENTITY: identity, AUDIT_KEY: audited})
        is_change = scope["method"] not in READING
        if is_change:
            self._audit.requested(audited)
        try:
            await self._app(scope, receive, sending.send)
        finally:
            if is_change:
                self._audit.answered(audited, sending.status)
            elif sending.status == 403:
                self._audit.refused(audited, 403, "Forbidden")
            elif audited.details:
                self._audit.answered(audited, sending.status)  # events were read

    def _judged(self, scope: Scope, settings: HttpSettings, network: str) -> Identity | _RefusedRequest | None:
        """Returns who it is, None for an open path, or why the request is refused."""
        if not settings.authenticates:
            return LOCAL
        needed = access.needed_role(scope["method"], scope["path"], settings)
        if needed is None:
            return None
        given = access.given_token(value for name, value in scope["headers"] if name == b"authorization")
        certificate = scope.get("state", {}).get(CERTIFICATE)
        identity = access.of_token(given, settings) if given is not None else None
        if given is None and certificate:
            identity = access.of_certificate(certificate, settings)
        if identity is None or (network, identity.who) not in self._let_in:
            refusal = self._unknown(network, identity, is_given=given is not None or bool(certificate))
            if refusal is not None:
                return refusal
        if (wait := self._requests.take((network, identity.who if identity else ""))) > 0:
            return _too_many("requests", wait)._replace(identity=identity)
        if identity is None:
            return _RefusedRequest(401, _NO_CREDENTIALS, ((b"www-authenticate", CHALLENGE),))
        self._remember(network, identity)
        if not access.allows(identity.role, needed):
            return _RefusedRequest(403, _not_allowed(identity, scope["method"]), identity=identity)
        return identity

    def _unknown(self, network: str, identity: Identity | None, *, is_given: bool) -> _RefusedRequest | None:
        """Counts wrong credentials. An address with too many of them learns nothing about further ones."""
        if not is_given:
            return None
        if (wait := self._failures.wait(network) if identity else self._failures.take(network)) > 0:
            return _too_many("wrong tokens or certificates", wait)
        return None if identity else _RefusedRequest(401, _WRONG_CREDENTIALS, ((b"www-authenticate", CHALLENGE),))

    def _remember(self, network: str, identity: Identity) -> None:
        self._let_in[network, identity.who] = None
        self._let_in.move_to_end((network, identity.who))
        if len(self._let_in) > MAX_KEYS:
            self._let_in.popitem(last=False)

    def _rates(self) -> tuple[Rates, Rates]:
        limits = self._limits
        return (
            Rates(limits.requests_per_second, limits.burst, self._clock),
            Rates(limits.failures_per_minute / 60, limits.failures_per_minute, self._clock),
        )


class _Sending:
    """Adds the id of the request to the answer, and keeps the status."""

    def __init__(self, send: Send, number: str) -> None:
        self._send = send
        self._id = number.encode()
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", self._id)]}
        await self._send(message)

    async def refuse(self, refusal: _RefusedRequest, path: str) -> None:
        error = refusal.error
        found: dict[str, str | int] = {
            "error_code": refusal.status,
            "message": f"{error.what}. {error.why} {error.remedy}",
        }
        if path.startswith(JSON_API):
            found = {"code": error.code, "what": error.what, "why": error.why, "remedy": error.remedy}
        body = json.dumps(found).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            *refusal.headers,
        ]
        await self.send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


_NO_CREDENTIALS = NotAuthenticated(
    "this request needs a token or a client certificate",
    why="It has none.",
    remedy="Send `Authorization: Bearer TOKEN`, or the token as the password of basic authentication. For commands, "
    "set TAILRACE_WORKER_TOKEN or TAILRACE_WORKER_TOKEN_FILE.",
)
_WRONG_CREDENTIALS = NotAuthenticated(
    "the worker does not know this token or certificate",
    why="It was removed or replaced, is mistyped, or belongs to another worker.",
    remedy="Ask the worker's operator for a valid one.",
)


def _not_allowed(identity: Identity, method: str) -> NotAuthorized:
    return NotAuthorized(
        f"{identity.who} may not use {method if method.isalpha() else 'this method'}",
        why="Its role is `read`, which may only read.",
        remedy="Use a token or certificate with the role `admin`.",
    )


def _too_many(what: str, wait: float) -> _RefusedRequest:
    seconds = max(1, math.ceil(wait))
    error = TooManyRequests(
        f"this client sends too many {what}",
        why="Each client has a limit, so that one cannot take the worker from the others.",
        remedy=f"Try again after {seconds} s. The worker's operator can change `limits` in the file of "
        "--http-settings.",
    )
    return _RefusedRequest(429, error, ((b"retry-after", b"%d" % seconds),))


def _client_of(scope: Scope, settings: HttpSettings) -> str:
    """Returns the client's address: that of the connection, or the one that the configured proxy saw."""
    peer = scope.get("state", {}).get(PEER) or (scope.get("client") or ("unknown",))[0]
    if settings.behind_tls_proxy and (seen := _header(scope, b"x-forwarded-for").rpartition(",")[2].strip()):
        return seen[:60]  # only the last entry was written by the proxy itself
    return str(peer)


def _header(scope: Scope, name: bytes) -> str:
    """Returns the last value of a header; empty if there is none."""
    return next((value.decode("latin-1") for key, value in reversed(scope["headers"]) if key == name), "")
