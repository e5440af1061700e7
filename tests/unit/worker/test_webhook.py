"""Calls of the webhook: retried, bounded in time, and without secrets in errors and logs."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from helpers.webhook import (
    SECRET,
    SLACK,
    A,
    Answering,
    B,
    HandClock,
    Hook,
    Start,
    certificate,
    drip,
    hang,
    lines,
    raw,
    status,
)
from tailrace.errors import ConfigError
from tailrace.worker.webhook import CallOutcome, WebhookCaller, WebhookOptions


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
