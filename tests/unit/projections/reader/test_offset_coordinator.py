"""Where reading starts, when it must not start, and what is committed to Kafka."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import EventsLost, TopicReplaced
from tailrace.projections.core.store import Partition
from tailrace.projections.reader.offset_coordinator import OffsetCoordinator, PartitionBounds, start_offset
from tailrace.projections.reader.progress import ReadProgress

ORDERS = Partition("orders", 3)
HELD = PartitionBounds(10, 20)


@pytest.mark.parametrize("stored", [10, 15, 20])
def test_a_stored_position_within_the_log_is_where_reading_begins(stored: int) -> None:
    assert start_offset(ORDERS, stored, HELD, "earliest") == stored
    assert start_offset(ORDERS, stored, HELD, "latest") == stored


def test_without_a_stored_position_the_projection_decides() -> None:
    assert start_offset(ORDERS, None, HELD, "earliest") == 10
    assert start_offset(ORDERS, None, HELD, "latest") == 20


def test_a_position_before_the_log_means_that_events_are_lost() -> None:
    with pytest.raises(EventsLost) as caught:
        start_offset(ORDERS, 9, HELD, "latest")
    assert caught.value.exit_code == 3
    assert "orders[3] begins at offset 10, but offset 9" in caught.value.what
    assert "deleted 1 offsets" in caught.value.why
    assert "--reset earliest" in caught.value.remedy


def test_a_position_behind_the_log_means_another_topic() -> None:
    with pytest.raises(TopicReplaced) as caught:
        start_offset(ORDERS, 21, HELD, "earliest")
    assert caught.value.exit_code == 3
    assert "orders[3] ends at offset 20, but offset 21" in caught.value.what


def test_markers_behind_the_last_applied_record_are_passed() -> None:
    assert ReadProgress(start=0, delivered=7, passed=8).committable(7) == 8


def test_markers_behind_a_record_that_is_not_applied_yet_are_not_passed() -> None:
    assert ReadProgress(start=0, delivered=7, passed=8).committable(6) == 6


def test_a_log_without_records_is_passed_from_the_start() -> None:
    assert ReadProgress(start=5, delivered=5, passed=9).committable(None) == 9


def test_progress_of_an_older_assignment_does_not_set_kafka_back() -> None:
    assert ReadProgress(start=5, delivered=8, passed=8).committable(2) == 5


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.none() | st.integers(0, 200))
def test_nothing_that_is_not_applied_is_ever_committed(start: int, some: int, more: int, progress: int | None) -> None:
    reach = ReadProgress(start, start + some, start + some + more)
    committed = reach.committable(progress)
    applied = max(start, progress or 0)
    assert committed >= applied
    assert committed == applied or applied >= reach.delivered


async def _asked(coordinator: OffsetCoordinator) -> object:
    await coordinator.assigned({})
    await coordinator.revoked()
    return await coordinator.positions([])


def test_an_app_without_projections_has_no_positions() -> None:
    coordinator = OffsetCoordinator([])
    assert asyncio.run(_asked(coordinator)) == {}
    assert coordinator.progress() == {}
