"""Tests of positions/mongo.py: storing and parsing, order, and refused values."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.positions.base import from_stored, to_stored
from tailrace.positions.first_read import FirstRead
from tailrace.positions.mongo import ClusterTime, CollectionRead, StreamIdentity, TokenPosition
from tailrace.positions.recovery_mark import Recovery

TEXT = st.text(max_size=20)
LOG = StreamIdentity("rs0", "shop", {"outbox": "ab"}, "f")
AT = TokenPosition(LOG, {"_data": "82A0"}, ClusterTime(60, 5), 7)
UNSIGNED = st.integers(0, 2**32 - 1)

times = st.builds(ClusterTime, UNSIGNED, UNSIGNED)
positions = st.builds(
    TokenPosition,
    st.builds(StreamIdentity, TEXT, TEXT, st.dictionaries(TEXT, TEXT), TEXT),
    st.builds(lambda data, more: {**more, "_data": data}, TEXT, st.dictionaries(TEXT, TEXT, max_size=1)),
    times,
    st.integers(0, 2**50),
    UNSIGNED,
    st.none() | st.builds(CollectionRead, st.integers(0, 99), st.none() | TEXT, UNSIGNED, TEXT),
    st.none() | st.builds(Recovery, TEXT, UNSIGNED, st.none() | st.dictionaries(TEXT, TEXT), st.none() | UNSIGNED),
    TEXT,
    st.none() | st.builds(FirstRead, TEXT, TEXT, UNSIGNED),
)


@given(positions)
def test_a_stored_position_is_parsed_unchanged(position: TokenPosition) -> None:
    assert from_stored(json.loads(json.dumps(to_stored(position)))) == position


@given(times)
def test_a_time_is_parsed_as_it_is_written(time: ClusterTime) -> None:
    assert ClusterTime.parse(str(time)) == time


def test_the_stored_form_is_readable() -> None:
    stored = to_stored(replace(AT, ordinal=3))
    assert stored == {
        "format": 1,
        "source": "mongo",
        "token": {"_data": "82A0"},
        "time": "60.5",
        "ordinal": 3,
        "at_ms": 7,
        "log": {"replica_set": "rs0", "database": "shop", "collections": {"outbox": "ab"}, "pipeline": "f"},
    }
    read = to_stored(replace(AT, collection_read=CollectionRead("c1", "x", 9)))["collection_read"]
    assert read == {"collection": "c1", "after": "x", "documents": 9}


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"source": "postgres"},
        {"source": "mysql"},
        {"token": None},
        {"token": "82A0"},
        {"token": {}},
        {"token": {"_data": 82}},
        {"time": "60"},
        {"time": "60.5.1"},
        {"time": "soon"},
        {"time": None},
        {"time": 60.5},
        {"ordinal": None},
        {"at_ms": "soon"},
        {"log": None},
        {"log": {"replica_set": "rs0"}},
        {"log": {**asdict(LOG), "more": 1}},
        {"log": {**asdict(LOG), "collections": None}},
        {"collection_read": {"more": 1}},
        {"collection_read": "half"},
    ],
)
def test_an_invalid_position_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        from_stored(to_stored(AT) | change)


@pytest.mark.parametrize("field", ["format", "source", "token", "time", "ordinal", "at_ms", "log"])
def test_an_incomplete_position_is_refused(field: str) -> None:
    stored = to_stored(AT)
    del stored[field]
    with pytest.raises(KeyError):
        from_stored(stored)


def test_progress_grows_from_the_collection_to_the_stream() -> None:
    life = [
        replace(AT, collection_read=CollectionRead()),
        replace(AT, collection_read=CollectionRead("c0", "x", 9)),
        replace(AT, collection_read=CollectionRead("c0", "y", 10)),
        replace(AT, collection_read=CollectionRead("c10", "z", 11)),
        AT,
        replace(AT, token={"_data": "82A01"}),
        replace(AT, token={"_data": "82B"}),
    ]
    for before, after in itertools.pairwise(life):
        assert before.progress < after.progress


@given(times, times)
def test_tokens_sort_like_their_times(one: ClusterTime, other: ClusterTime) -> None:
    def at(time: ClusterTime) -> TokenPosition:
        return replace(AT, token={"_data": f"82{time.seconds:08X}{time.increment:08X}2B02"})

    assert (at(one).progress < at(other).progress) == (one.pair < other.pair)


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (AT, "60.5"),
        (replace(AT, ordinal=3), "60.5:3"),
        (replace(AT, collection_read=CollectionRead()), "60.5 (reading the collection)"),
    ],
)
def test_the_text_for_people(position: TokenPosition, text: str) -> None:
    assert str(position) == text
