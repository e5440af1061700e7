"""The derived state for every combination of announcement and server report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.check.health import KafkaStatus, Lag, PipelineHealth, SourceStatus, clock_ahead, derive_health
from tailrace.check.health_postgres import PostgresStatus, interpret
from tailrace.positions.postgres import LogIdentity, LsnPosition, TableRead
from tailrace.sources.postgres.observation import NOISE_BYTES
from tailrace.sources.postgres.resume_check import SlotState

LOG = LogIdentity("1", 1, "shop", "s", "public.outbox", "x")
POSITION = LsnPosition(LOG, 1_000_000, 10_000)
IDLE = SlotState("s", "pgoutput", "shop", None, 1_000_000, "reserved", None, 0, None)
READ = replace(IDLE, active_pid=7)
STATUS = PostgresStatus(IDLE, 1_000_000, 70_000)


def test_held_bytes_are_published_but_not_confirmed() -> None:
    held = replace(IDLE, confirmed_lsn=400_000)
    slot = interpret(replace(STATUS, slot=held), POSITION).slot
    assert slot is not None
    assert slot["held_bytes"] == 600_000
    ahead = interpret(replace(STATUS, slot=replace(IDLE, confirmed_lsn=2_000_000)), POSITION).slot
    assert ahead is not None
    assert ahead["held_bytes"] == 0


def announcement(state: str, **more: object) -> KafkaStatus:
    return KafkaStatus({"state": state, "at_ms": 9_000, **more} if state else {}, POSITION)


def health_of(kafka: KafkaStatus | None, postgres: PostgresStatus | None) -> PipelineHealth:
    position = kafka.position if kafka else None
    return derive_health("p", "postgres", kafka, interpret(postgres, position) if postgres else None, {})


def state_of(kafka: KafkaStatus | None, postgres: PostgresStatus | None) -> str:
    return health_of(kafka, postgres).state


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
def test_both_servers_answer(announced: str, slot: SlotState | None, state: str) -> None:
    health = health_of(announcement(announced), replace(STATUS, slot=slot))
    assert health.state == state
    if slot is READ and announced not in ("", "RUNNING"):
        assert "read by server process 7" in health.detail


@pytest.mark.parametrize(
    ("announced", "state"), [("RUNNING", "UNKNOWN"), ("", "UNKNOWN"), ("STOPPED", "STOPPED"), ("FAILED", "FAILED")]
)
def test_postgres_is_unavailable(announced: str, state: str) -> None:
    assert state_of(announcement(announced), None) == state


def test_kafka_or_both_servers_are_unavailable() -> None:
    assert state_of(None, replace(STATUS, slot=READ)) == "UNKNOWN"
    assert state_of(None, None) == "UNKNOWN"


def test_never_started_also_without_postgres() -> None:
    assert state_of(KafkaStatus(), replace(STATUS, slot=None)) == "NEVER STARTED"
    assert state_of(KafkaStatus(), None) == "NEVER STARTED"


def test_reading_the_table_needs_its_position_and_its_session() -> None:
    reading = replace(POSITION, table_read=TableRead("1:1:"))
    kafka = KafkaStatus({"state": "RUNNING", "at_ms": 9_000}, reading)
    assert state_of(kafka, replace(STATUS, reading_table=True)) == "RUNNING"
    assert state_of(kafka, STATUS) == "NOT RUNNING"
    # Another pipeline of the database may be the one that reads.
    assert state_of(announcement("RUNNING"), replace(STATUS, reading_table=True)) == "NOT RUNNING"


def test_the_detail_says_since_when_nobody_reads() -> None:
    health = health_of(announcement("RUNNING"), STATUS)
    assert "for 60 s at most" in health.detail
    assert health.since_ms is None
    health = health_of(announcement("RUNNING"), replace(STATUS, inactive_ms=50_000))
    assert "for 20 s;" in health.detail
    assert health.since_ms == 50_000


@pytest.mark.parametrize(
    ("slot", "ahead", "seconds"),
    [(READ, 0, 0), (READ, NOISE_BYTES, 0), (READ, NOISE_BYTES + 1, 60), (IDLE, 0, 0), (IDLE, 1, 60), (IDLE, -5, 0)],
)
def test_lag(slot: SlotState, ahead: int, seconds: int) -> None:
    health = health_of(announcement("RUNNING"), replace(STATUS, slot=slot, lsn=POSITION.lsn + ahead))
    assert (health.lag_bytes, health.lag_seconds) == (max(0, ahead), seconds)


def test_no_lag_without_a_position_or_a_server() -> None:
    assert health_of(announcement("RUNNING"), None).lag_bytes is None
    creating = KafkaStatus({"state": "RETRYING"}, replace(POSITION, lsn=0, creating=True))
    assert health_of(creating, STATUS).lag_bytes is None


def test_the_announced_error_is_shown() -> None:
    error = {"code": "SlotMissing", "what": "gone", "why": "", "remedy": "fix"}
    assert health_of(announcement("FAILED", error=error), STATUS).error == error


def test_without_the_right_to_see_sessions_the_state_is_unknown() -> None:
    blind = SourceStatus(70_000, "", "the server does not show", blind=True)
    for announced, state in (("RUNNING", "UNKNOWN"), ("", "UNKNOWN"), ("STOPPED", "STOPPED"), ("FAILED", "FAILED")):
        assert derive_health("p", "mongo", announcement(announced), blind, {}).state == state
    assert "announced RUNNING" in derive_health("p", "mongo", announcement("RUNNING"), blind, {}).detail


def test_an_unread_change_is_a_lag_whether_or_not_the_connector_runs() -> None:
    for reader in ("someone reads", ""):
        late = SourceStatus(70_000, reader, "nobody reads", lag=Lag(40_000))
        assert derive_health("p", "mongo", announcement("RUNNING"), late, {}).lag_seconds == 30
        assert derive_health("p", "mongo", announcement("RUNNING"), replace(late, lag=Lag(None)), {}).lag_seconds == 0


@pytest.mark.parametrize(("source", "name"), [("postgres", "Postgres"), ("mongo", "MongoDB")])
def test_an_unavailable_database_is_named(source: str, name: str) -> None:
    assert (
        derive_health("p", source, announcement("RUNNING"), None, {}).detail
        == f"{name} does not answer; the connector announced RUNNING"
    )


@pytest.mark.parametrize(("server", "ahead"), [(100.2, 0), (100, 0), (102.5, 2), (90, -10), (100.5, 0)])
def test_a_clock_differs_only_if_its_time_is_outside_the_request(server: float, ahead: float) -> None:
    assert clock_ahead(round(server * 1000), 100.0, 100.5) == ahead
