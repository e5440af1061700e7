"""Refuses requests that a web page of somebody else sends through the browser of a user who can reach the port.

A browser sends a POST of another site's page with its `Origin`, and asks first (CORS, which is not granted) before it
sends JSON, a header of a proxy, or another method that changes something. So only such a plain POST is refused:
programs and consoles behind a proxy are not affected. Behind a proxy, `Origin` may differ from the worker's own
address. Then `Sec-Fetch-Site` counts, with which browsers mark requests of other sites: a browser may add the user's
credentials by itself (basic authentication, a client certificate). A page whose own name suddenly resolves to 127.0.0.1
(DNS rebinding) sends that name as `Host`: a port on loopback without authentication answers to addresses and to names
without a dot only.
"""

from __future__ import annotations

import ipaddress
import json
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

FOREIGN_PAGE = (
    "this request comes from a web page of another site, which may not use the worker. Send it from a program, or from "
    "a page that the worker's own address serves"
)
FOREIGN_NAME = (
    "the worker listens on this machine only, and does not answer to this name in `Host`. Use localhost or 127.0.0.1. "
    "A proxy on this machine must set `Host` to one of them, or the worker listens on another address (--http)"
)

PROXY_HEADERS = frozenset({b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"forwarded", b"via"})


class BrowserGuard:
    """ASGI middleware. `loopback`: the port can be reached from this machine only."""

    def __init__(self, app: ASGIApp, *, loopback: bool) -> None:
        self._app = app
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        why = self._refusal(scope) if scope["type"] == "http" else ""
        if not why:
            await self._app(scope, receive, send)
            return
        body = json.dumps({"error_code": 403, "message": why}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope) -> str:
        given = {name: value.decode("latin-1").strip().lower() for name, value in scope["headers"]}
        host, origin = given.get(b"host", ""), given.get(b"origin")
        is_plain = scope["method"] == "POST" and "json" not in given.get(b"content-type", "").partition(";")[0]
        if is_plain and given.get(b"sec-fetch-site") == "cross-site":
            return FOREIGN_PAGE
        if origin is not None and origin.partition("://")[2] != host and is_plain and not given.keys() & PROXY_HEADERS:
            return FOREIGN_PAGE
        return FOREIGN_NAME if self._loopback and not is_local_name(host) else ""


def is_local_name(host: str) -> bool:
    """Whether a `Host` header is an address, localhost, or a name that no public DNS server resolves."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if "." not in name or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
