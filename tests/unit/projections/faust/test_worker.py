"""How errors end a worker, and which repeated log lines are dropped."""

from __future__ import annotations

import logging
import sys

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, KafkaTimeoutError

from tailrace.errors import EventsLost, KafkaUnavailable, ReadRefused
from tailrace.projections.faust.worker import filter_repeated_errors, translate_error


def test_an_authorization_error_of_kafka_is_translated() -> None:
    error = translate_error(GroupAuthorizationFailedError("shop"))
    assert isinstance(error, ReadRefused)
    assert "GroupAuthorizationFailedError" in error.what
    assert error.exit_code == 3


def test_a_timeout_of_kafka_is_an_outage() -> None:
    assert isinstance(translate_error(KafkaTimeoutError()), KafkaUnavailable)


def test_other_errors_stay_as_they_are() -> None:
    error = EventsLost("gone")
    assert translate_error(error) is error


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged from here on."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    monkeypatch.setattr(logging.getLogger(), "handlers", [Lines()])
    filter_repeated_errors()
    return lines


def log_error(name: str, error: Exception) -> None:
    try:
        raise error
    except Exception:
        logging.getLogger(name).error("Crashed reason=%r", error, exc_info=sys.exc_info())


def test_an_error_that_ends_the_worker_is_not_logged_by_each_service_of_faust(lines: list[str]) -> None:
    log_error("faust.projections", EventsLost("gone"))
    log_error("mode.services", EventsLost("gone"))
    logging.getLogger("mode.worker").critical("We experienced a crash! Reraising original exception...")
    assert lines == []


def test_other_errors_are_logged(lines: list[str]) -> None:
    log_error("faust.agents.agent", ValueError("of an agent"))
    log_error("tailrace.projections", EventsLost("ours"))
    logging.getLogger("faust.app").warning("something")
    assert [line.partition("(")[0] for line in lines] == [
        "Crashed reason=ValueError",
        "Crashed reason=EventsLost",
        "something",
    ]
