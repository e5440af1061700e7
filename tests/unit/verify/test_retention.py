"""A row that is not found counts as deleted only if its record may have been deleted."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.routing.partition import partition_of
from tailrace.verify.retention import Horizon, RetainedRange, Retention

NOW = 1_000_000
KEYS = [f"key-{number}".encode() for number in range(40)]


def keys_on(partition: int, partitions: int) -> list[bytes]:
    return [key for key in KEYS if partition_of(key, partitions) == partition]


def topic(firsts: dict[int, float], rule: Retention, *, partitions: int = 2, emptied: bool = False) -> RetainedRange:
    rules = {number: rule.keeps_since(NOW, emptied=emptied) for number in firsts}
    return RetainedRange(partitions, firsts, rules, by_age=rule.bytes < 0)


@pytest.mark.parametrize(
    ("config", "emptied", "since"),
    [
        ({"retention.ms": "1000", "retention.bytes": "-1"}, False, NOW - 1000),
        ({"retention.ms": "1000", "retention.bytes": "-1"}, True, NOW - 1000),
        ({"retention.ms": "1000", "retention.bytes": "5"}, False, inf),
        ({"retention.ms": "1000", "retention.bytes": "5"}, True, NOW - 1000),  # by size it would have kept the last
        ({"retention.ms": "1000", "retention.bytes": "0"}, True, inf),
        ({"retention.ms": "-1", "retention.bytes": "-1"}, True, 0),
        ({"retention.ms": "-1", "retention.bytes": "5"}, False, inf),
        ({}, True, 0),
    ],
)
def test_what_the_retention_settings_keep(config: dict[str, str], emptied: bool, since: float) -> None:
    assert Retention.of(config).keeps_since(NOW, emptied=emptied) == since


def test_each_partition_has_its_own_horizon() -> None:
    horizon = topic({0: 500}, Retention(0, -1)).horizon(by_key=True)
    assert horizon.since == (500, 0)
    here, there = keys_on(0, 2)[0], keys_on(1, 2)[0]
    assert horizon.is_beyond(here, 499)
    assert not horizon.is_beyond(here, 500)
    assert not horizon.is_beyond(there, 499)
    assert not horizon.is_beyond(there, 0)


def test_without_a_key_it_may_have_been_anywhere() -> None:
    kept = topic({0: 500}, Retention(0, -1))
    for key, by_key in ((None, True), (None, False), (keys_on(1, 2)[0], False)):
        assert kept.horizon(by_key=by_key).is_beyond(key, 499)
        assert not kept.horizon(by_key=by_key).is_beyond(key, 500)


@given(
    first=st.sampled_from([0, NOW - 20, inf]),
    age=st.integers(0, 10),
    key=st.sampled_from([None, *KEYS]),
    by_key=st.booleans(),
    grown=st.booleans(),
)
def test_nothing_younger_than_retention_counts_as_deleted(
    first: float, age: int, key: bytes | None, by_key: bool, grown: bool
) -> None:
    """Partitions may be quiet or empty, keys may be unknown or may have moved."""
    kept = topic({0: first, 2: inf}, Retention(10, -1), partitions=3)
    if grown:
        kept.note(2, NOW, KEYS)
    assert not kept.horizon(by_key=by_key).is_beyond(key, NOW - age)


def test_a_topic_with_added_partitions() -> None:
    by_age, by_size = (topic({0: 700, 1: 500}, rule, partitions=4) for rule in (Retention(100, -1), Retention(100, 9)))
    new = keys_on(3, 4)[0]
    for kept in (by_age, by_size):
        kept.note(0, 700, keys_on(0, 4))
        assert kept.horizon(by_key=True).since == (700, 500, 0, 0), "each key is where it goes today"
        assert not kept.horizon(by_key=True).is_beyond(new, 499)
        kept.note(1, 500, keys_on(1, 2))  # some of which go elsewhere now
    assert by_age.horizon(by_key=True) == Horizon((700,), by_key=False)
    assert by_size.horizon(by_key=True) == Horizon((0,), by_key=False)
    assert by_size.horizon(by_key=False).since == (700, 500, 0, 0), "without keys the partition count shows nothing"


def test_a_topic_that_does_not_keep_every_event() -> None:
    kept = RetainedRange(2, {}, {}, keeps_all=False)
    assert kept.since == inf
    assert kept.horizon(by_key=True).is_beyond(KEYS[0], NOW)
    assert not kept.is_unexplained


def test_what_is_known_of_the_whole_topic() -> None:
    kept = topic({0: inf, 1: 500}, Retention(100, -1))
    assert [kept.is_unread(partition) for partition in (0, 1, 2)] == [True, False, False]
    assert kept.since == inf
    assert kept.is_unexplained
    kept.note(0, 800, [])
    assert (kept.since, kept.is_unread(0), kept.is_unexplained) == (800, False, False)
    assert topic({}, Retention(100, -1)).since == 0
