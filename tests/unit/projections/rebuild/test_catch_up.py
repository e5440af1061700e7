"""When a rebuild may try to swap, which positions it must reach, and when it reports that it never can."""

from __future__ import annotations

import pytest

from tailrace.errors import ProjectionStalled, TopicReplaced
from tailrace.projections.core.store import Partition
from tailrace.projections.rebuild.catch_up import PATIENCE_SECONDS, CatchUpCheck

FIRST = Partition("orders", 0)
SECOND = Partition("orders", 1)
ENDS = {FIRST: 10, SECOND: 20}
LATE = PATIENCE_SECONDS + 1


@pytest.fixture
def check() -> CatchUpCheck:
    return CatchUpCheck("summary", "summary.rebuild")


def test_a_rebuild_is_close_once_it_has_read_the_ends_that_it_first_saw(check: CatchUpCheck) -> None:
    """Not earlier: a topic that the old projection never read would be missing after the swap."""
    assert not check.is_close(ENDS, ENDS, {}, 0)
    assert not check.is_close(ENDS, ENDS, {FIRST: 10, SECOND: 19}, 1)
    # Not later: on a busy topic it is always a little behind.
    assert check.is_close({FIRST: 15, SECOND: 99}, ENDS, {FIRST: 10, SECOND: 20}, LATE)


def test_a_missing_topic_is_never_close(check: CatchUpCheck) -> None:
    assert not check.is_close({}, (), {}, 0)


def test_a_re_created_topic_is_close_at_its_new_end(check: CatchUpCheck) -> None:
    assert not check.is_close(ENDS, ENDS, {}, 0)
    assert check.is_close({FIRST: 3, SECOND: 4}, ENDS, {FIRST: 3, SECOND: 4}, 1)


def test_positions_that_nobody_reads_any_more_are_not_required(check: CatchUpCheck) -> None:
    check.is_close(ENDS, ENDS, ENDS, 0)
    old = {FIRST: 9, Partition("orders", 2): 7, Partition("left", 0): 5}
    assert check.required(old, ENDS) == {FIRST: 9}


def test_a_partition_that_is_read_is_required_even_if_kafka_did_not_list_it(check: CatchUpCheck) -> None:
    check.is_close({FIRST: 10}, ENDS, ENDS, 0)
    assert check.required({FIRST: 9, SECOND: 21}, {FIRST: 10, SECOND: 20}) == {FIRST: 9, SECOND: 21}


def test_partitions_of_other_members_are_reported_after_a_while(check: CatchUpCheck) -> None:
    assert not check.is_close(ENDS, {FIRST}, {FIRST: 10}, 0)
    assert not check.is_close(ENDS, {FIRST}, {FIRST: 10}, PATIENCE_SECONDS)
    with pytest.raises(ProjectionStalled) as caught:
        check.is_close(ENDS, {FIRST}, {FIRST: 10}, LATE)
    assert "orders[1]" in caught.value.what
    assert "orders[0]" not in caught.value.what
    assert "summary.rebuild" in caught.value.why
    assert "but one" in caught.value.remedy


def test_the_time_counts_from_the_last_revocation(check: CatchUpCheck) -> None:
    assert not check.is_close(ENDS, {FIRST}, ENDS, 0)
    assert check.is_close(ENDS, ENDS, ENDS, 1)
    assert not check.is_close(ENDS, {FIRST}, ENDS, LATE)
    with pytest.raises(ProjectionStalled):
        check.is_close(ENDS, {FIRST}, ENDS, 2 * LATE)


def test_a_position_beyond_the_end_blocks_nobody_and_is_reported(check: CatchUpCheck) -> None:
    """The topic was re-created, so the rebuild never reaches it."""
    assert check.is_close(ENDS, ENDS, ENDS, 0)
    check.required({FIRST: 11, SECOND: 20}, ENDS)
    # A new leader may know less for a moment.
    assert not check.is_close(ENDS, ENDS, ENDS, 1)
    assert check.is_close({FIRST: 11, SECOND: 20}, ENDS, ENDS, 2)
    assert not check.is_close(ENDS, ENDS, ENDS, 3)
    with pytest.raises(TopicReplaced) as caught:
        check.is_close(ENDS, ENDS, ENDS, 3 + LATE)
    assert "orders[0] ends at offset 10, but offset 11" in caught.value.what
