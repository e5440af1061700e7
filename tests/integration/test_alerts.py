"""A failing webhook next to a pipeline at full speed, with real threads, sockets and time.

A thread that counts dead letters as fast as it can replaces the pipeline; there is no Kafka.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tailrace.testkit.stack import wait_until
from tailrace.worker.alerts import MAX_PAIRS, Alerts
from tailrace.worker.logs import StructuredLogger
from tailrace.worker.webhook import WebhookOptions

DEAD_LETTERS = 200_000
SLACK = 10.0  # what a busy machine may add to a limit
REASON = "schema_validation_failed"

Behaviour = Callable[[socket.socket, threading.Event], object]


def hang(_: socket.socket, over: threading.Event) -> None:
    over.wait(60)


def drip(caller: socket.socket, over: threading.Event) -> None:
    caller.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not over.wait(0.01):
        caller.sendall(b"x")


def fail(caller: socket.socket, _: threading.Event) -> None:
    caller.sendall(b"HTTP/1.1 500 Sorry\r\n\r\n")


def hang_up(_caller: socket.socket, _: threading.Event) -> None:
    pass


class Server:
    """Accepts calls, reads them and answers with a fault."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.calls: list[dict[str, Any]] = []
        self.behaviour = behaviour
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        with caller:
            try:
                received = b""
                while b"}" not in received:
                    received += caller.recv(65536)
                self.calls.append(json.loads(re.sub(rb"(?s)^.*?\r\n\r\n", b"", received)))
                self.behaviour(caller, self._over)
            except OSError:
                pass  # the caller hung up


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[Server]:
    server = Server(behaviour)
    try:
        yield server
    finally:
        server.close()


def count_all(alerts: Alerts) -> tuple[float, float]:
    """Counts dead letters in a separate thread; returns its elapsed seconds and its processor seconds."""
    took: list[tuple[float, float]] = []

    def pipeline() -> None:
        began, worked = time.monotonic(), time.thread_time()
        for number in range(DEAD_LETTERS):
            alerts.dead_lettered(REASON, f"Type{number % 1000}")
        took.append((time.monotonic() - began, time.thread_time() - worked))

    thread = threading.Thread(target=pipeline)
    thread.start()
    thread.join()
    return took[0]


@pytest.mark.parametrize("behaviour", [hang, drip, fail, hang_up])
def test_no_webhook_slows_a_busy_pipeline_or_its_end(behaviour: Behaviour, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tailrace")
    with serving(behaviour) as server:
        options = WebhookOptions(server.url, timeout=30)
        alerts = Alerts("orders", StructuredLogger(), options, dead_letter_topic="letters")
        alerts.dead_lettered(REASON, "First")
        wait_until(lambda: server.calls, what="a call under way")
        passed, worked = count_all(alerts)
        assert passed < SLACK  # not the 30 s that a single call may take
        assert worked / DEAD_LETTERS < 20e-6
        began = time.monotonic()
        alerts.close(0.5)
        assert time.monotonic() - began < 0.5 + SLACK
    fields = [(record.getMessage(), record.__dict__["fields"]) for record in caplog.records]
    # The log has the correct number in any case, and the number that the webhook missed.
    assert sum(field["dead_letters"] for event, field in fields if event == "dead-lettered") == DEAD_LETTERS + 1
    assert [field["dead_letters"] for event, field in fields if event == "webhook missed alerts"] == [DEAD_LETTERS + 1]


def test_after_an_outage_the_webhook_has_the_correct_total() -> None:
    with serving(fail) as server:
        options = WebhookOptions(server.url, interval=1)
        alerts = Alerts("orders", StructuredLogger(), options, dead_letter_topic="letters")
        count_all(alerts)
        wait_until(lambda: server.calls, what="a call that failed")
        failed = len(server.calls)

        def recover(caller: socket.socket, _: threading.Event) -> None:
            caller.sendall(b"HTTP/1.1 204 Fine\r\n\r\n")

        server.behaviour = recover
        wait_until(lambda: len(server.calls) > failed, 60, what="another attempt")
        alerts.close(60)
        calls = server.calls[-(MAX_PAIRS + 1) :]
        assert len({call["type"] for call in calls}) == MAX_PAIRS + 1
        assert sum(call["count"] for call in calls) == DEAD_LETTERS


def test_a_process_with_a_hanging_webhook_ends_at_once() -> None:
    program = """
import sys
from tailrace.worker.logs import StructuredLogger, configure
from tailrace.worker.alerts import Alerts
from tailrace.worker.webhook import WebhookOptions

configure(as_json=True)
alerts = Alerts("orders", StructuredLogger(), WebhookOptions(sys.argv[1], timeout=600), dead_letter_topic="letters")
alerts.dead_lettered("poison_message", "OrderPlaced")
input()
alerts.close(0.1)
"""
    with serving(hang) as server:
        command = [sys.executable, "-c", program, server.url]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                wait_until(lambda: server.calls, 60, what="a call under way")
                began = time.monotonic()
                _, errors = process.communicate("\n", timeout=60)
            finally:
                process.kill()
        assert time.monotonic() - began < SLACK
        assert process.returncode == 0
    logged = [json.loads(line) for line in errors.splitlines()]
    assert [line["event"] for line in logged] == ["dead-lettered", "webhook missed alerts"]
