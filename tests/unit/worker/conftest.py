"""Alerts that call a local webhook."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.webhook import SECRET, HandClock, Hook, Start
from tailrace.worker.alerts import Alerts
from tailrace.worker.logs import StructuredLogger
from tailrace.worker.webhook import WebhookOptions


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def hook(clock: HandClock) -> Iterator[Hook]:
    with Hook(clock) as hook:
        yield hook


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
