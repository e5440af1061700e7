"""Positions and times as they are shown to people."""

from __future__ import annotations

import time

import pytest

from tailrace.cli.position import _nearest
from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.replay.source_log import describe_position, format_time
from tailrace.state.position_history import PositionEntry

LOG = LogIdentity("7", 1, "shop", "s", "public.outbox", "1/2/3")


def test_a_time_has_the_zone_of_its_own_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        assert format_time(1_751_364_000_000) == "2025-07-01 12:00:00 +0200"
        assert format_time(1_735_729_200_000) == "2025-01-01 12:00:00 +0100"
        assert describe_position(LsnPosition(LOG, 16, 0)) == "0/10"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_offsets_at_a_position_are_those_of_its_own_log() -> None:
    mine = PositionEntry(LsnPosition(LOG, 5, 1), 1)
    other = PositionEntry(LsnPosition(LogIdentity("8", 1, "shop", "s", "public.outbox", "1/2/3"), 6, 2), 2)
    assert _nearest([mine, other], LsnPosition(LOG, 9, 0)) == mine
    assert _nearest([other], LsnPosition(LOG, 9, 0)) is None
