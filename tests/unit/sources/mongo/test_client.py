"""Tests of client.py: every error of the driver becomes one of ours, and only temporary ones are retried."""

from __future__ import annotations

import pytest
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    InvalidOperation,
    InvalidURI,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from tailrace.errors import (
    AccessRefused,
    Action,
    ConfigError,
    EventTooLarge,
    HistoryLost,
    SourceError,
    SourceUnavailable,
    TailraceError,
)
from tailrace.sources.mongo.client import translate, translated_errors

RESUMABLE = {"errorLabels": ["ResumableChangeStreamError"]}


def refused(code: int | None, **details: object) -> OperationFailure:
    return OperationFailure("the server's words", code, {"ok": 0, **details})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (AutoReconnect("connection closed"), SourceUnavailable),
        (NetworkTimeout("timed out"), SourceUnavailable),
        (NotPrimaryError("not primary"), SourceUnavailable),
        (ServerSelectionTimeoutError("No replica set members found yet"), SourceUnavailable),
        (refused(43), SourceUnavailable),  # CursorNotFound
        (refused(91), SourceUnavailable),  # ShutdownInProgress
        (refused(189), SourceUnavailable),  # PrimarySteppedDown
        (refused(10107), SourceUnavailable),  # NotWritablePrimary
        (refused(11602), SourceUnavailable),  # InterruptedDueToReplStateChange
        (refused(50), SourceUnavailable),  # MaxTimeMSExpired
        (refused(4242, **RESUMABLE), SourceUnavailable),
        (refused(286), HistoryLost),  # ChangeStreamHistoryLost
        (refused(280), HistoryLost),  # ChangeStreamFatalError
        (refused(286, **RESUMABLE), HistoryLost),
        (refused(10334), EventTooLarge),  # BSONObjectTooLarge
        (refused(13), AccessRefused),  # Unauthorized
        (refused(18), AccessRefused),  # AuthenticationFailed
        (refused(40573), AccessRefused),  # a change stream on a server without a replica set
        (refused(4242), SourceError),
        (refused(None), SourceError),
        (InvalidOperation("client is closed"), SourceError),
        (ConfigurationError("unknown auth mechanism"), ConfigError),
        (InvalidURI("bad"), ConfigError),
    ],
)
def test_each_driver_error_becomes_one_of_ours(error: PyMongoError, expected: type[TailraceError]) -> None:
    ours = translate(error, "reading the change stream")
    assert type(ours) is expected
    assert ours.what
    assert ours.remedy
    assert (ours.action is Action.RETRY) == (expected is SourceUnavailable)


def test_a_refusal_names_the_operation_and_the_servers_message() -> None:
    ours = translate(refused(4242), "reading the change stream")
    assert ours.what == "MongoDB refuses reading the change stream"
    assert ours.why == "the server's words"


def test_the_servers_message_is_shortened() -> None:
    """The driver adds the whole response and the state of every member; a response may quote a document."""
    long = OperationFailure("no such\n  thing, full error: {'secret': 'value'}", 4242)
    assert translate(long, "x").why == "no such thing"
    away = ServerSelectionTimeoutError("h:27017: refused, Timeout: 30s, Topology Description: <…>")
    assert translate(away, "x").why == "h:27017: refused"
    assert len(translate(OperationFailure("x" * 9999, 4242), "x").why) == 300


def test_no_driver_error_escapes() -> None:
    with pytest.raises(SourceUnavailable) as caught, translated_errors("asking"):
        raise AutoReconnect("gone")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    with pytest.raises(ZeroDivisionError), translated_errors("asking"):
        raise ZeroDivisionError
