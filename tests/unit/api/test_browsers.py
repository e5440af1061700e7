"""Requests of web pages: other sites and rebound names are refused, programs are not affected."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from tailrace.api.browsers import BrowserGuard


async def answer(_: Request) -> Response:
    return JSONResponse({})


APP = Starlette(routes=[Route("/", answer, methods=["GET", "POST"])])


def status(*, loopback: bool = True, method: str = "POST", **headers: str) -> int:
    guard = BrowserGuard(APP, loopback=loopback)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return TestClient(guard).request(method, "/", headers=given).status_code


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8083", "localhost:8083", "LOCALHOST", "[::1]:8083", "10.0.0.7:80", "worker", "x.localhost:1", ""],
)
def test_addresses_and_local_names_are_answered(host: str) -> None:
    assert status(Host=host) == 200


@pytest.mark.parametrize("host", ["evil.example:8083", "127.0.0.1.evil.example", "localhost.evil.example:8083", "[x"])
def test_a_rebound_name_is_refused_on_loopback_only(host: str) -> None:
    assert status(Host=host) == 403
    assert status(Host=host, loopback=False) == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1", ""])
def test_pages_of_other_sites_are_refused(origin: str) -> None:
    assert status(Host="localhost:8083", Origin=origin) == 403
    assert status(Host="worker.example:8083", Origin=origin, loopback=False) == 403
    for kind in ("text/plain", "text/plain;x=json", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert status(Host="localhost:8083", Origin=origin, Content_Type=kind) == 403


def test_a_console_behind_a_proxy_is_answered() -> None:
    """Browsers ask before they send these from a page of another site, and the worker does not allow it."""
    origin = "https://console.example"
    assert status(Host="worker", Origin=origin, Content_Type="application/json; charset=utf-8") == 200
    assert status(Host="worker", Origin=origin, X_Forwarded_For="10.0.0.1") == 200
    assert status(Host="worker", Origin=origin, method="GET") == 200


def test_pages_of_the_same_address_are_answered() -> None:
    assert status(Host="localhost:8083", Origin="http://localhost:8083") == 200
    assert status(Host="worker.example", Origin="https://Worker.example", loopback=False) == 200


def test_a_page_of_another_site_cannot_use_credentials_through_a_proxy() -> None:
    """The browser adds the user's basic authentication or client certificate by itself."""
    given = {"Host": "worker", "Origin": "https://evil.example", "X_Forwarded_For": "10.0.0.1"}
    assert status(**given, loopback=False, Sec_Fetch_Site="cross-site", Authorization="Basic eA==") == 403
    assert status(**given, loopback=False, Sec_Fetch_Site="same-origin", Authorization="Basic eA==") == 200
