"""Tests of replay_window.py: how far the slot is confirmed, and when the window is given up."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.sources.postgres.replay_window import ReplayWindow, SlotCapacity, WindowTracker

LOG = LogIdentity("7", 1, "shop", "slot", "public.outbox", "1/1/1")
HOUR = 3_600_000
MB = 1 << 20


def at(lsn: int, at_ms: int = 0) -> LsnPosition:
    return LsnPosition(LOG, lsn, at_ms)


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("", ReplayWindow()),
        ("24 h", ReplayWindow(seconds=86400)),
        ("90min", ReplayWindow(seconds=5400)),
        ("2 GiB", ReplayWindow(size=2 << 30)),
        ("7 d, 512 MiB", ReplayWindow(seconds=7 * 86400, size=512 * MB)),
        ("512 MiB,7 d", ReplayWindow(seconds=7 * 86400, size=512 * MB)),
    ],
)
def test_a_window_is_read(text: str, window: ReplayWindow) -> None:
    assert ReplayWindow.parse(text) == window
    assert bool(window) == bool(text)


@pytest.mark.parametrize("text", ["24", "0 h", "-1 h", "2 GB", "1 h, 2 h", "1 MiB, 2 MiB", "h", "1 h,", "1.5 h"])
def test_invalid_windows_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="age"):
        ReplayWindow.parse(text)


def test_with_a_size_the_slot_follows_at_that_distance() -> None:
    tracker = WindowTracker(ReplayWindow(size=10 * MB), 0, at(MB), ())
    assert tracker.advance(at(5 * MB), SlotCapacity(), 0) == 0
    # Half of it: the server keeps up to twice as much.
    assert tracker.advance(at(30 * MB), SlotCapacity(), 0) == 25 * MB
    # Never backwards, as after a reset to an older position.
    assert tracker.advance(at(26 * MB), SlotCapacity(), 0) == 25 * MB


def test_the_slot_is_never_confirmed_beyond_the_stored_position() -> None:
    tracker = WindowTracker(ReplayWindow(seconds=60), 50, at(100, 0), [at(100, 0), at(900, 0)])
    assert tracker.advance(at(100, 0), SlotCapacity(), 10 * HOUR) == 100


def test_with_an_age_the_slot_follows_to_the_last_position_that_is_old_enough() -> None:
    tracker = WindowTracker(
        ReplayWindow(seconds=3600), 100, at(400, 3 * HOUR), [at(200, HOUR), at(300, 2 * HOUR), at(400, 3 * HOUR)]
    )
    assert tracker.advance(at(410, 3 * HOUR), SlotCapacity(), 3 * HOUR) == 300
    assert tracker.advance(at(500, 5 * HOUR), SlotCapacity(), 5 * HOUR) == 400
    assert tracker.advance(at(600, 7 * HOUR), SlotCapacity(), 7 * HOUR) == 500


def test_without_known_positions_the_slot_is_held_for_one_window() -> None:
    tracker = WindowTracker(ReplayWindow(seconds=3600), 100, at(400, HOUR), ())
    assert tracker.advance(at(450, HOUR + 60_000), SlotCapacity(), HOUR + 60_000) == 100
    assert tracker.advance(at(460, 2 * HOUR), SlotCapacity(), 2 * HOUR) == 100
    # An idle outbox: the position advances, and the slot with it (I8).
    assert tracker.advance(at(470, 4 * HOUR), SlotCapacity(), 4 * HOUR) >= 450


def test_with_size_and_age_the_smaller_window_counts() -> None:
    window = ReplayWindow(seconds=3600, size=10 * MB)
    small = WindowTracker(window, 0, at(0, 0), [at(0, 0)])
    assert small.advance(at(30 * MB, 60_000), SlotCapacity(), 60_000) == 25 * MB
    old = WindowTracker(window, 0, at(MB, HOUR), [at(0, 0), at(MB, HOUR)])
    assert old.advance(at(2 * MB, 2 * HOUR), SlotCapacity(), 2 * HOUR) == MB


@pytest.mark.parametrize(("limit", "held"), [(1000, 250), (128, 32), (96, 16), (64, 0), (32, 0)])
def test_the_window_uses_at_most_half_of_max_slot_wal_keep_size(limit: int, held: int) -> None:
    tracker = WindowTracker(ReplayWindow(size=1000 * MB), 0, at(0), ())
    assert tracker.advance(at(1000 * MB), SlotCapacity(limit=limit * MB, left=limit * MB), 0) == (1000 - held) * MB


def test_the_window_is_given_up_before_the_slot_is_lost() -> None:
    tracker = WindowTracker(ReplayWindow(size=100 * MB), 0, at(0), ())
    room = SlotCapacity(limit=1000 * MB, left=249 * MB)
    assert room.is_short
    assert tracker.advance(at(50 * MB), room, 0) == 50 * MB


def test_the_window_is_given_up_in_time_under_heavy_writes() -> None:
    """The remaining space is compared with what may be written until the server removes WAL."""
    assert not SlotCapacity(limit=1000 * MB, left=401 * MB, recent=100 * MB).is_short
    assert SlotCapacity(limit=1000 * MB, left=399 * MB, recent=100 * MB).is_short
    assert not SlotCapacity(recent=100 * MB).is_short, "no bound"


def test_the_window_is_limited_by_free_disk_space() -> None:
    tracker = WindowTracker(ReplayWindow(size=100 * MB), 0, at(0), ())
    roomy, tight, full = SlotCapacity(disk=500 * MB), SlotCapacity(disk=30 * MB), SlotCapacity(disk=0)
    assert tracker.advance(at(40 * MB), roomy, 0) == 0
    assert not tracker.is_cut(at(40 * MB), roomy)
    assert tracker.advance(at(90 * MB), tight, 0) == 75 * MB
    assert tracker.is_cut(at(90 * MB), tight)
    assert tracker.advance(at(90 * MB), full, 0) == 90 * MB
    # Confirmed log does not come back when there is space again.
    assert tracker.advance(at(95 * MB), roomy, 0) == 90 * MB
    assert not tracker.is_cut(at(95 * MB), roomy)


def test_positions_of_other_logs_are_ignored() -> None:
    other = LsnPosition(replace(LOG, system_id="8"), 190, 0)
    tracker = WindowTracker(ReplayWindow(seconds=24 * 3600), 90, at(200, 30 * HOUR), [other])
    assert tracker.advance(at(210, 31 * HOUR), SlotCapacity(), 31 * HOUR) == 90


def test_a_window_by_size_keeps_no_positions() -> None:
    tracker = WindowTracker(ReplayWindow(size=MB), 0, at(0), ())
    tracemalloc.start()
    for lsn in range(20_000):
        tracker.advance(at(lsn, lsn), SlotCapacity(), lsn)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000
