"""The delivery tracker notices every record that is dropped between fetch and projection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import RecordsDropped
from tailrace.projections.core.store import Partition
from tailrace.projections.faust.delivery import MAX_REREADS, DeliveryTracker, FetchedRange, ReadProgress

ORDERS = Partition("orders", 3)


def begun(start: int = 0, number: int = 1) -> DeliveryTracker:
    tracker = DeliveryTracker()
    tracker.begin({ORDERS: start}, number)
    return tracker


def fetch(tracker: DeliveryTracker, log_range: FetchedRange, offsets: list[int]) -> dict[int, int]:
    tracker.fetched(ORDERS, log_range, offsets[-1] if offsets else None)
    return log_range.previous_ends(offsets)


def test_a_record_that_follows_the_last_one_is_delivered() -> None:
    tracker = begun()
    previous_ends = fetch(tracker, FetchedRange(1, 0, 0, 6), [1, 2, 4])
    assert previous_ends == {1: 0, 2: 2, 4: 3}
    assert all(tracker.deliver(ORDERS, 1, previous_end, offset) for offset, previous_end in previous_ends.items())
    assert tracker.dropped([ORDERS]) == set()
    # Up to 9 there are only transaction markers; then comes a record.
    fetch(tracker, FetchedRange(1, 6, 5, 9), [])
    previous_ends = fetch(tracker, FetchedRange(1, 9, 5, 10), [9])
    assert tracker.deliver(ORDERS, 1, previous_ends[9], 9)
    assert tracker.dropped([ORDERS]) == set()
    assert tracker.progress(ORDERS) == ReadProgress(0, 10, 10)


def test_a_record_after_a_dropped_one_is_not_delivered() -> None:
    tracker = begun()
    fetch(tracker, FetchedRange(1, 0, 0, 3), [0, 1, 2])
    assert tracker.deliver(ORDERS, 1, 0, 0)
    assert not tracker.deliver(ORDERS, 1, 2, 2)
    assert tracker.dropped([ORDERS]) == {ORDERS}


def test_a_dropped_last_record_is_noticed_without_a_following_one() -> None:
    tracker = begun()
    fetch(tracker, FetchedRange(1, 0, 0, 2), [0, 1])
    assert tracker.deliver(ORDERS, 1, 0, 0)
    assert tracker.dropped([ORDERS]) == {ORDERS}


def test_a_lost_fetch_result_is_noticed_and_not_passed() -> None:
    tracker = begun()
    fetch(tracker, FetchedRange(1, 4, 3, 4), [])
    assert tracker.dropped([ORDERS]) == {ORDERS}
    assert tracker.progress(ORDERS) == ReadProgress(0, 0, 0)


def test_an_older_epoch_is_ignored() -> None:
    tracker = begun()
    tracker.begin({ORDERS: 2}, 2)
    fetch(tracker, FetchedRange(1, 0, 0, 7), [6])
    assert not tracker.deliver(ORDERS, 1, 2, 6)
    assert tracker.dropped([ORDERS]) == set()
    assert tracker.progress(ORDERS) == ReadProgress(2, 2, 2)


def test_a_missed_record_is_read_again_from_the_applied_offset() -> None:
    tracker = begun(5)
    tracker.missed(ORDERS)
    assert tracker.dropped([ORDERS]) == {ORDERS}
    assert tracker.reread_from(ORDERS, 0) == 5
    assert tracker.reread_from(ORDERS, 8) == 8
    tracker.begin({ORDERS: 8}, 2)
    assert tracker.dropped([ORDERS]) == set()


def test_records_that_are_dropped_repeatedly_end_the_worker() -> None:
    tracker = begun()
    for applied in (7, 8):
        for number in range(MAX_REREADS):
            assert tracker.reread_from(ORDERS, applied) == applied
            tracker.begin({ORDERS: applied}, number)
    with pytest.raises(RecordsDropped, match=r"orders\[3\]: records from offset 8 on") as caught:
        tracker.reread_from(ORDERS, 8)
    assert caught.value.exit_code == 3
    assert caught.value.remedy


def test_revoked_partitions_have_no_current_epoch() -> None:
    tracker = begun(4)
    tracker.end()
    tracker.missed(ORDERS)
    assert tracker.epoch(ORDERS) is None
    assert not tracker.deliver(ORDERS, 1, 4, 4)
    assert tracker.dropped([ORDERS]) == set()
    assert tracker.progress(ORDERS) == ReadProgress(4, 4, 4)
    tracker.forget()
    assert tracker.progress(ORDERS) is None


@given(st.lists(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=4), max_size=8), st.sets(st.integers(0, 7)))
def test_either_all_records_are_delivered_or_the_drop_is_noticed(
    log: list[list[tuple[bool, bool]]], lost: set[int]
) -> None:
    """Each list is one fetch: for each offset, whether it is a record, and whether it is dropped."""
    tracker, at, previous_end, records, delivered = begun(), 0, 0, [], []
    for number, fetched in enumerate(log):
        offsets = [at + index for index, (is_record, _) in enumerate(fetched) if is_record]
        log_range = FetchedRange(1, at, previous_end, at + len(fetched))
        if number not in lost:
            previous_ends = fetch(tracker, log_range, offsets)
            for offset in offsets:
                if not fetched[offset - at][1] and tracker.deliver(ORDERS, 1, previous_ends[offset], offset):
                    delivered.append(offset)
        records += offsets
        at, previous_end = log_range.end, offsets[-1] + 1 if offsets else previous_end
    fetch(tracker, FetchedRange(1, at, previous_end, at), [])
    assert delivered == records[: len(delivered)]
    assert delivered == records or tracker.dropped([ORDERS])
    progress = tracker.progress(ORDERS)
    assert progress is not None
    assert not [
        offset
        for offset in records[len(delivered) :]
        if offset < progress.committable(delivered[-1] + 1 if delivered else 0)
    ]
