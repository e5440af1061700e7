"""The derived state: every pairing of what was announced with what the servers see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.position import LogIdentity, Position, TableRead
from tailrace.sources.postgres.admission import Slot
from tailrace.worker.health import NOISE_BYTES, News, Server, human_seconds, judge

LOG = LogIdentity("1", 1, "shop", "s", "public.outbox", "x")
POSITION = Position(LOG, 1_000_000, 10_000)
IDLE = Slot("s", "pgoutput", "shop", None, 1_000_000, "reserved", None, 0, None)
READ = replace(IDLE, active_pid=7)
SERVER = Server(IDLE, 1_000_000, 70_000)


def news(state: str, **more: object) -> News:
    return News({"state": state, "at_ms": 9_000, **more} if state else {}, POSITION)


def state_of(told: News | None, server: Server | None) -> str:
    return judge("p", told, server, {}).state


@pytest.mark.parametrize(
    ("announced", "slot", "state"),
    [
        ("RUNNING", READ, "RUNNING"),
        ("RUNNING", IDLE, "NOT RUNNING"),
        ("RUNNING", None, "NOT RUNNING"),
        ("", READ, "RUNNING"),
        ("", IDLE, "NOT RUNNING"),
        ("STOPPED", IDLE, "STOPPED"),
        ("STOPPED", READ, "RUNNING"),
        ("FAILED", IDLE, "FAILED"),
        ("FAILED", READ, "FAILED"),
        ("RETRYING", IDLE, "RETRYING"),
        ("RETRYING", READ, "RETRYING"),
    ],
)
def test_both_servers_answer(announced: str, slot: Slot | None, state: str) -> None:
    health = judge("p", news(announced), replace(SERVER, slot=slot), {})
    assert health.state == state
    if slot is READ and announced not in ("", "RUNNING"):
        assert "read by server process 7" in health.detail


@pytest.mark.parametrize(
    ("announced", "state"), [("RUNNING", "UNKNOWN"), ("", "UNKNOWN"), ("STOPPED", "STOPPED"), ("FAILED", "FAILED")]
)
def test_postgres_is_away(announced: str, state: str) -> None:
    assert state_of(news(announced), None) == state


def test_kafka_is_away_or_both() -> None:
    assert state_of(None, replace(SERVER, slot=READ)) == "UNKNOWN"
    assert state_of(None, None) == "UNKNOWN"


def test_never_started_also_without_postgres() -> None:
    assert state_of(News(), replace(SERVER, slot=None)) == "NEVER STARTED"
    assert state_of(News(), None) == "NEVER STARTED"


def test_reading_the_table_needs_its_position_and_its_session() -> None:
    reading = replace(POSITION, table_read=TableRead("1:1:"))
    told = News({"state": "RUNNING", "at_ms": 9_000}, reading)
    assert state_of(told, replace(SERVER, reading_table=True)) == "RUNNING"
    assert state_of(told, SERVER) == "NOT RUNNING"
    # Another pipeline of the database may be the one that reads.
    assert state_of(news("RUNNING"), replace(SERVER, reading_table=True)) == "NOT RUNNING"


def test_for_how_long_it_has_been_gone() -> None:
    health = judge("p", news("RUNNING"), SERVER, {})
    assert "for 60 s at most" in health.detail
    assert health.since_ms is None
    health = judge("p", news("RUNNING"), replace(SERVER, inactive_ms=50_000), {})
    assert "for 20 s;" in health.detail
    assert health.since_ms == 50_000


@pytest.mark.parametrize(
    ("slot", "ahead", "seconds"),
    [(READ, 0, 0), (READ, NOISE_BYTES, 0), (READ, NOISE_BYTES + 1, 60), (IDLE, 0, 0), (IDLE, 1, 60), (IDLE, -5, 0)],
)
def test_lag(slot: Slot, ahead: int, seconds: int) -> None:
    health = judge("p", news("RUNNING"), replace(SERVER, slot=slot, lsn=POSITION.lsn + ahead), {})
    assert (health.lag_bytes, health.lag_seconds) == (max(0, ahead), seconds)


def test_no_lag_without_a_position_or_a_server() -> None:
    assert judge("p", news("RUNNING"), None, {}).lag_bytes is None
    creating = News({"state": "RETRYING"}, replace(POSITION, lsn=0, creating=True))
    assert judge("p", creating, SERVER, {}).lag_bytes is None


def test_the_error_is_told() -> None:
    error = {"code": "SlotMissing", "what": "gone", "why": "", "remedy": "mend"}
    assert judge("p", news("FAILED", error=error), SERVER, {}).error == error


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59, "59 s"), (119, "119 s"), (600, "10 min"), (7200, "2 h"), (200_000, "2 d")]
)
def test_human_seconds(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text
