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
SEEN = MongoStatus(100_000, ("127.0.0.1:5",), waiting=NextChange())


def state_of(announced: str, seen: MongoStatus, position: TokenPosition = POSITION) -> str:
    news = KafkaStatus({"state": announced, "at_ms": 9_000}, position)
    return derive_health("p", "mongo", news, interpret(seen, position), {}).state


@pytest.mark.parametrize(
    ("announced", "seen", "state"),
    [
        ("RUNNING", SEEN, "RUNNING"),
        ("RUNNING", replace(SEEN, sessions=()), "NOT RUNNING"),
        ("RUNNING", replace(SEEN, sessions=None), "UNKNOWN"),
        ("STOPPED", SEEN, "RUNNING"),
        ("STOPPED", replace(SEEN, sessions=()), "STOPPED"),
        ("FAILED", replace(SEEN, sessions=None), "FAILED"),
        ("RETRYING", SEEN, "RETRYING"),
    ],
)
def test_who_is_connected(announced: str, seen: MongoStatus, state: str) -> None:
    assert state_of(announced, seen) == state


def test_reading_what_was_there_needs_a_session() -> None:
    reading = replace(POSITION, collection_read=CollectionRead("c0", None, 5))
    assert interpret(SEEN, POSITION).reading == ""
    assert "documents that existed before" in interpret(SEEN, reading).reading
    assert state_of("RUNNING", replace(SEEN, sessions=()), reading) == "NOT RUNNING"


def test_lag() -> None:
    """What nobody wrote for is no lag, however old the position is."""
    for seen, lag in ((SEEN, 0), (replace(SEEN, waiting=NextChange(70_000)), 30), (replace(SEEN, waiting=None), None)):
        news = KafkaStatus({"state": "RUNNING"}, POSITION)
        health = derive_health("p", "mongo", news, interpret(seen, POSITION), {})
        assert (health.lag_seconds, health.lag_bytes) == (lag, None)


def test_the_log() -> None:
    assert interpret(SEEN, POSITION).oplog == {
        "reaches_back": True, "window_seconds": None, "room_seconds": None, "full": None,
    }  # fmt: skip
    log = OplogRange(first=40, last=100, full=True)
    assert interpret(replace(SEEN, log=log, waiting=NextChange(1, lost=True)), POSITION).oplog == {
        "reaches_back": False, "window_seconds": 60, "room_seconds": 20, "full": True,
    }  # fmt: skip
    assert interpret(replace(SEEN, log=log, waiting=None), None).oplog == {
        "reaches_back": None, "window_seconds": 60, "room_seconds": None, "full": True,
    }  # fmt: skip
