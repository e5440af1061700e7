"""The guard of an HTTP port: who is let in, what roles allow, rates, and what the audit log says."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from tailrace.api.access import Identity, identity_of, needed_role, require_admin, subject_of
from tailrace.api.audit import REFUSALS_AT_ONCE, add_details
from tailrace.api.guard import CERTIFICATE, PEER, AccessGuard
from tailrace.api.rates import MAX_KEYS, Rates, network_of
from tailrace.config.http_port import HttpSettings
from tailrace.errors import NotAuthorized, TailraceError
from tailrace.worker.logs import AUDIT

ADMIN_TOKEN, READ_TOKEN = "admin-token-0123456789", "read-token-0123456789"


def digest(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def settings(**more: Any) -> HttpSettings:
    tokens = {
        "ops": {"role": "admin", "hash": digest(ADMIN_TOKEN)},
        "viewer": {"role": "read", "hash": digest(READ_TOKEN)},
    }
    return HttpSettings.model_validate({"tokens": tokens, **more})


async def who(request: Request) -> Response:
    identity = identity_of(request)
    return PlainTextResponse(identity.who if identity else "nobody")


async def events(request: Request) -> Response:
    try:
        require_admin(request, "read events")
    except NotAuthorized as error:
        return PlainTextResponse(error.what, 403)
    add_details(request, operation="dlq show")
    return PlainTextResponse("an event")


async def crash(_: Request) -> Response:
    raise RuntimeError("a payload")


METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
APP = Starlette(
    routes=[
        Route("/crash", crash, methods=["POST"]),
        Route("/events", events),
        Route("/{path:path}", who, methods=METHODS),
    ]
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Guarded:
    """A client of a guarded app, with a clock and an address that tests set."""

    def __init__(self, found: HttpSettings) -> None:
        self.settings = found
        self.clock = Clock()
        self.peer = "192.0.2.1"
        self.certificate: dict[str, Any] | None = None
        guard = AccessGuard(APP, lambda: self.settings, self.clock)
        self.client = TestClient(self._from_peer(guard), raise_server_exceptions=False)

    def _from_peer(self, app: ASGIApp) -> Callable[[Scope, Receive, Send], Any]:
        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                scope.setdefault("state", {}).update({PEER: self.peer, CERTIFICATE: self.certificate})
            await app(scope, receive, send)

        return run

    def call(self, method: str = "GET", path: str = "/x", token: str = "", **headers: str) -> Any:
        if token:
            headers["authorization"] = f"Bearer {token}"
        return self.client.request(method, path, headers={n.replace("_", "-"): v for n, v in headers.items()})


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [{"event": r.getMessage(), **r.fields} for r in caplog.records if r.name == AUDIT]  # type: ignore[attr-defined]


def test_without_a_token_only_open_paths_answer() -> None:
    guarded = Guarded(settings())
    for path in ("/livez", "/readyz"):
        assert guarded.call(path=path).text == "nobody"
        assert guarded.call("POST", path).status_code == 401
    for path in ("/", "/x", "/metrics", "/api/v1/pipelines", "/livez/", "//livez", "/livez/../x"):
        refused = guarded.call(path=path)
        assert refused.status_code == 401, path
        assert "Bearer" in refused.headers["www-authenticate"]
        assert "TAILRACE_WORKER_TOKEN" in refused.text
    guarded.settings = settings(metrics="open")
    assert guarded.call(path="/metrics").text == "nobody"


def test_roles() -> None:
    guarded = Guarded(settings())
    assert guarded.call(token=READ_TOKEN).text == "token:viewer"
    assert guarded.call(token=ADMIN_TOKEN).text == "token:ops"
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert guarded.call(method, token=READ_TOKEN).status_code == 403
        assert guarded.call(method, token=ADMIN_TOKEN).text == "token:ops"
    assert guarded.call(path="/events", token=READ_TOKEN).status_code == 403
    assert guarded.call(path="/events", token=ADMIN_TOKEN).text == "an event"
    assert needed_role("MKCOL", "/x", settings()) == "admin"  # a method that nobody knows


def test_basic_authentication_has_the_token_as_its_password() -> None:
    guarded = Guarded(settings())

    def basic(text: str) -> int:
        given = base64.b64encode(text.encode()).decode()
        return int(guarded.call(authorization=f"Basic {given}").status_code)

    assert basic(f"anybody:{READ_TOKEN}") == 200
    assert basic(f"{READ_TOKEN}:") == 401
    assert basic(READ_TOKEN) == 401
    for wrong in (
        "Basic ???",
        "Basic",
        "Digest x",
        READ_TOKEN,
        f"Bearer {READ_TOKEN}x",
        f"Bearer {digest(READ_TOKEN)}",
    ):
        assert guarded.call(authorization=wrong).status_code in (401, 429), wrong


def test_two_tokens_in_one_request_are_refused() -> None:
    guarded = Guarded(settings())
    given = [("authorization", f"Bearer {each}") for each in ("wrong-token-0123456789", ADMIN_TOKEN)]
    assert guarded.client.get("/x", headers=given).status_code == 401


def test_a_certificate_has_the_role_of_its_subject_or_name() -> None:
    tls = {"certificate": "a", "key": "b", "client_ca": "c"}
    by_subject = {"role": "admin", "subject": "CN=deployer,O=Shop"}
    by_name = {"role": "read", "san": "DNS:prometheus.monitoring"}
    guarded = Guarded(settings(tls=tls, certificates={"a": by_subject, "b": by_name}))
    subject = ((("organizationName", "Shop"),), (("commonName", "deployer"),))
    guarded.certificate = {"subject": subject}
    assert guarded.call("POST").text == "certificate:CN=deployer,O=Shop"
    guarded.certificate = {"subject": (), "subjectAltName": (("DNS", "prometheus.monitoring"),)}
    assert guarded.call().text.startswith("certificate:")
    assert guarded.call("POST").status_code == 403
    guarded.certificate = {"subject": ((("commonName", "deployer"),),), "subjectAltName": (("DNS", "x"),)}
    assert guarded.call().status_code == 401
    assert guarded.call(token=READ_TOKEN).text == "token:viewer"  # the token counts
    assert subject_of({"subject": ((("commonName", 'a,"b'),),)}) == 'CN=a\\,\\"b'


def test_a_client_has_a_rate_of_requests() -> None:
    guarded = Guarded(settings(limits={"requests_per_second": 2, "burst": 3}))
    assert [guarded.call(token=READ_TOKEN).status_code for _ in range(4)] == [200, 200, 200, 429]
    refused = guarded.call(token=READ_TOKEN)
    assert refused.headers["retry-after"] == "1"
    assert "limits" in refused.text
    assert guarded.call(token=ADMIN_TOKEN).status_code == 200  # another client
    assert guarded.call(path="/livez").status_code == 200  # not limited: a probe must not fail
    guarded.clock.now += 0.5
    assert [guarded.call(token=READ_TOKEN).status_code for _ in range(2)] == [200, 429]
    guarded.peer = "192.0.2.2"
    assert guarded.call(token=READ_TOKEN).status_code == 200


def test_guessing_is_limited_and_locks_nobody_out() -> None:
    guarded = Guarded(settings(limits={"failures_per_minute": 3}))
    assert guarded.call(token=READ_TOKEN).status_code == 200
    guesses = [guarded.call(token=f"guess-number-00000{n}").status_code for n in range(5)]
    assert guesses == [401, 401, 401, 429, 429]
    # The right one is not recognised any more, or guessing would go on; but who was let in before stays.
    refused = guarded.call(token=ADMIN_TOKEN)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "20"
    assert guarded.call(token=READ_TOKEN).status_code == 200
    guarded.clock.now += 20
    assert guarded.call(token=ADMIN_TOKEN).status_code == 200


def test_behind_a_proxy_the_address_is_the_last_that_it_saw() -> None:
    guarded = Guarded(settings(limits={"failures_per_minute": 1}, behind_tls_proxy=True))
    assert guarded.call(token="wrong-token-0123456789", x_forwarded_for="10.0.0.9, 192.0.2.7").status_code == 401
    assert guarded.call(token="wrong-token-0123456789", x_forwarded_for="10.0.0.8, 192.0.2.7").status_code == 429
    assert guarded.call(token="wrong-token-0123456789", x_forwarded_for="192.0.2.8").status_code == 401
    guarded.settings = settings(limits={"failures_per_minute": 1})
    for forwarded in ("192.0.2.1", "192.0.2.2"):  # without the setting, the header is anybody's
        last = guarded.call(token="wrong-token-0123456789", x_forwarded_for=forwarded).status_code
    assert last == 429


def test_changes_are_logged_before_and_after(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, AUDIT)
    guarded = Guarded(settings())
    answer = guarded.call("PUT", "/connectors/a/pause?secret=query-marker", ADMIN_TOKEN, x_request_id="req-1")
    assert answer.headers["x-request-id"] == "req-1"
    before, after = lines(caplog)
    expected = {"who": "token:ops", "role": "admin", "client": "192.0.2.1", "method": "PUT", "request": "req-1"}
    assert before == {"event": "change requested", **expected, "target": "/connectors/a/pause"}
    assert after == {**before, "event": "change answered", "status": 200, "result": "done"}
    caplog.clear()
    guarded.call("POST", "/crash", ADMIN_TOKEN, x_request_id="a b\n")
    before, after = lines(caplog)
    assert after["result"] == "failed"
    assert before["request"] == after["request"] != "a b\n"
    caplog.clear()
    guarded.call("GET", "/x", ADMIN_TOKEN)
    assert not lines(caplog)
    guarded.call("GET", "/events", ADMIN_TOKEN)
    assert [(each["event"], each["operation"]) for each in lines(caplog)] == [("change answered", "dlq show")]
    assert "marker" not in caplog.text + str(lines(caplog))


def test_refusals_are_logged_without_what_was_tried_and_bounded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, AUDIT)
    guarded = Guarded(settings())
    guarded.call("DELETE", "/connectors/a", READ_TOKEN)
    guarded.call("GET", "/x", "guess-marker-0123456789")
    guarded.call("GET", "/events", READ_TOKEN)
    assert [(each["event"], each["status"]) for each in lines(caplog)] == [
        ("refused", code) for code in (403, 401, 403)
    ]
    assert lines(caplog)[0]["who"] == "token:viewer"
    assert "marker" not in str(lines(caplog))
    caplog.clear()
    for _ in range(3 * REFUSALS_AT_ONCE):
        guarded.call()
    assert len(lines(caplog)) < 2 * REFUSALS_AT_ONCE


def test_without_authentication_everybody_is_this_machine(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, AUDIT)
    guarded = Guarded(HttpSettings())
    assert guarded.call("POST").text == "this machine"
    assert [each["who"] for each in lines(caplog)] == ["this machine"] * 2


def test_the_json_api_gets_errors_in_its_form() -> None:
    guarded = Guarded(settings())
    assert guarded.call(path="/api/v1/pipelines").json()["code"] == "NotAuthenticated"
    assert guarded.call("POST", "/api/v1/pipelines/a/stop", READ_TOKEN).json()["code"] == "NotAuthorized"
    assert guarded.call().json()["error_code"] == 401


def test_an_identity_is_required_for_events() -> None:
    for identity in (None, Identity("token:viewer", "read")):
        with pytest.raises(TailraceError):
            require_admin(Request({"type": "http", "state": {"identity": identity}}), "read events")


def test_rates_forget_the_oldest_key() -> None:
    clock = Clock()
    rates = Rates(1, 1, clock)
    for number in range(MAX_KEYS + 10):
        assert rates.take(number) == 0
    assert rates.take(0) == 0  # forgotten, so its rate begins again
    assert rates.take(MAX_KEYS) > 0


def test_an_ipv6_client_is_its_network() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") == "192.0.2.1"
    assert network_of("fe80::1%eth0") == network_of("fe80::2%eth1")
    assert network_of("unknown") == "unknown"
