"""The replay window: how far the slot is confirmed, and when the window gives way."""

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
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="age"):
        ReplayWindow.parse(text)


def test_by_size_the_slot_follows_at_that_distance() -> None:
    holding = WindowTracker(ReplayWindow(size=10 * MB), 0, at(MB), ())
    assert holding.advance(at(5 * MB), SlotCapacity(), 0) == 0
    # Half of it: the server keeps up to twice as much.
    assert holding.advance(at(30 * MB), SlotCapacity(), 0) == 25 * MB
    # Never back, as after a reset to an older position.
    assert holding.advance(at(26 * MB), SlotCapacity(), 0) == 25 * MB


def test_never_beyond_what_is_stored() -> None:
    holding = WindowTracker(ReplayWindow(seconds=60), 50, at(100, 0), [at(100, 0), at(900, 0)])
    assert holding.advance(at(100, 0), SlotCapacity(), 10 * HOUR) == 100


def test_by_age_the_slot_follows_to_the_last_mark_that_is_old_enough() -> None:
    holding = WindowTracker(
        ReplayWindow(seconds=3600), 100, at(400, 3 * HOUR), [at(200, HOUR), at(300, 2 * HOUR), at(400, 3 * HOUR)]
    )
    assert holding.advance(at(410, 3 * HOUR), SlotCapacity(), 3 * HOUR) == 300
    assert holding.advance(at(500, 5 * HOUR), SlotCapacity(), 5 * HOUR) == 400
    assert holding.advance(at(600, 7 * HOUR), SlotCapacity(), 7 * HOUR) == 500


def test_with_nothing_known_of_the_past_all_that_the_slot_has_is_held_for_one_window() -> None:
    holding = WindowTracker(ReplayWindow(seconds=3600), 100, at(400, HOUR), ())
    assert holding.advance(at(450, HOUR + 60_000), SlotCapacity(), HOUR + 60_000) == 100
    assert holding.advance(at(460, 2 * HOUR), SlotCapacity(), 2 * HOUR) == 100
    # An idle outbox: the position moves, and the slot with it (I8).
    assert holding.advance(at(470, 4 * HOUR), SlotCapacity(), 4 * HOUR) >= 450


def test_of_both_the_one_that_reaches_less_far_back() -> None:
    window = ReplayWindow(seconds=3600, size=10 * MB)
    small = WindowTracker(window, 0, at(0, 0), [at(0, 0)])
    assert small.advance(at(30 * MB, 60_000), SlotCapacity(), 60_000) == 25 * MB
    old = WindowTracker(window, 0, at(MB, HOUR), [at(0, 0), at(MB, HOUR)])
    assert old.advance(at(2 * MB, 2 * HOUR), SlotCapacity(), 2 * HOUR) == MB


@pytest.mark.parametrize(("limit", "held"), [(1000, 250), (128, 32), (96, 16), (64, 0), (32, 0)])
def test_it_makes_the_server_keep_no_more_than_half_of_what_it_may_and_leaves_room_for_bursts(
    limit: int, held: int
) -> None:
    holding = WindowTracker(ReplayWindow(size=1000 * MB), 0, at(0), ())
    assert holding.advance(at(1000 * MB), SlotCapacity(limit=limit * MB, left=limit * MB), 0) == (1000 - held) * MB


def test_the_window_is_given_up_before_the_slot_is_lost() -> None:
    holding = WindowTracker(ReplayWindow(size=100 * MB), 0, at(0), ())
    room = SlotCapacity(limit=1000 * MB, left=249 * MB)
    assert room.is_short
    assert holding.advance(at(50 * MB), room, 0) == 50 * MB


def test_the_window_is_given_up_in_time_when_much_is_written() -> None:
    """What is left is compared with what may come until the server lets go of anything."""
    assert not SlotCapacity(limit=1000 * MB, left=401 * MB, recent=100 * MB).is_short
    assert SlotCapacity(limit=1000 * MB, left=399 * MB, recent=100 * MB).is_short
    assert not SlotCapacity(recent=100 * MB).is_short, "no bound"


def test_no_more_than_the_disk_has_free_beside_it() -> None:
    holding = WindowTracker(ReplayWindow(size=100 * MB), 0, at(0), ())
    roomy, tight, full = SlotCapacity(disk=500 * MB), SlotCapacity(disk=30 * MB), SlotCapacity(disk=0)
    assert holding.advance(at(40 * MB), roomy, 0) == 0
    assert not holding.is_cut(at(40 * MB), roomy)
    assert holding.advance(at(90 * MB), tight, 0) == 75 * MB
    assert holding.is_cut(at(90 * MB), tight)
    assert holding.advance(at(90 * MB), full, 0) == 90 * MB
    # What was let go does not come back when there is room again.
    assert holding.advance(at(95 * MB), roomy, 0) == 90 * MB
    assert not holding.is_cut(at(95 * MB), roomy)


def test_places_in_other_logs_are_not_taken_for_this_one() -> None:
    other = LsnPosition(replace(LOG, system_id="8"), 190, 0)
    holding = WindowTracker(ReplayWindow(seconds=24 * 3600), 90, at(200, 30 * HOUR), [other])
    assert holding.advance(at(210, 31 * HOUR), SlotCapacity(), 31 * HOUR) == 90


def test_a_window_by_size_remembers_nothing() -> None:
    holding = WindowTracker(ReplayWindow(size=MB), 0, at(0), ())
    tracemalloc.start()
    for lsn in range(20_000):
        holding.advance(at(lsn, lsn), SlotCapacity(), lsn)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000
