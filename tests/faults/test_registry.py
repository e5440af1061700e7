"""Rows 54 and 55: a schema registry that is away, slow, broken, untrusted or none at all.

The real registry behind a proxy for what can happen to it; a small HTTP server only for what it cannot be made to do.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tailrace.errors import Action, ConfigError, Reason, RegistryRefused, RegistryUnavailable, Rejected, TailraceError
from tailrace.event import OutboxEvent
from tailrace.projections.core.registry_decoder import RegistryDecoder
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.json_schema import CompiledJsonSchema
from tailrace.schemas.registry.cache import RegistrySchemas
from tailrace.schemas.registry.client import FetchedSchema, RegistryClient, RegistryOptions
from tailrace.schemas.registry.requests import ATTEMPTS, MAX_BYTES
from tailrace.schemas.validation import PayloadValidator
from tailrace.testkit.stack import Direction, RegistryServer, TcpProxy, wait_until

ORDER = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
SECRET = "hunter2-xyz"
SLACK = 15.0  # what a loaded machine may add to a bound
JSON = {"Content-Type": "application/vnd.schemaregistry.v1+json"}


class Asker(RegistryClient):
    """Counts its questions for a schema, to see a refresh that changes nothing."""

    fetches = 0

    def fetch(self, subject: str, version: int | None = None) -> FetchedSchema | None:
        self.fetches += 1
        return super().fetch(subject, version)


class Line:
    """A wire to the real registry, and a client at its end."""

    def __init__(self, proxy: TcpProxy, path: str) -> None:
        self.proxy = proxy
        self.path = path

    def gone(self) -> None:
        """As if the registry had been killed: connections end, new ones are refused."""
        self.proxy.refuse()
        self.proxy.cut()

    def client(self, timeout: float = 20.0) -> Asker:
        return Asker(RegistryOptions(f"http://{self.proxy.address}{self.path}", timeout=timeout))


@pytest.fixture
def line(registry: RegistryServer) -> Iterator[Line]:
    parts = urlsplit(registry.url)
    assert parts.hostname
    with TcpProxy((parts.hostname, parts.port or 80)) as proxy:
        yield Line(proxy, parts.path)


@pytest.fixture
def subject(registry: RegistryServer) -> str:
    """One with a schema."""
    name = f"Order-{uuid.uuid4().hex[:12]}"
    with RegistryClient(RegistryOptions(registry.url, timeout=20)) as client:
        client.register(name, ORDER, "json")
    return name


def compile_fetched(fetched: FetchedSchema) -> CompiledSchema:
    return CompiledJsonSchema.compile(fetched.subject, fetched.version, fetched.document, fetched.place)


def within(seconds: float, question: Callable[[], object]) -> RegistryUnavailable:
    """The failure of a question, which must come in time."""
    began = time.monotonic()
    with pytest.raises(RegistryUnavailable) as failed:
        question()
    assert time.monotonic() - began < seconds
    assert failed.value.action is Action.RETRY
    return failed.value


class TestAway:
    """Row 54."""

    def test_a_registry_that_goes_away_stops_what_is_new_and_nothing_else(self, line: Line, subject: str) -> None:
        warnings: list[str] = []
        new = f"{subject}-new"
        with line.client() as client:
            client.register(new, ORDER, "json")
            with RegistrySchemas(client, compile_fetched, warn=warnings.append, refresh_seconds=0.05) as schemas:
                validator = PayloadValidator(schemas, max_bytes=1000)
                assert validator.validate(event(subject), "orders")[1] is not None
                line.gone()
                wait_until(lambda: warnings, what="the warning")
                failed_once = client.fetches
                wait_until(lambda: client.fetches > failed_once + 2, what="more refreshes that fail")

                assert validator.validate(event(subject), "orders")[1] is not None  # warm
                assert validator.validate(event(subject, "1"), "orders")[1] is not None
                failure = within(SLACK, lambda: validator.validate(event(new), "orders"))  # cold
                assert "refused" in failure.why
                assert len(warnings) == 1
                assert "stay in use" in warnings[0]

                line.proxy.accept()
                assert validator.validate(event(new), "orders")[1] is not None
                client.register(subject, {**ORDER, "title": "newer"}, "json")
                wait_until(lambda: schemas.known[subject, None].version == 2, what="the new latest")
                assert len(warnings) == 1
                line.gone()
                wait_until(lambda: len(warnings) == 2, what="the warning of the second outage")

    def test_a_cold_start_waits_for_the_registry(self, line: Line, subject: str) -> None:
        line.proxy.refuse()
        with line.client() as client, RegistrySchemas(client, compile_fetched, warn=print) as schemas:
            assert "refused" in within(SLACK, lambda: schemas.find(subject, None)).why
            within(SLACK, lambda: schemas.versions(subject))
            line.proxy.accept()
            assert schemas.find(subject, None) is not None
            assert schemas.versions(subject) == [1]

    def test_a_refresh_that_finds_the_subject_gone_keeps_the_schema(self, line: Line, subject: str) -> None:
        warnings: list[str] = []
        with line.client() as client:
            with RegistrySchemas(client, compile_fetched, warn=warnings.append, refresh_seconds=0.05) as schemas:
                schema = schemas.find(subject, None)
                client._client.delete_subject(subject)
                wait_until(lambda: warnings, what="the warning")
                before = client.fetches
                wait_until(lambda: client.fetches > before + 3, what="more refreshes")
                assert schemas.known[subject, None] is schema
            assert warnings == [f"{subject} is no longer registered; version 1 stays in use"]


class TestWire:
    """Row 55, on the way to the real registry."""

    def test_a_refused_connection_is_tried_a_few_times(self, line: Line) -> None:
        with line.client() as client:
            line.proxy.refuse()
            assert within(SLACK, client.subjects).why == "Connection refused."

    def test_an_answer_cut_short_is_asked_for_again(self, line: Line, subject: str) -> None:
        with line.client() as client:
            line.proxy.cut_after(100, Direction.TO_CLIENT)
            fetched = client.fetch(subject)
            assert fetched is not None
            assert fetched.document == ORDER
            assert line.proxy.cuts == 1

    def test_a_connection_that_died_while_idle_is_replaced(self, line: Line, subject: str) -> None:
        with line.client() as client:
            assert client.fetch(subject) is not None
            line.proxy.cut()
            assert client.fetch(subject) is not None

    def test_silence_ends_with_the_timeout(self, line: Line, subject: str) -> None:
        with line.client(timeout=0.5) as client:
            line.proxy.blackhole()
            assert "within 0.5 s" in within(0.5 + SLACK, lambda: client.fetch(subject)).why
            line.proxy.cut()
            line.proxy.restore()
        with line.client() as client:
            assert client.fetch(subject) is not None

    @pytest.mark.parametrize("bytes_per_second", [5, 400])
    def test_a_trickle_ends_with_the_timeout(self, line: Line, subject: str, bytes_per_second: int) -> None:
        """No single read takes long, so only the deadline of the whole ends it."""
        with line.client() as client:
            client.fetch(subject)  # connected
        with line.client(timeout=1.0) as client:
            line.proxy.throttle(bytes_per_second)
            assert "within 1 s" in within(1 + SLACK, lambda: client.fetch(subject)).why

    def test_no_thread_is_left_by_what_failed(self, line: Line, subject: str) -> None:
        before = threading.active_count()
        with line.client(timeout=0.2) as client:
            line.proxy.throttle(20)
            for _ in range(3):
                within(0.2 + SLACK, lambda: client.fetch(subject))
        wait_until(lambda: threading.active_count() <= before, what="the end of the timers")


class Tiny:
    """An HTTP server that gives every request the same answer, and keeps what was asked."""

    def __init__(self, answer: Callable[[BaseHTTPRequestHandler], None], context: ssl.SSLContext | None = None) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        tiny = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                self.rfile.read(length)
                tiny.asked.append((self.path, dict(self.headers)))
                try:
                    answer(self)
                except OSError:
                    pass  # the client hung up, as it should
                self.close_connection = True

            do_POST = do_GET  # noqa: N815 - http.server's way to name them

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # a handshake that the client refused

        self.server = Server(("127.0.0.1", 0), Handler)
        self.scheme = "http"
        if context is not None:
            self.scheme = "https"
            self.server.socket = context.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=False
            )

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server.server_port}"

    def client(self, settings: dict[str, str] | None = None, timeout: float = 10.0) -> RegistryClient:
        return RegistryClient(RegistryOptions(self.url, settings or {}, timeout))


@contextmanager
def tiny(answer: Callable[[BaseHTTPRequestHandler], None], context: ssl.SSLContext | None = None) -> Iterator[Tiny]:
    one = Tiny(answer, context)
    thread = threading.Thread(target=one.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield one
    finally:
        one.server.shutdown()
        one.server.server_close()
        thread.join()


def saying(
    status: int, body: bytes = b"[]", headers: dict[str, str] | None = None
) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(to: BaseHTTPRequestHandler) -> None:
        to.send_response(status)
        for name, value in {**JSON, "Content-Length": str(len(body)), **(headers or {})}.items():
            to.send_header(name, value)
        to.end_headers()
        to.wfile.write(body)

    return answer


def first_of(answers: list[Callable[[BaseHTTPRequestHandler], None]]) -> Callable[[BaseHTTPRequestHandler], None]:
    """Answers as the first of them does at that moment."""

    def answer(to: BaseHTTPRequestHandler) -> None:
        answers[0](to)

    return answer


class TestBroken:
    """Row 55, what the real registry cannot be made to do."""

    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    def test_a_registry_in_trouble_is_asked_a_few_times(self, status: int) -> None:
        with tiny(saying(status, b"<html>trouble</html>")) as server, server.client() as client:
            failure = within(SLACK, client.subjects)
            assert f"HTTP {status}" in failure.what
            assert "trouble" not in str(failure)
            assert len(server.asked) == ATTEMPTS

    def test_trouble_that_passes_is_not_noticed(self) -> None:
        answers = [saying(503), saying(500), saying(200, b'["Order"]')]

        def healing(to: BaseHTTPRequestHandler) -> None:
            answers.pop(0)(to)

        with tiny(healing) as server, server.client() as client:
            assert client.subjects() == ["Order"]

    @pytest.mark.parametrize("status", [401, 403])
    def test_refused_credentials_are_not_tried_again_and_not_shown(self, status: int) -> None:
        body = b'{"error_code": %d, "message": "no: me:%s"}' % (status, SECRET.encode())
        settings = {"basic.auth.user.info": f"me:{SECRET}"}
        with tiny(saying(status, body)) as server, server.client(settings) as client:
            with pytest.raises(RegistryRefused, match=f"HTTP {status}") as refused:
                client.subjects()
            assert len(server.asked) == 1
            assert server.asked[0][1]["Authorization"].startswith("Basic ")
        assert SECRET not in str(refused.value)
        assert refused.value.why == "no: ***"
        assert "basic.auth.user.info" in refused.value.remedy

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_redirects_are_not_followed(self, status: int) -> None:
        with tiny(saying(200)) as elsewhere:
            location = {"Location": f"{elsewhere.url}/subjects"}
            settings = {"basic.auth.user.info": f"me:{SECRET}"}
            with tiny(saying(status, b"", location)) as server, server.client(settings) as client:
                with pytest.raises(RegistryRefused, match="redirects the request"):
                    client.subjects()
                with pytest.raises(RegistryRefused, match="redirects the request"):
                    client.register("Order", ORDER, "json")
                assert len(server.asked) == 2
            assert elsewhere.asked == []

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"<!DOCTYPE html><html>hello</html>",
            b"{",
            b"null",
            b"{}",
            b"[1]",
            b'"text"',
            b"\xff\xfe\xfd",
            b"[" * 100_000,
            b"1" * 10_000,
        ],
        ids=lambda body: repr(body[:30]),
    )
    def test_garbage_is_no_registry(self, body: bytes) -> None:
        with tiny(saying(200, body)) as server, server.client() as client:
            for question in (
                client.subjects,
                lambda: client.fetch("Order"),
                lambda: client.lookup("Order", {}, "json"),
            ):
                with pytest.raises(RegistryRefused) as refused:
                    question()
                assert "hello" not in str(refused.value)

    @pytest.mark.parametrize(
        "body",
        [
            b'{"schema": 1, "id": 1, "version": 1}',
            b'{"schema": "{}", "id": "1", "version": 1}',
            b'{"schema": "{}", "id": true, "version": 1}',
            b'{"schema": "{}", "id": 1, "version": 1, "references": [{"name": 1}]}',
            b'{"schema": "{}", "id": 1, "version": 1, "references": 7}',
            b'{"schema": "{}", "id": 1}',
        ],
    )
    def test_a_schema_of_the_wrong_shape_is_refused(self, body: bytes) -> None:
        with tiny(saying(200, body)) as server, server.client() as client, pytest.raises(RegistryRefused):
            client.fetch("Order")

    def test_a_page_that_is_not_found_is_no_registry(self) -> None:
        with tiny(saying(404, b"<html>hello</html>")) as server, server.client() as client:
            for question in (client.subjects, lambda: client.fetch("Order"), client.compatibility):
                with pytest.raises(RegistryRefused, match="no schema registry") as refused:
                    question()
                assert "before /subjects" in refused.value.remedy

    def test_an_endless_answer_is_given_up_on(self) -> None:
        sent = 0

        def endless(to: BaseHTTPRequestHandler) -> None:
            nonlocal sent
            to.send_response(200)
            to.end_headers()
            while True:
                to.wfile.write(b'"x",' * 16384)
                sent += 65536

        with tiny(endless) as server, server.client() as client:
            with pytest.raises(RegistryRefused) as refused:
                client.subjects()
            assert f"{MAX_BYTES:,}" in refused.value.why
            assert len(server.asked) == 1
            assert sent < 2 * MAX_BYTES

    def test_a_compressed_answer_is_not_unpacked(self) -> None:
        with tiny(saying(200, b"\x1f\x8b", {"Content-Encoding": "gzip"})) as server, server.client() as client:
            with pytest.raises(RegistryRefused, match="no schema registry") as refused:
                client.subjects()
            assert "compressed" in refused.value.why
            assert server.asked[0][1]["Accept-Encoding"] == "identity"

    def test_headers_without_end_run_into_the_timeout(self) -> None:
        over = threading.Event()

        def drip(to: BaseHTTPRequestHandler) -> None:
            to.wfile.write(b"HTTP/1.1 200 OK\r\nX-Drip: ")
            while not over.wait(0.02):
                to.wfile.write(b"x")

        with tiny(drip) as server, server.client(timeout=0.5) as client:
            assert "within 0.5 s" in within(0.5 + SLACK, client.subjects).why
            over.set()

    def test_a_token_with_a_line_end_is_refused_and_not_shown(self) -> None:
        settings = {
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": f"{SECRET}\n",
            "bearer.auth.logical.cluster": "lsrc-1",
            "bearer.auth.identity.pool.id": "pool-1",
        }
        with tiny(saying(200)) as server, server.client(settings) as client:
            with pytest.raises(RegistryRefused, match="cannot be asked") as refused:
                client.subjects()
            assert SECRET not in str(refused.value)
            assert server.asked == []


STRANGE = {
    "html": saying(200, b"<html>We are back soon</html>"),
    "not found, without a code": saying(404, b"<html>hello</html>"),
    "an empty object": saying(200, b"{}"),
    "null": saying(200, b"null"),
    "unauthorized": saying(401, b'{"error_code": 401, "message": "Unauthorized"}'),
    "forbidden": saying(403, b""),
    "a redirect": saying(302, b"", {"Location": "https://login.example.org"}),
}


@pytest.mark.parametrize("answer", STRANGE.values(), ids=STRANGE)
def test_an_unexpected_answer_after_the_first_success_is_an_outage(
    answer: Callable[[BaseHTTPRequestHandler], None],
) -> None:
    good = saying(200, b'{"subject": "Order", "schema": "{}", "schemaType": "JSON", "id": 1, "version": 1}')
    now = [good]
    with (
        tiny(first_of(now)) as server,
        server.client() as client,
        RegistrySchemas(client, compile_fetched, warn=print) as schemas,
    ):
        validator = PayloadValidator(schemas, max_bytes=1000)
        assert validator.validate(event("Order"), "orders")[1] is not None
        now[0] = answer
        assert validator.validate(event("Order"), "orders")[1] is not None
        failure = within(SLACK, lambda: validator.validate(event("Other"), "orders"))
        assert f"schema registry at {server.url}" in failure.what
        assert failure.remedy
        now[0] = good
        assert validator.validate(event("Other"), "orders")[1] is not None


def outcome(decode: RegistryDecoder, name: int | str) -> Exception | None:
    """What comes of reading a value that names this schema, once the registry has answered."""

    def settled() -> list[Exception | None]:
        try:
            decode._reader(name)
        except TailraceError as error:
            return [] if "not answered yet" in error.what else [error]
        return [None]

    return wait_until(settled, what="an answer")[0]


@pytest.mark.parametrize("answer", STRANGE.values(), ids=STRANGE)
def test_a_projection_takes_a_strange_answer_for_an_outage_once_its_registry_has_worked(
    answer: Callable[[BaseHTTPRequestHandler], None],
) -> None:
    now = [answer]
    with tiny(first_of(now)) as server:
        assert isinstance(outcome(RegistryDecoder(server.url), 1), ConfigError)
        decode = RegistryDecoder(server.url)
        now[0] = saying(200, b'{"schema": "{}", "schemaType": "JSON"}')
        assert outcome(decode, 1) is None
        now[0] = answer
        assert outcome(decode, 1) is None
        assert isinstance(outcome(decode, 2), RegistryUnavailable)
        now[0] = saying(200, b'{"schema": "{}", "schemaType": "JSON"}')
        assert outcome(decode, 2) is None


def test_a_guid_is_no_reason_to_stop_where_the_registry_knows_none() -> None:
    def answer(to: BaseHTTPRequestHandler) -> None:
        saying(200, b'["Order"]')(to) if to.path.startswith("/subjects") else saying(404, b"<html>hello</html>")(to)

    with tiny(answer) as server:
        found = outcome(RegistryDecoder(server.url), str(uuid.uuid4()))
    assert isinstance(found, Rejected)
    assert "is not registered" in found.explanation


HOSTILE = [
    ".", "..", "", "/", "//", "a/b", "a/../b", "../subjects", "..\\..", "%2e%2e", "a%2fb", "a;b=c", "a?b", "a#b", " ",
    "a b", "\0", "\n", "a\r\nb", "\x7f", "\x85", "\u2028", "é", "\U0001f600", ":.other:Order", "latest", "__GLOBAL",
    "x" * 300, "x" * 5000, "é" * 200, "x" * 200_000,
]  # fmt: skip


def test_no_event_type_stops_the_events_after_it(line: Line, subject: str) -> None:
    """The service chooses the type: events of each of these are set aside, and the next event passes."""
    with line.client() as client, RegistrySchemas(client, compile_fetched, warn=print) as schemas:
        validator = PayloadValidator(schemas, max_bytes=1000)
        for name in HOSTILE:
            with pytest.raises(Rejected) as rejected:
                validator.validate(event(name), "orders")
            assert rejected.value.reason is Reason.SCHEMA_VALIDATION_FAILED, name
            assert len(rejected.value.explanation) < 1000, name
            assert PayloadValidator(schemas, unknown="pass", max_bytes=1000).validate(event(name), "orders") == (
                None,
                None,
            ), name
        for name in (".", "..", "", "a\nb", "x" * 200_000):
            with pytest.raises(Rejected, match="cannot be the name of a schema"):
                validator.validate(event(name), "orders")
        assert validator.validate(event(subject), "orders")[1] is not None


def test_an_unusable_schema_dead_letters_only_events_of_its_type(line: Line, subject: str) -> None:
    broken = f"{subject}-broken"
    with line.client() as client, RegistrySchemas(client, compile_fetched, warn=print) as schemas:
        client.register(broken, {**ORDER, "properties": {"id": {"pattern": "(?=x)"}}}, "json")
        validator = PayloadValidator(schemas, max_bytes=1000)
        for _ in range(2):
            with pytest.raises(Rejected, match="the pattern cannot be used") as rejected:
                validator.validate(event(broken), "orders")
            assert rejected.value.reason is Reason.SCHEMA_VALIDATION_FAILED
        assert client.fetches == 1
        assert validator.validate(event(subject), "orders")[1] is not None


class TestTokens:
    """Tokens that the library fetches itself."""

    def settings(self, endpoint: str) -> dict[str, str]:
        return {
            "bearer.auth.credentials.source": "OAUTHBEARER",
            "bearer.auth.client.id": "me",
            "bearer.auth.client.secret": SECRET,
            "bearer.auth.scope": "registry",
            "bearer.auth.issuer.endpoint.url": f"{endpoint}/token",
            "bearer.auth.logical.cluster": "lsrc-1",
            "bearer.auth.identity.pool.id": "pool-1",
        }

    def test_a_token_is_fetched_and_sent(self) -> None:
        granted = saying(200, b'{"access_token": "t0ken", "token_type": "Bearer", "expires_in": 60}')
        with tiny(granted) as issuer, tiny(saying(200)) as server, server.client(self.settings(issuer.url)) as client:
            assert client.subjects() == []
            assert server.asked[0][1]["Authorization"] == "Bearer t0ken"

    def test_an_issuer_that_refuses_is_said_without_the_secret(self) -> None:
        refusal = saying(401, b'{"error": "invalid_client", "error_description": "%s"}' % SECRET.encode())
        with tiny(refusal) as issuer, tiny(saying(200)) as server, server.client(self.settings(issuer.url)) as client:
            with pytest.raises(RegistryRefused, match="no token") as refused:
                client.subjects()
            assert SECRET not in str(refused.value)
            assert server.asked == []

    def test_an_issuer_that_is_away_may_come_back(self) -> None:
        with tiny(saying(200)) as server, server.client(self.settings("http://127.0.0.1:9")) as client:
            assert "token endpoint" in within(SLACK, client.subjects).what

    def test_an_issuer_that_trickles_runs_into_the_timeout(self) -> None:
        over = threading.Event()

        def drip(to: BaseHTTPRequestHandler) -> None:
            to.wfile.write(b"HTTP/1.1 200 OK\r\nX-Drip: ")
            while not over.wait(0.02):
                to.wfile.write(b"x")

        with tiny(drip) as issuer, tiny(saying(200)) as server:
            with server.client(self.settings(issuer.url), timeout=0.5) as client:
                within(0.5 + SLACK, client.subjects)
            over.set()


class TestTrust:
    """Row 55: TLS."""

    def test_a_certificate_of_a_stranger_is_refused_at_once(self, tmp_path: Path) -> None:
        with tiny(saying(200), certified(tmp_path, "127.0.0.1")) as server, server.client() as client:
            with pytest.raises(RegistryRefused, match="no trusted connection") as refused:
                client.subjects()
            assert "self-signed" in refused.value.why
            assert "ssl.ca.location" in refused.value.remedy
            assert server.asked == []

    def test_the_authority_in_the_settings_is_trusted(self, tmp_path: Path) -> None:
        context = certified(tmp_path, "127.0.0.1")
        settings = {"ssl.ca.location": str(tmp_path / "cert.pem")}
        with tiny(saying(200), context) as server, server.client(settings) as client:
            assert client.subjects() == []

    def test_a_certificate_for_another_host_is_refused(self, tmp_path: Path) -> None:
        context = certified(tmp_path, "127.0.0.2")
        settings = {"ssl.ca.location": str(tmp_path / "cert.pem")}
        with tiny(saying(200), context) as server, server.client(settings) as client:
            with pytest.raises(RegistryRefused, match="no trusted connection") as refused:
                client.subjects()
            assert "127.0.0.1" in refused.value.why
            assert server.asked == []

    def test_tls_to_a_plain_port_is_refused(self, line: Line) -> None:
        with (
            RegistryClient(RegistryOptions(f"https://{line.proxy.address}{line.path}", timeout=20)) as client,
            pytest.raises(RegistryRefused, match="no trusted connection"),
        ):
            client.subjects()

    # Cut before it began, a handshake leaves Python's ssl with a socket that nobody closes.
    @pytest.mark.filterwarnings("ignore:.*unclosed:ResourceWarning")
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_a_handshake_that_is_cut_may_be_tried_again(self, line: Line) -> None:
        line.proxy.point_at("127.0.0.1", 9)
        with RegistryClient(RegistryOptions(f"https://{line.proxy.address}", timeout=20)) as client:
            within(SLACK, client.subjects)

    def test_a_handshake_that_ends_early_may_be_tried_again(self) -> None:
        """A balancer without a registry behind it: it hears the greeting and closes in good order."""
        greeted = 0

        def hear_and_close() -> None:
            nonlocal greeted
            while greeted < ATTEMPTS:
                connection, _ = listener.accept()
                with connection:
                    greeted += bool(connection.recv(65536))

        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=hear_and_close, daemon=True)
            thread.start()
            address = f"https://127.0.0.1:{listener.getsockname()[1]}"
            with RegistryClient(RegistryOptions(address, timeout=20)) as client:
                within(SLACK, client.subjects)
            thread.join(SLACK)
        assert greeted == ATTEMPTS


def certified(folder: Path, address: str) -> ssl.SSLContext:
    """A server's context with a certificate that it signed itself, left in cert.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "registry")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def event(type_name: str, version: str | None = None) -> OutboxEvent:
    return OutboxEvent("e", type_name, "order", b"k", b'{"id": 1}', version, "0/1:0", 1, [])
