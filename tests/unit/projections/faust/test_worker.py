"""How errors end a worker, and which lines are left out of the log because they are told at the end."""

from __future__ import annotations

import logging
import sys

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, KafkaTimeoutError

from tailrace.errors import EventsLost, KafkaUnavailable, ReadRefused
from tailrace.projections.faust.worker import for_people, tell_errors_once


def test_kafka_s_refusals_are_told_in_our_words() -> None:
    told = for_people(GroupAuthorizationFailedError("play"))
    assert isinstance(told, ReadRefused)
    assert "GroupAuthorizationFailedError" in told.what
    assert told.exit_code == 3


def test_what_kafka_does_not_answer_is_an_outage() -> None:
    assert isinstance(for_people(KafkaTimeoutError()), KafkaUnavailable)


def test_other_errors_stay_as_they_are() -> None:
    error = EventsLost("gone")
    assert for_people(error) is error


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged from here on."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    monkeypatch.setattr(logging.getLogger(), "handlers", [Lines()])
    tell_errors_once()
    return lines


def log_error(name: str, error: Exception) -> None:
    try:
        raise error
    except Exception:
        logging.getLogger(name).error("Crashed reason=%r", error, exc_info=sys.exc_info())


def test_an_error_that_ends_the_worker_is_not_told_by_each_service_of_faust(lines: list[str]) -> None:
    log_error("faust.projections", EventsLost("gone"))
    log_error("mode.services", EventsLost("gone"))
    logging.getLogger("mode.worker").critical("We experienced a crash! Reraising original exception...")
    assert lines == []


def test_other_errors_are_told_as_they_come(lines: list[str]) -> None:
    log_error("faust.agents.agent", ValueError("of an agent"))
    log_error("tailrace.projections", EventsLost("ours"))
    logging.getLogger("faust.app").warning("something")
    assert [line.partition("(")[0] for line in lines] == [
        "Crashed reason=ValueError",
        "Crashed reason=EventsLost",
        "something",
    ]
