"""Which entry of the position history is still valid after a loss, and from where topics are read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.positions.base import to_stored
from tailrace.positions.postgres import LogIdentity, LsnPosition, TableRead
from tailrace.positions.recovery_mark import Recovery
from tailrace.recovery.evidence import MARGIN_MS, Evidence, begun_before, by_time, evaluate, is_true
from tailrace.recovery.rules import LONG_MS, SKEW_MS
from tailrace.sources.postgres.resume_check import ServerIdentity
from tailrace.state.position_history import PositionEntry

LOG = LogIdentity("7", 1, "shop", "tailrace_shop", "public.outbox", "1.9/2/3")
SAME = ServerIdentity("7", 1, 1000, "shop")
BACK = replace(SAME)
RESTORED = replace(SAME, timeline=2)
LEFT = {1: 500}
MINUTE = 60_000


def at(lsn: int, timeline: int = 1) -> LsnPosition:
    return LsnPosition(replace(LOG, timeline=timeline), lsn, lsn * MINUTE)


def entry(lsn: int, passed: str = "", **more: int) -> PositionEntry:
    """An entry of the minute that its LSN names."""
    return PositionEntry(at(lsn, **more), lsn * MINUTE, {"orders": {0: lsn}}, passed)


@pytest.mark.parametrize(
    ("position", "lost", "server", "left", "true"),
    [
        (at(400), at(400), SAME, {}, True),
        (at(401), at(400), SAME, {}, False),
        (at(400), None, SAME, {}, True),
        # Restored or promoted: what is behind the point where the old timeline was left is another history.
        (at(500), at(900), RESTORED, LEFT, True),
        (at(501), at(900), RESTORED, LEFT, False),
        (at(400), at(900), RESTORED, {}, False),
        (at(600, timeline=2), at(900), RESTORED, LEFT, True),
        # Restored without a new timeline: the point is not known.
        (at(400), at(401), BACK, {}, False),
        # Before that, its LSNs were those of another log.
        (replace(at(400), history="x"), at(900), SAME, {}, False),
        (replace(at(400), history="x"), replace(at(900), history="x"), SAME, {}, True),
        (at(400), at(400), replace(SAME, system_id="8"), {}, False),
        (at(400), at(400), replace(SAME, database="other"), {}, False),
    ],
)
def test_which_positions_are_still_valid(
    position: LsnPosition, lost: LsnPosition | None, server: ServerIdentity, left: dict[int, int], true: bool
) -> None:
    assert is_true(position, lost, server, left, went_back=server is BACK) is true


def weighed(
    entries: list[PositionEntry], lost: int = 900, server: ServerIdentity = SAME, next_xid: int = 5000
) -> Evidence:
    return evaluate(entries, at(lost), server, LEFT, next_xid, went_back=server is not SAME)


def test_the_last_true_entry_counts_up_to_its_oldest_running_transaction() -> None:
    """A savepoint of a running transaction may have any later id, and is not listed."""
    entries = [entry(1, "10:10:"), entry(2, "20:25:20"), entry(3), entry(901, "40:40:")]
    found = weighed(entries)
    assert (found.passed, found.entry) == (20, entries[1])
    assert weighed(entries, lost=1).passed == 10
    assert weighed([entry(3)]) == Evidence()
    assert weighed(entries, server=RESTORED).entry == entries[1], "behind the fork it would name new rows"


def test_positions_before_the_stream_have_passed_nothing() -> None:
    reading = replace(at(3), table_read=TableRead("1:1:"))
    assert weighed([PositionEntry(reading, 3 * MINUTE, {}, "10:10:")]) == Evidence()


def test_transaction_ids_too_far_apart_decide_nothing() -> None:
    assert weighed([entry(1, "10:10:")], next_xid=2**31 + 9).passed == 10
    assert weighed([entry(1, "10:10:")], next_xid=2**31 + 10) == Evidence()


def test_topics_are_read_from_well_before_the_oldest_running_transaction() -> None:
    """100 ran for half an hour, from the 50th minute on; what was committed meanwhile was published then."""
    calm = [entry(minute, f"{minute}:{minute}:") for minute in range(1, 51)]
    busy = [entry(minute, f"51:{minute}:51") for minute in range(52, 81)]
    found = weighed([*calm, *busy])
    assert found.passed == 51
    margin = MARGIN_MS // MINUTE
    assert found.offsets == {"orders": {0: 49 - margin}}, "the entry before that of 50, and the margin"
    assert found.from_ms == (49 - margin) * MINUTE + SKEW_MS


def test_without_an_older_entry_topics_are_read_whole() -> None:
    assert weighed([entry(1, "10:10:"), entry(2, "10:10:")]).offsets == {}
    assert weighed([entry(1), entry(2, "10:20:10")]).offsets == {}


def test_a_rewind_makes_topics_be_read_whole() -> None:
    """Positions that went back: earlier offsets prove nothing."""
    entries = [entry(minute, f"{minute}:{minute}:") for minute in range(1, 30)]
    assert weighed(entries).offsets != {}
    entries[25] = PositionEntry(at(3), 26 * MINUTE, {"orders": {0: 26}}, "")
    assert weighed(entries).offsets == {}


def test_the_first_start_is_known_unless_the_database_was_set_back() -> None:
    lost = to_stored(LsnPosition(LOG, 50, 9, begun="7:9:8"))
    assert begun_before(Recovery("r", 1, lost)) == "7:9:8"
    assert begun_before(Recovery("r", 1, lost, went_back=True)) == ""
    assert begun_before(Recovery("r", 1)) == ""


def test_by_time_alone() -> None:
    hour = LONG_MS // MINUTE
    entries = [entry(minute) for minute in range(1, 3 * hour)]
    found = by_time(entries, 2 * hour * MINUTE)
    assert found.passed is None
    assert found.offsets == {"orders": {0: hour - MARGIN_MS // MINUTE}}
    assert by_time(entries, None) == by_time(entries, MINUTE) == Evidence()
