"""When a rebuild may try to take the old one's place, what it waits for then, and when it says that it never can."""

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
def level() -> CatchUpCheck:
    return CatchUpCheck("summary", "summary.rebuild")


def test_near_is_who_has_read_what_was_there_when_it_began(level: CatchUpCheck) -> None:
    """Not less: a topic that the old one never read would be missing at first, without anybody waiting for it."""
    assert not level.is_near(ENDS, ENDS, {}, 0)
    assert not level.is_near(ENDS, ENDS, {FIRST: 10, SECOND: 19}, 1)
    # Nor more: on a busy topic one is always a little behind.
    assert level.is_near({FIRST: 15, SECOND: 99}, ENDS, {FIRST: 10, SECOND: 20}, LATE)


def test_a_topic_that_is_not_there_is_never_near(level: CatchUpCheck) -> None:
    assert not level.is_near({}, (), {}, 0)


def test_a_topic_made_anew_while_it_was_read_is_near_at_its_new_end(level: CatchUpCheck) -> None:
    assert not level.is_near(ENDS, ENDS, {}, 0)
    assert level.is_near({FIRST: 3, SECOND: 4}, ENDS, {FIRST: 3, SECOND: 4}, 1)


def test_positions_that_nothing_reads_any_more_are_not_waited_for(level: CatchUpCheck) -> None:
    level.is_near(ENDS, ENDS, ENDS, 0)
    old = {FIRST: 9, Partition("orders", 2): 7, Partition("left", 0): 5}
    assert level.wanted(old, ENDS) == {FIRST: 9}


def test_what_is_being_read_is_waited_for_even_if_kafka_did_not_name_it(level: CatchUpCheck) -> None:
    level.is_near({FIRST: 10}, ENDS, ENDS, 0)
    assert level.wanted({FIRST: 9, SECOND: 21}, {FIRST: 10, SECOND: 20}) == {FIRST: 9, SECOND: 21}


def test_partitions_of_others_are_waited_for_and_then_told(level: CatchUpCheck) -> None:
    assert not level.is_near(ENDS, {FIRST}, {FIRST: 10}, 0)
    assert not level.is_near(ENDS, {FIRST}, {FIRST: 10}, PATIENCE_SECONDS)
    with pytest.raises(ProjectionStalled) as caught:
        level.is_near(ENDS, {FIRST}, {FIRST: 10}, LATE)
    assert "orders[1]" in caught.value.what
    assert "orders[0]" not in caught.value.what
    assert "summary.rebuild" in caught.value.why
    assert "but one" in caught.value.remedy


def test_the_time_counts_from_when_they_were_taken_away(level: CatchUpCheck) -> None:
    assert not level.is_near(ENDS, {FIRST}, ENDS, 0)
    assert level.is_near(ENDS, ENDS, ENDS, 1)
    assert not level.is_near(ENDS, {FIRST}, ENDS, LATE)
    with pytest.raises(ProjectionStalled):
        level.is_near(ENDS, {FIRST}, ENDS, 2 * LATE)


def test_a_position_beyond_the_end_holds_nobody_up_and_is_told(level: CatchUpCheck) -> None:
    """The topic was made anew, so the new one never gets there."""
    assert level.is_near(ENDS, ENDS, ENDS, 0)
    level.wanted({FIRST: 11, SECOND: 20}, ENDS)
    # A new leader may know less for a moment.
    assert not level.is_near(ENDS, ENDS, ENDS, 1)
    assert level.is_near({FIRST: 11, SECOND: 20}, ENDS, ENDS, 2)
    assert not level.is_near(ENDS, ENDS, ENDS, 3)
    with pytest.raises(TopicReplaced) as caught:
        level.is_near(ENDS, ENDS, ENDS, 3 + LATE)
    assert "orders[0] ends at offset 10, but offset 11" in caught.value.what
