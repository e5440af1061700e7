"""Tests of options.py: the change stream's pipeline, and a fingerprint that changes only with it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.sources.mongo.options import ENDS, StreamSpec, can_split

ONE = StreamSpec("shop", ("outbox",))
TWO = StreamSpec("shop", ("outbox", "billing"))
START = {"startAfter": {"_data": "82"}}


def test_one_collection_is_watched_directly() -> None:
    assert (ONE.target, ONE.cursor_name) == ("outbox", "outbox")
    assert ONE.filter == {"$match": {"$or": [{"operationType": "insert"}, {"operationType": {"$in": list(ENDS)}}]}}


def test_several_collections_are_filtered_from_their_database() -> None:
    assert (TWO.target, TWO.cursor_name) == (1, "$cmd.aggregate")
    ours, replaced, ends = TWO.filter["$match"]["$or"]
    names = {"$in": ["outbox", "billing"]}
    assert ours == {"operationType": {"$in": ["insert", "drop", "rename"]}, "ns.coll": names}
    assert replaced == {"operationType": "rename", "to.coll": names}, "another collection took the name of ours"
    assert ends == {"operationType": {"$in": ["dropDatabase", "invalidate"]}}


@pytest.mark.parametrize("watched", [ONE, TWO])
def test_updates_and_deletes_are_not_requested(watched: StreamSpec) -> None:
    question = str(watched.stages(START, splits=True))
    assert "insert" in question
    assert not any(kind in question for kind in ("update", "replace", "delete"))


@pytest.mark.parametrize("watched", [ONE, TWO])
def test_the_pipeline_begins_with_the_stream_and_ends_with_the_split(watched: StreamSpec) -> None:
    stages = watched.stages(START, splits=True)
    assert stages[0] == {"$changeStream": START}
    assert stages[1] == watched.filter
    assert stages[2] == {"$project": {"documentKey": 0, "lsid": 0, "txnNumber": 0}}
    assert stages[3:] == [{"$changeStreamSplitLargeEvent": {}}]
    assert watched.stages(START, splits=False) == stages[:3]


def test_the_stream_of_inserted_ids() -> None:
    stages = ONE.inserted(START, "outbox")
    assert stages[0] == {"$changeStream": START}
    assert stages[1] == {"$match": {"operationType": "insert", "ns.coll": "outbox"}}
    assert stages[2] == {"$project": {"documentKey": 1}}


def test_a_different_stream_has_a_different_fingerprint() -> None:
    questions = [
        ONE,
        TWO,
        StreamSpec("shop", ("billing",)),
        StreamSpec("bank", ("outbox",)),
        StreamSpec("shop", ("billing", "outbox")),
        StreamSpec("shop", ("outbox", "billing", "stock")),
    ]
    for one, other in itertools.combinations(questions, 2):
        assert one.fingerprint != other.fingerprint
    assert StreamSpec("shop", ("outbox",)).fingerprint == ONE.fingerprint


def test_a_fingerprint_is_the_same_in_every_release() -> None:
    """It is stored: another one would stop every existing pipeline."""
    assert (ONE.fingerprint, TWO.fingerprint) == ("a211f89b3ab7180f", "6cf25e62c5b5d911")


@pytest.mark.parametrize(
    ("version", "can"),
    [
        ((5, 0, 31), False),
        ((6, 0, 5), False),
        ((6, 0, 8), False),
        ((6, 0, 9), True),
        ((6, 0, 20), True),
        ((6, 1, 0), False),
        ((6, 3, 9), False),
        ((7, 0, 0), True),
        ((7, 3, 1), True),
        ((8, 0, 0), True),
    ],
)
def test_which_servers_split_large_changes(version: tuple[int, ...], can: bool) -> None:
    assert can_split(version) is can


@given(st.tuples(st.integers(0, 12), st.integers(0, 5), st.integers(0, 40)))
def test_servers_from_version_seven_split_large_changes(version: tuple[int, ...]) -> None:
    assert can_split(version) is (version >= (7, 0, 0) or (6, 0, 9) <= version < (6, 1, 0))
