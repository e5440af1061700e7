"""Which stored positions show that the pipeline has passed a position in the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tailrace.errors import RecoveryUnfinished
from tailrace.positions.base import Position
from tailrace.positions.postgres import LogIdentity, LsnPosition, TableRead
from tailrace.positions.recovery_mark import Recovery
from tailrace.replay import table_points
from tailrace.replay.table_points import _reaches

AT = LsnPosition(LogIdentity("7", 1, "shop", "s", "public.outbox", "1/2/3"), 100, 5)
READING = replace(AT, lsn=200, table_read=TableRead("1:1:"))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_points, "POLL_SECONDS", 0)


def reaches(*later: Position | None) -> bool:
    found: Iterator[Position | None] = iter(later)
    return _reaches(AT, 200, lambda: next(found))


def test_a_position_of_the_stream_behind_the_end() -> None:
    assert reaches(replace(AT, lsn=199), replace(AT, lsn=200))
    assert not reaches(None), "it does not move any more"


def test_a_first_read_begins_at_the_end_and_has_passed_nothing() -> None:
    assert not reaches(READING)


@pytest.mark.parametrize("begun", [READING, replace(AT, lsn=0, creating=True)])
def test_a_recovery_under_way_has_passed_nothing(begun: LsnPosition) -> None:
    """Its slot begins at the end of the log; `archive` would delete rows that it has yet to publish."""
    with pytest.raises(RecoveryUnfinished):
        reaches(replace(begun, recovery=Recovery("r", 1)))
