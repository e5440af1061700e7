"""What MongoDB's responses mean for a pipeline: sessions, next change, oplog."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.check.health import KafkaStatus, derive_health
from tailrace.check.health_mongo import MongoStatus, NextChange, OplogRange, interpret
from tailrace.positions.mongo import ClusterTime, CollectionRead, StreamIdentity, TokenPosition

POSITION = TokenPosition(
    StreamIdentity("rs0", "shop", {"outbox": ""}, "x"), {"_data": "82"}, ClusterTime(60, 1), 60_000
)
STATUS = MongoStatus(100_000, ("127.0.0.1:5",), waiting=NextChange())


def state_of(announced: str, status: MongoStatus, position: TokenPosition = POSITION) -> str:
    announcement = KafkaStatus({"state": announced, "at_ms": 9_000}, position)
    return derive_health("p", "mongo", announcement, interpret(status, position), {}).state


@pytest.mark.parametrize(
    ("announced", "status", "state"),
    [
        ("RUNNING", STATUS, "RUNNING"),
        ("RUNNING", replace(STATUS, sessions=()), "NOT RUNNING"),
        ("RUNNING", replace(STATUS, sessions=None), "UNKNOWN"),
        ("STOPPED", STATUS, "RUNNING"),
        ("STOPPED", replace(STATUS, sessions=()), "STOPPED"),
        ("FAILED", replace(STATUS, sessions=None), "FAILED"),
        ("RETRYING", STATUS, "RETRYING"),
    ],
)
def test_the_state_depends_on_the_sessions(announced: str, status: MongoStatus, state: str) -> None:
    assert state_of(announced, status) == state


def test_reading_existing_documents_needs_a_session() -> None:
    reading = replace(POSITION, collection_read=CollectionRead("c0", None, 5))
    assert interpret(STATUS, POSITION).reading == ""
    assert "documents that existed before" in interpret(STATUS, reading).reading
    assert state_of("RUNNING", replace(STATUS, sessions=()), reading) == "NOT RUNNING"


def test_lag() -> None:
    """Without newer changes there is no lag, however old the position is."""
    for status, lag in (
        (STATUS, 0),
        (replace(STATUS, waiting=NextChange(70_000)), 30),
        (replace(STATUS, waiting=None), None),
    ):
        announcement = KafkaStatus({"state": "RUNNING"}, POSITION)
        health = derive_health("p", "mongo", announcement, interpret(status, POSITION), {})
        assert (health.lag_seconds, health.lag_bytes) == (lag, None)


def test_oplog() -> None:
    assert interpret(STATUS, POSITION).oplog == {
        "reaches_back": True, "window_seconds": None, "room_seconds": None, "full": None,
    }  # fmt: skip
    log = OplogRange(first=40, last=100, full=True)
    assert interpret(replace(STATUS, log=log, waiting=NextChange(1, lost=True)), POSITION).oplog == {
        "reaches_back": False, "window_seconds": 60, "room_seconds": 20, "full": True,
    }  # fmt: skip
    assert interpret(replace(STATUS, log=log, waiting=None), None).oplog == {
        "reaches_back": None, "window_seconds": 60, "room_seconds": None, "full": True,
    }  # fmt: skip
