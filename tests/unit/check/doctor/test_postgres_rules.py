"""The rules over a Postgres server, at their limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace.check.doctor.postgres_rules import OtherSlot, PostgresFacts, check_postgres
from tailrace.check.result import CheckResult, State

FINE = PostgresFacts(
    version=170006,
    slot="tailrace_orders",
    wal_sender_timeout_ms=60_000,
    max_slots=20,
    used_slots=3,
    max_senders=20,
    used_senders=3,
    keep_bytes=50 << 30,
    own_bytes=1000,
    failover=False,
)


def found(**changes: Any) -> list[CheckResult]:
    return check_postgres(replace(FINE, **changes), "orders.yaml")


def codes(**changes: Any) -> list[str]:
    return [each.code for each in found(**changes)]


def test_nothing_to_report() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("milliseconds", "code"),
    [
        (0, "wal-sender-timeout-off"),
        (14_999, "wal-sender-timeout-short"),
        (15_000, ""),
        (600_000, ""),
        (600_001, "wal-sender-timeout-long"),
    ],
)
def test_wal_sender_timeout(milliseconds: int, code: str) -> None:
    assert codes(wal_sender_timeout_ms=milliseconds) == [code] * bool(code)


@pytest.mark.parametrize(("used", "reported"), [(17, False), (18, True), (19, True), (20, False)])
def test_headroom(used: int, reported: bool) -> None:
    """If none is left, the check of free slots reports it."""
    assert codes(used_slots=used) == ["slot-headroom"] * reported
    assert codes(used_senders=used) == ["wal-sender-headroom"] * reported


def test_retained_wal() -> None:
    assert codes(own_bytes=(1 << 30) - 1) == []
    assert codes(own_bytes=1 << 30) == ["slot-retains-wal"]
    assert codes(own_bytes=600, keep_bytes=1000) == ["slot-retains-wal"]
    assert codes(own_bytes=600, keep_bytes=-1) == []
    assert codes(own_bytes=None) == []


def test_slots_of_others() -> None:
    idle = OtherSlot("it's", active=False, retained_bytes=65 << 20)
    (reported,) = found(others=(idle,))
    assert (reported.code, reported.state) == ("foreign-slot", State.WARN)
    assert reported.fixes[0].text.startswith("SELECT pg_drop_replication_slot('it''s');")
    assert found(others=(replace(idle, retained_bytes=5),))[0].state is State.NOTE
    for harmless in (replace(idle, active=True), replace(idle, temporary=True), replace(idle, lost=True)):
        assert codes(others=(harmless,)) == []


def test_failover() -> None:
    (reported,) = found(standbys=("b",), enable_failover="psql x")
    assert reported.code == "slot-without-failover"
    assert [fix.kind for fix in reported.fixes] == ["yaml", "shell"]
    assert [fix.kind for fix in found(standbys=("b",), wants_failover=True, enable_failover="psql")[0].fixes] == [
        "shell"
    ]
    assert codes(standbys=("b",), version=160010) == []
    assert codes(standbys=("b",), failover=None) == []


def test_a_connector_ahead_of_the_standbys() -> None:
    standbys = (OtherSlot("a", active=True, retained_bytes=0, physical=True),)
    (reported,) = found(failover=True, standbys=("a",), others=standbys)
    assert reported.code == "slot-ahead-of-standby"
    assert "synchronized_standby_slots = 'a';" in reported.fixes[0].text
    assert codes(failover=True, others=standbys, synchronized_slots="a") == []
    gone = OtherSlot("gone", active=False, retained_bytes=0, physical=True)
    backup = OtherSlot("backup", active=True, retained_bytes=0, physical=True, temporary=True)
    (reported, _) = found(failover=True, standbys=("a",), others=(*standbys, gone, backup))
    assert "synchronized_standby_slots = 'a';" in reported.fixes[0].text
    assert codes(failover=True, others=(gone,)) == ["foreign-slot"]


def test_a_standby_that_does_not_synchronise() -> None:
    assert codes(in_recovery=True, failover=True, sync_slots=False) == ["slot-not-synced"]
    assert codes(in_recovery=True, failover=True, sync_slots=True) == []
