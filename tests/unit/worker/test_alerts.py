"""Alerts and calls of the webhook: reported once, then as sums; nothing is lost or revealed, and nothing waits.

A real HTTP server answers. The clock is controlled by the test.
"""

from __future__ import annotations

import json
import logging
import shlex
import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.testkit.stack import wait_until
from tailrace.worker.alerts import LONGEST_TYPE, MAX_PAIRS, OTHER, Alert, AlertCounter, Alerts
from tailrace.worker.logs import StructuredLogger
from tailrace.worker.webhook import CallOutcome, WebhookCaller, WebhookOptions

INVALID, POISON = "schema_validation_failed", "poison_message"
SECRET = "Bearer hunter2-xyz"
SLACK = 15.0  # what a busy machine may add to a limit
A, B = (INVALID, "A"), (INVALID, "B")


class HandClock:
    """A clock that only the test moves. A waiting thread reads it again and again, so that it misses no move."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.looks = 0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_700_000_000 + self.now

    def wait(self, changed: threading.Condition, _seconds: float | None) -> None:
        self.looks += 1
        changed.wait(0.005)

    def move(self, seconds: float) -> None:
        self.now += seconds
        self.settle()

    def settle(self) -> None:
        """Returns when the thread has nothing left to do: it waits only then, and one wait may have begun before."""
        seen = self.looks
        wait_until(lambda: self.looks >= seen + 2, what="nothing left to do")


Answering = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


class Hook:
    """A webhook that records the calls and answers as the test wants."""

    def __init__(self, clock: HandClock, *, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.calls: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Answering = status(204)
        self.released = threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.times.append(clock.monotonic() - 1000)
                hook.paths.append(self.path)
                hook.headers.append(dict(self.headers))
                hook.calls.append(body)
                hook.answer(self, body)

            def do_GET(self) -> None:
                hook.paths.append(self.path)  # where a redirect that is followed would arrive

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                pass  # callers hang up on a server that takes too long

        self._server = Server(("127.0.0.1", port), Handler)
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def counts(self, type_name: str = "A") -> list[int]:
        return [call["count"] for call in self.calls if call["type"] == type_name]


def status(code: int, **headers: str) -> Answering:
    def answer(handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


def raw(data: bytes) -> Answering:
    return lambda handler, _: handler.wfile.write(data) and None


def hang(hook: Hook) -> Answering:
    return lambda _handler, _told: hook.released.wait(60) and None


def drip(hook: Hook) -> Answering:
    """Sends a byte now and then: no single read ever takes long."""

    def answer(handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not hook.released.wait(0.02):
            handler.wfile.write(b"x")

    return answer


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def hook(clock: HandClock) -> Iterator[Hook]:
    with Hook(clock) as hook:
        yield hook


Start = Callable[..., Alerts]


@pytest.fixture
def start(clock: HandClock, caplog: pytest.LogCaptureFixture) -> Iterator[Start]:
    """Starts alerts that call a local port, or that are only logged."""
    caplog.set_level(logging.DEBUG, "tailrace")
    started: list[Alerts] = []

    def alerts(port: int | None, **options: Any) -> Alerts:
        webhook = None
        if port is not None:
            webhook = WebhookOptions(f"http://127.0.0.1:{port}/hook/T0KEN?v=1", {"Authorization": SECRET}, **options)
        log = StructuredLogger(pipeline="orders")
        made = Alerts("orders", log, webhook, dead_letter_topic="letters", clock=clock, chance=lambda: 0.5)
        started.append(made)
        return made

    yield alerts
    for made in started:
        made.close(0)


def lines(caplog: pytest.LogCaptureFixture, event: str = "dead-lettered") -> list[dict[str, Any]]:
    return [record.__dict__["fields"] for record in caplog.records if record.getMessage() == event]


class TestAlertCounter:
    def test_a_new_pair_is_due_at_once_and_later_ones_as_a_sum_per_interval(self) -> None:
        counter = AlertCounter(60)
        assert counter.add(A, 2, at=10)
        assert counter.take(100) == [Alert(*A, 2, 10, 10)]
        assert not counter.add(A, 1, at=11)
        assert not counter.add(A, 3, at=12)
        assert counter.next_due() == 160
        assert counter.take(159.9) == []
        assert counter.take(160) == [Alert(*A, 4, 11, 12)]

    def test_a_pair_without_dead_letters_is_removed_and_then_new_again(self) -> None:
        counter = AlertCounter(60)
        counter.add(A, 1, at=0)
        counter.take(0)
        assert counter.take(60) == []
        assert counter.next_due() == float("inf")
        assert counter.add(A, 1, at=61)

    def test_dead_letters_counted_during_a_report_are_in_the_next_one(self) -> None:
        counter = AlertCounter(60)
        counter.add(A, 1, at=0)
        alert = counter.due(0)
        assert alert
        counter.add(A, 5, at=1)
        counter.settle(alert, 2)
        assert counter.unreported() == 5
        assert counter.take(62) == [Alert(*A, 5, 0, 1)]

    def test_a_postponed_alert_comes_after_the_others(self) -> None:
        counter = AlertCounter(60)
        counter.add(A, 1, at=0)
        counter.add(B, 1, at=0)
        first = counter.due(0)
        assert first == Alert(*A, 1, 0, 0)
        counter.postpone(first)
        assert counter.take(0) == [Alert(*B, 1, 0, 0), first]

    @given(st.lists(st.tuples(st.sampled_from([INVALID, POISON]), st.integers(0, 400), st.integers(1, 5))))
    def test_the_total_is_correct_and_the_number_of_pairs_limited(self, letters: list[tuple[str, int, int]]) -> None:
        counter, alerts = AlertCounter(60), []
        for at, (reason, number, count) in enumerate(letters):
            counter.add((reason, f"T{number}"), count, at)
            if at % 7 == 0:
                alerts += counter.take(at)
        alerts += counter.take(float("inf"))
        for reason in (INVALID, POISON):
            assert sum(n.dead_letters for n in alerts if n.reason == reason) == sum(
                c for r, _, c in letters if r == reason
            )
        assert len(counter._pairs) <= MAX_PAIRS + 2
        assert counter.unreported() == 0


class TestReporting:
    def test_a_new_pair_is_reported_at_once(self, start: Start, hook: Hook, clock: HandClock) -> None:
        start(hook.port).dead_lettered(INVALID, "OrderPlaced", 3)
        wait_until(lambda: hook.calls)
        at = datetime.fromtimestamp(clock.wall(), UTC).isoformat(timespec="milliseconds")
        assert hook.calls == [
            {
                "pipeline": "orders",
                "reason": INVALID,
                "type": "OrderPlaced",
                "count": 3,
                "since": at,
                "until": at,
                "dead_letter_topic": "letters",
                "hint": f"tailrace dlq list orders.yaml --reason {INVALID} --type OrderPlaced",
            }
        ]
        assert hook.paths == ["/hook/T0KEN?v=1"]
        assert hook.headers[0]["Authorization"] == SECRET
        assert hook.headers[0]["Content-Type"] == "application/json"
        assert hook.headers[0]["Host"] == f"127.0.0.1:{hook.port}"

    def test_further_dead_letters_are_reported_as_a_sum_once_per_interval(
        self, start: Start, hook: Hook, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        alerts = start(hook.port, interval=30)
        alerts.dead_lettered(*A)
        clock.settle()
        for _ in range(5):
            clock.move(5)
            alerts.dead_lettered(*A, 2)
        clock.move(4.9)
        assert hook.counts() == [1]
        clock.move(0.1)
        clock.move(300)
        assert hook.counts() == [1, 10]
        assert hook.calls[1]["since"] < hook.calls[1]["until"]
        assert [line["dead_letters"] for line in lines(caplog)] == [1, 10]

    def test_each_reason_and_type_is_reported_separately(self, start: Start, hook: Hook, clock: HandClock) -> None:
        alerts = start(hook.port)
        for pair in ((INVALID, "A"), (POISON, "A"), (INVALID, "B"), (INVALID, "A")):
            alerts.dead_lettered(*pair)
        clock.settle()
        clock.move(60)
        found = sorted((call["reason"], call["type"]) for call in hook.calls)
        assert set(found) == {(INVALID, "A"), (INVALID, "B"), (POISON, "A")}
        assert sum(call["count"] for call in hook.calls) == 4

    def test_without_a_webhook_alerts_are_logged(
        self, start: Start, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        start(None).dead_lettered(INVALID, "OrderPlaced")
        clock.settle()
        (line,) = lines(caplog)
        assert line == {
            "pipeline": "orders",
            "reason": INVALID,
            "type": "OrderPlaced",
            "dead_letters": 1,
            "since": datetime.fromtimestamp(clock.wall(), UTC).isoformat(timespec="milliseconds"),
            "topic": "letters",
        }
        assert caplog.records[0].levelno == logging.WARNING

    def test_a_type_name_cannot_control_a_terminal_or_run_in_a_shell(
        self, start: Start, hook: Hook, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        start(hook.port).dead_lettered(INVALID, "*\x1b[2J\r\n'; rm -rf $HOME #")
        clock.settle()
        assert lines(caplog)[0]["type"] == "*�[2J��'; rm -rf $HOME #"
        option, pattern = shlex.split(hook.calls[0]["hint"])[-2:]
        assert option == "--type"
        assert fnmatchcase(hook.calls[0]["type"], pattern)
        assert not fnmatchcase("x" + hook.calls[0]["type"], pattern)

    def test_a_long_type_name_is_cut(self, start: Start, hook: Hook, clock: HandClock) -> None:
        start(hook.port).dead_lettered(INVALID, "x" * 1_000_000)
        clock.settle()
        assert hook.calls[0]["type"] == "x" * (LONGEST_TYPE - 1) + "…"
        assert "--type" not in hook.calls[0]["hint"]

    def test_a_hundred_thousand_types_need_little_memory_and_the_total_is_correct(
        self, start: Start, hook: Hook, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        hook.answer = status(500)
        alerts = start(hook.port)
        for number in range(MAX_PAIRS + 1):
            alerts.dead_lettered(INVALID, f"Type{number}")
        clock.settle()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for number in range(MAX_PAIRS + 1, 100_000):
                alerts.dead_lettered(INVALID, f"Type{number}")
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert grown < 100_000
        hook.answer, failed = status(204), len(hook.calls)
        clock.move(60)
        assert sum(call["count"] for call in hook.calls[failed:]) == 100_000
        (rest,) = [call for call in hook.calls if call["type"] == OTHER]
        assert "--type" not in rest["hint"]
        assert sum(line["dead_letters"] for line in lines(caplog)) == 100_000


class TestFailingWebhook:
    @pytest.mark.parametrize("code", [500, 503, 408, 429, 599])
    def test_a_failed_call_is_retried_with_growing_delays_and_the_sum(
        self, code: int, start: Start, hook: Hook, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        hook.answer = status(code)
        alerts = start(hook.port)
        alerts.dead_lettered(*A)
        clock.settle()
        for seconds in (1, 2, 4, 8, 16, 32, 60, 60):
            alerts.dead_lettered(*A)
            clock.move(seconds - 0.1)
            clock.move(0.1)
        assert hook.times == pytest.approx([0, 1, 3, 7, 15, 31, 63, 123, 183])
        hook.answer = status(200)
        clock.move(60)
        assert hook.counts() == [*range(1, 10), 9]
        assert [line["what"] for line in lines(caplog, "webhook failed")] == [f"status {code}"]
        assert len(lines(caplog, "webhook answers again")) == 1
        alerts.close(SLACK)
        assert not lines(caplog, "webhook missed alerts")

    @pytest.mark.parametrize("code", [400, 401, 404, 410, 301, 302, 303, 307, 308])
    def test_a_refused_call_is_not_retried_and_logged_once(
        self, code: int, start: Start, hook: Hook, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        hook.answer = status(code, Location=f"http://127.0.0.1:{hook.port}/elsewhere")
        alerts = start(hook.port)
        alerts.dead_lettered(*A)
        alerts.dead_lettered(*B)
        clock.settle()
        clock.move(3600)
        assert (hook.counts("A"), hook.counts("B")) == ([1], [1])
        assert set(hook.paths) == {"/hook/T0KEN?v=1"}
        (line,) = lines(caplog, "webhook refused")
        assert line["what"].startswith(f"status {code}")
        alerts.close(SLACK)
        assert [line["dead_letters"] for line in lines(caplog, "webhook missed alerts")] == [2]

    def test_an_unavailable_server_is_called_when_it_is_back(
        self, start: Start, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            alerts = start(port)
            alerts.dead_lettered(*A)
            clock.settle()
            assert [line["what"] for line in lines(caplog, "webhook failed")] == ["Connection refused"]
        alerts.dead_lettered(*A, 6)
        with Hook(clock, port=port) as hook:
            clock.move(1)
            assert hook.counts() == [7]

    def test_an_alert_that_always_fails_does_not_delay_the_others(
        self, start: Start, hook: Hook, clock: HandClock
    ) -> None:
        hook.answer = lambda handler, call: status(500 if call["type"] == "A" else 204)(handler, call)
        alerts = start(hook.port)
        alerts.dead_lettered(*A)
        clock.settle()
        alerts.dead_lettered(*B)
        clock.move(1)
        clock.move(2)
        assert hook.counts("B") == [1]
        assert len(hook.counts("A")) > 1

    def test_an_unknown_host_name_is_a_failure(self) -> None:
        answer = WebhookCaller(WebhookOptions("http://nobody.invalid/")).post(b"{}", 10)
        assert answer.outcome is CallOutcome.FAILED

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"SSH-2.0-nothing\r\n",
            f"HTTP/1.1 {SECRET}\r\n\r\n".encode(),
            b"HTTP/1.1 200 " + SECRET.encode() * 10_000,
            b"HTTP/1.1 200 OK\r\n" + b"X-Many: x\r\n" * 1000 + b"\r\n",
            b"\x00\xff" * 5000,
        ],
        ids=["nothing", "not http", "echo", "endless line", "too many headers", "binary"],
    )
    def test_an_invalid_response_is_a_failure_that_quotes_nothing(
        self, data: bytes, start: Start, hook: Hook, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        hook.answer = raw(data)
        start(hook.port).dead_lettered(*A)
        clock.settle()
        (line,) = lines(caplog, "webhook failed")
        assert line["webhook"] == f"http://127.0.0.1:{hook.port}"
        everything = repr([record.__dict__ for record in caplog.records])
        assert "hunter2" not in everything
        assert "T0KEN" not in everything
        hook.answer = status(200)
        clock.move(1)
        assert hook.counts() == [1, 1]

    @pytest.mark.parametrize("behaviour", [hang, drip], ids=["hangs", "drips"])
    def test_a_slow_call_is_aborted_in_time(self, behaviour: Callable[[Hook], Answering], hook: Hook) -> None:
        hook.answer = behaviour(hook)
        began = time.monotonic()
        answer = WebhookCaller(WebhookOptions(f"http://127.0.0.1:{hook.port}/", timeout=0.3)).post(b"{}", 60)
        assert answer == (CallOutcome.FAILED, "no answer within 0.3 s")
        assert 0.3 <= time.monotonic() - began < SLACK

    def test_a_response_counts_before_its_body_is_complete(self, hook: Hook) -> None:
        def answer(handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\nx")
            hook.released.wait(60)

        hook.answer = answer
        assert (
            WebhookCaller(WebhookOptions(f"http://127.0.0.1:{hook.port}/")).post(b"{}", SLACK).outcome
            is CallOutcome.DELIVERED
        )


class TestCertificates:
    @pytest.fixture(params=["127.0.0.1", "10.9.9.9"])
    def secured(
        self, request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock
    ) -> Iterator[tuple[Hook, Path, str]]:
        file = certificate(tmp_path, request.param)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        with Hook(clock, tls=context) as hook:
            yield hook, file, request.param

    def test_only_a_trusted_certificate_of_this_host_is_accepted(
        self, secured: tuple[Hook, Path, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hook, file, address = secured
        options = WebhookOptions(f"https://127.0.0.1:{hook.port}/", {"Authorization": SECRET})
        outcome, detail = WebhookCaller(options).post(b"{}", SLACK)
        assert outcome is CallOutcome.FAILED
        assert detail.startswith("its certificate is not accepted: ")
        assert hook.calls == []
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        outcome, detail = WebhookCaller(options).post(b"{}", SLACK)
        if address == "127.0.0.1":
            assert (outcome, len(hook.calls)) == (CallOutcome.DELIVERED, 1)
        else:
            assert (outcome, hook.calls) == (CallOutcome.FAILED, [])
            assert "not valid for '127.0.0.1'" in detail

    def test_a_server_without_a_tls_handshake_is_given_up_in_time(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            options = WebhookOptions(f"https://127.0.0.1:{silent.getsockname()[1]}/", timeout=0.3)
            began = time.monotonic()
            answer = WebhookCaller(options).post(b"{}", 60)
        assert answer.outcome is CallOutcome.FAILED
        assert time.monotonic() - began < SLACK


class TestClosing:
    def test_closing_logs_and_sends_the_remaining_alerts(
        self, start: Start, hook: Hook, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        alerts = start(hook.port)
        alerts.dead_lettered(*A)
        clock.settle()
        alerts.dead_lettered(*A, 4)
        alerts.dead_lettered(*B, 2)
        alerts.close(SLACK)
        assert (hook.counts("A"), hook.counts("B")) == ([1, 4], [2])
        assert [line["dead_letters"] for line in lines(caplog) if line["type"] == "A"] == [1, 4]
        assert not lines(caplog, "webhook missed alerts")

    @pytest.mark.parametrize("behaviour", [hang, drip], ids=["hangs", "drips"])
    def test_closing_does_not_wait_for_a_running_call(
        self,
        behaviour: Callable[[Hook], Answering],
        start: Start,
        hook: Hook,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        hook.answer = behaviour(hook)
        alerts = start(hook.port, timeout=60)
        alerts.dead_lettered(*A, 2)
        wait_until(lambda: hook.calls)
        alerts.dead_lettered(*B, 3)
        began = time.monotonic()
        alerts.close(0.2)
        assert time.monotonic() - began < SLACK
        assert sum(line["dead_letters"] for line in lines(caplog)) == 5
        assert [line["dead_letters"] for line in lines(caplog, "webhook missed alerts")] == [5]

    def test_closing_tries_a_failing_webhook_once_more(
        self, start: Start, hook: Hook, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        hook.answer = status(500)
        alerts = start(hook.port)
        alerts.dead_lettered(*A)
        clock.settle()
        alerts.close(SLACK)
        assert len(hook.calls) == 2
        alerts.close(SLACK)
        assert [line["dead_letters"] for line in lines(caplog, "webhook missed alerts")] == [1]
        assert len(hook.calls) == 2


class TestOptions:
    @pytest.mark.parametrize(
        "url",
        [
            "",
            "hooks.example.org",
            "ftp://hooks.example.org",
            "http://",
            "https:///path",
            "https://user:hunter2@hooks.example.org",
            "https://hunter2@hooks.example.org",
            "https://hooks.example.org/#part",
            "https://hooks.example.org/a b",
            "https://hooks.example.org/a\r\nX: y",
            "https://hooks.example.org:99999/",
            "https://hooks.example.org:0/",
            "https://hooks.exämple.org/",
            "http://[::1/",
        ],
    )
    def test_an_invalid_address_is_refused_without_showing_it(self, url: str) -> None:
        with pytest.raises(ConfigError) as refused:
            WebhookOptions(url)
        assert "hunter2" not in str(refused.value)

    @pytest.mark.parametrize("name", ["", "Two Words", "X:", "Host", "content-length", "Content-Type", "Ünï"])
    def test_an_invalid_or_reserved_header_is_refused(self, name: str) -> None:
        with pytest.raises(ConfigError, match="cannot be sent"):
            WebhookOptions("https://hooks.example.org", {name: "x"})

    @pytest.mark.parametrize("value", ["hunter2\n", "hunter2\r\nX: y", "hunter2\x00", "hunter2…"])
    def test_an_invalid_header_value_is_refused_without_showing_it(self, value: str) -> None:
        with pytest.raises(ConfigError, match="Authorization") as refused:
            WebhookOptions("https://hooks.example.org", {"Authorization": value})
        assert "hunter2" not in str(refused.value)

    def test_printed_options_show_no_secret(self) -> None:
        options = WebhookOptions("https://hooks.example.org:8443/services/T0KEN?sig=x", {"Authorization": SECRET})
        assert "hunter2" not in repr(options)
        assert "T0KEN" not in repr(options)
        assert options.host == "https://hooks.example.org:8443"


def certificate(folder: Path, address: str) -> Path:
    """Creates a key and a self-signed certificate for an address, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hook")])
    today = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "hook.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return file
