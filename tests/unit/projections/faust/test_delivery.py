"""Records that are dropped between the fetch and the projection are noticed, whoever drops them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import RecordsDropped
from tailrace.projections.core.store import Partition
from tailrace.projections.faust.delivery import TRIES, DeliveryTracker
from tailrace.projections.faust.start_offsets import FetchedRange, ReadProgress

ORDERS = Partition("orders", 3)


def begun(start: int = 0, number: int = 1) -> DeliveryTracker:
    handover = DeliveryTracker()
    handover.begin({ORDERS: start}, number)
    return handover


def fetch(handover: DeliveryTracker, stretch: FetchedRange, offsets: list[int]) -> dict[int, int]:
    handover.fetched(ORDERS, stretch, offsets[-1] if offsets else None)
    return stretch.chain(offsets)


def test_what_follows_the_last_record_is_handed_over() -> None:
    handover = begun()
    chain = fetch(handover, FetchedRange(1, 0, 0, 6), [1, 2, 4])
    assert chain == {1: 0, 2: 2, 4: 3}
    assert all(handover.hand(ORDERS, 1, follows, offset) for offset, follows in chain.items())
    assert handover.dropped([ORDERS]) == set()
    # Up to 9 there are only transaction markers; then comes a record.
    fetch(handover, FetchedRange(1, 6, 5, 9), [])
    chain = fetch(handover, FetchedRange(1, 9, 5, 10), [9])
    assert handover.hand(ORDERS, 1, chain[9], 9)
    assert handover.dropped([ORDERS]) == set()
    assert handover.reach(ORDERS) == ReadProgress(0, 10, 10)


def test_a_record_behind_one_that_was_dropped_is_not_handed_over() -> None:
    handover = begun()
    fetch(handover, FetchedRange(1, 0, 0, 3), [0, 1, 2])
    assert handover.hand(ORDERS, 1, 0, 0)
    assert not handover.hand(ORDERS, 1, 2, 2)
    assert handover.dropped([ORDERS]) == {ORDERS}


def test_a_last_record_that_was_dropped_is_noticed_without_another_one() -> None:
    handover = begun()
    fetch(handover, FetchedRange(1, 0, 0, 2), [0, 1])
    assert handover.hand(ORDERS, 1, 0, 0)
    assert handover.dropped([ORDERS]) == {ORDERS}


def test_a_fetch_whose_answer_was_lost_is_noticed_and_not_passed() -> None:
    handover = begun()
    fetch(handover, FetchedRange(1, 4, 3, 4), [])
    assert handover.dropped([ORDERS]) == {ORDERS}
    assert handover.reach(ORDERS) == ReadProgress(0, 0, 0)


def test_what_an_older_reading_says_counts_for_nothing() -> None:
    handover = begun()
    handover.begin({ORDERS: 2}, 2)
    fetch(handover, FetchedRange(1, 0, 0, 7), [6])
    assert not handover.hand(ORDERS, 1, 2, 6)
    assert handover.dropped([ORDERS]) == set()
    assert handover.reach(ORDERS) == ReadProgress(2, 2, 2)


def test_what_a_lane_misses_is_read_again_from_where_it_is() -> None:
    handover = begun(5)
    handover.missed(ORDERS)
    assert handover.dropped([ORDERS]) == {ORDERS}
    assert handover.again(ORDERS, 0) == 5
    assert handover.again(ORDERS, 8) == 8
    handover.begin({ORDERS: 8}, 2)
    assert handover.dropped([ORDERS]) == set()


def test_what_is_dropped_time_and_again_ends_the_worker() -> None:
    handover = begun()
    for progress in (7, 8):
        for number in range(TRIES):
            assert handover.again(ORDERS, progress) == progress
            handover.begin({ORDERS: progress}, number)
    with pytest.raises(RecordsDropped, match=r"orders\[3\]: records from offset 8 on") as caught:
        handover.again(ORDERS, 8)
    assert caught.value.exit_code == 3
    assert caught.value.remedy


def test_partitions_that_were_taken_away_have_no_current_reading() -> None:
    handover = begun(4)
    handover.end()
    handover.missed(ORDERS)
    assert handover.number(ORDERS) is None
    assert not handover.hand(ORDERS, 1, 4, 4)
    assert handover.dropped([ORDERS]) == set()
    assert handover.reach(ORDERS) == ReadProgress(4, 4, 4)
    handover.forget()
    assert handover.reach(ORDERS) is None


@given(st.lists(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=4), max_size=8), st.sets(st.integers(0, 7)))
def test_either_all_records_are_handed_over_or_it_is_noticed(
    log: list[list[tuple[bool, bool]]], lost: set[int]
) -> None:
    """Each list is one fetch; of each offset: whether it is a record, and whether it is dropped on its way."""
    handover, at, follows, records, handed = begun(), 0, 0, [], []
    for number, fetched in enumerate(log):
        offsets = [at + index for index, (is_record, _) in enumerate(fetched) if is_record]
        stretch = FetchedRange(1, at, follows, at + len(fetched))
        if number not in lost:
            chain = fetch(handover, stretch, offsets)
            for offset in offsets:
                if not fetched[offset - at][1] and handover.hand(ORDERS, 1, chain[offset], offset):
                    handed.append(offset)
        records += offsets
        at, follows = stretch.end, offsets[-1] + 1 if offsets else follows
    fetch(handover, FetchedRange(1, at, follows, at), [])
    assert handed == records[: len(handed)]
    assert handed == records or handover.dropped([ORDERS])
    reach = handover.reach(ORDERS)
    assert reach is not None
    assert not [
        offset for offset in records[len(handed) :] if offset < reach.committable(handed[-1] + 1 if handed else 0)
    ]
