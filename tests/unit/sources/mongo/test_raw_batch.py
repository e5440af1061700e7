"""Tests of raw_batch.py: inserts found by their offset are what the decoder finds; other forms go to the decoder."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Binary, Int64, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ProtocolError
from tailrace.sources.mongo.raw_batch import documents_of, insert_of, split_batch

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
NAMES = TEXTS.filter(lambda name: name != "_id")
"""Not `_id`, which `bson.encode` moves to the front of a document, but not of one inside another."""
VALUES = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXTS | st.binary(max_size=9)
NESTED = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4))
DOCUMENTS = st.dictionaries(NAMES, NESTED, max_size=4)
FLAT = st.dictionaries(NAMES, VALUES, max_size=2)
"""Enough where many are needed: only their number matters, and they are slow to generate."""
HEX = st.text("0123456789ABCDEF", min_size=18)
WHEN = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)).map(  # noqa: DTZ001 - BSON has no time zones
    lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)
)


def change(**fields: Any) -> dict[str, Any]:
    """Returns an insert as a server 6.0 sends it, with the fields in its order."""
    usual = {
        "_id": {"_data": "82AB"},
        "operationType": "insert",
        "clusterTime": Timestamp(7, 3),
        "wallTime": datetime(2024, 1, 1, tzinfo=UTC),
        "fullDocument": {"_id": 1, "a": "b"},
        "ns": {"db": "shop", "coll": "outbox"},
    }
    return {**usual, **fields}


@given(HEX, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), WHEN, DOCUMENTS)
def test_an_insert_is_found_by_its_offset(
    token: str, seconds: int, increment: int, at: datetime, document: Any
) -> None:
    raw = bson.encode(
        change(_id={"_data": token}, clusterTime=Timestamp(seconds, increment), wallTime=at, fullDocument=document)
    )
    wall_ms = round((at - datetime(1970, 1, 1)).total_seconds() * 1000)  # noqa: DTZ001
    assert insert_of(raw) == (token.encode(), seconds, increment, wall_ms, bson.encode(document))


@pytest.mark.parametrize(
    "other",
    [
        change(operationType="drop"),
        change(operationType="insertion"),
        change(_id={"_data": "82AB", "_typeBits": Binary(b"\x01")}),
        change(_id={"_data": 5}),
        change(_id={"other": "82AB"}),
        change(splitEvent={"fragment": 1, "of": 2}),
        {"_id": {"_data": "82AB"}, "splitEvent": {"fragment": 1, "of": 2}, **change()},
        {name: value for name, value in change().items() if name != "wallTime"},
        {name: value for name, value in change().items() if name != "fullDocument"},
        {"_id": {"_data": "82AB"}},
    ],
    ids=str,
)
def test_any_other_form_is_left_to_the_decoder(other: dict[str, Any]) -> None:
    assert insert_of(bson.encode(other)) is None


@pytest.mark.parametrize("shown", [0, 10, 40, 100])
def test_a_truncated_change_is_left_to_the_decoder(shown: int) -> None:
    assert insert_of(bson.encode(change())[:shown]) is None


@given(st.lists(FLAT, max_size=25) | st.lists(DOCUMENTS, max_size=3), st.integers(0, 2**63 - 1))
def test_a_response_is_split_into_its_changes(changes: list[Any], cursor_id: int) -> None:
    rest = {"postBatchResumeToken": {"_data": "82AB"}, "id": Int64(cursor_id), "ns": "shop.outbox"}
    found, remaining = split_batch(bson.encode({"nextBatch": changes, **rest}))
    assert documents_of(found) == [bson.encode(each) for each in changes]
    assert bson.decode(remaining) == rest


def test_a_response_of_another_form_is_refused() -> None:
    with pytest.raises(ProtocolError):
        split_batch(bson.encode({"id": Int64(1), "nextBatch": []}))
