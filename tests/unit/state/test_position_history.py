"""Entries of the position history: written, read, and found by time."""

from __future__ import annotations

import json

import pytest

from tailrace.kafka.client import KafkaOptions
from tailrace.positions.mongo import ClusterTime, StreamIdentity, TokenPosition
from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.state.position_history import (
    PositionEntry,
    TopicEnds,
    before,
    history_topic,
    key,
    offsets_at,
    topic_ends,
)

LOG = LogIdentity("7", 1, "shop", "slot", "public.outbox", "1/1/1")
OPTIONS = KafkaOptions("localhost:9092", "orders")


def entry(lsn: int, at_ms: int, sampled_ms: int | None = None, **offsets: dict[int, int]) -> PositionEntry:
    return PositionEntry(LsnPosition(LOG, lsn, at_ms), at_ms if sampled_ms is None else sampled_ms, offsets)


def test_an_entry_is_read_as_it_was_written() -> None:
    token = TokenPosition(StreamIdentity("rs", "shop", {"outbox": "u"}, "f"), {"_data": "82"}, ClusterTime(1, 2), 5)
    for each in (PositionEntry(LsnPosition(LOG, 9, 5), 6, {"t": {0: 4, 1: 7}}, "1:2:"), PositionEntry(token, 6)):
        assert PositionEntry.from_json(json.loads(json.dumps(each.to_json()))) == each


def test_entries_of_a_minute_share_a_key() -> None:
    assert key(OPTIONS, entry(1, 59_999)) == key(OPTIONS, entry(2, 1)) == b"orders/1970-01-01T00:00Z"
    assert key(OPTIONS, entry(1, 60_000)) == b"orders/1970-01-01T00:01Z"
    assert history_topic(OPTIONS) == "tailrace-offsets-ledger"


@pytest.mark.parametrize(("at_ms", "lsn"), [(9, None), (10, 1), (29, 2), (30, 3), (99, 3)])
def test_the_last_entry_before_a_moment(at_ms: int, lsn: int | None) -> None:
    found = before([entry(1, 10), entry(2, 20), entry(3, 30)], at_ms)
    assert (found and found.position) == (None if lsn is None else LsnPosition(LOG, lsn, lsn * 10))


def test_after_a_rewind_the_entry_that_skips_nothing_is_used() -> None:
    entries = [entry(1, 10, 100), entry(3, 30, 110), entry(2, 20, 120), entry(4, 40, 130)]
    found = before(entries, 25)
    assert found is not None
    assert found.position.at_ms == 10
    assert before([], 25) is None


def test_offsets_of_other_topics_come_from_earlier_entries() -> None:
    entries = [entry(1, 10, a={0: 1, 1: 2}, b={0: 5}), entry(2, 20, a={0: 3}), entry(3, 30, a={0: 9}, c={0: 1})]
    assert offsets_at(entries, entries[1]) == {"a": {0: 3, 1: 2}, "b": {0: 5}}


def test_a_topic_whose_end_moved_back_was_recreated() -> None:
    """Earlier offsets belong to the deleted topic, later ones to the new topic."""
    grown = [entry(1, 10, a={0: 5, 1: 5}, b={0: 9}), entry(2, 20, a={0: 90})]
    entries = [*grown, entry(3, 30, a={0: 40}), entry(4, 40, a={0: 41, 1: 1})]
    assert offsets_at(grown, grown[0]) == {"a": {0: 5, 1: 5}, "b": {0: 9}}
    assert offsets_at(entries, entries[0]) == offsets_at(entries, entries[1]) == {"b": {0: 9}}
    assert offsets_at(entries, entries[2]) == {"a": {0: 40}, "b": {0: 9}}
    assert offsets_at(entries, entries[3]) == {"a": {0: 41, 1: 1}, "b": {0: 9}}
    assert topic_ends(grown) == {"a": TopicEnds({0: 90, 1: 5}), "b": TopicEnds({0: 9})}
    assert topic_ends(entries) == {"a": TopicEnds({0: 41, 1: 1}, 30), "b": TopicEnds({0: 9})}
    assert topic_ends([]) == {}
