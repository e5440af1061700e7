"""Which inserts are in no collection any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import bson
import pytest

from tailrace.errors import HistoryLost, RecoveryUncertain
from tailrace.positions.mongo import ClusterTime
from tailrace.recovery.oplog_gap import OplogGap, check_gap, counted
from tailrace.sources.mongo.change_stream import RawBatch

INSERT = {"operationType": "insert", "ns": {"coll": "outbox"}}
OTHER = {"operationType": "insert", "ns": {"coll": "other"}}
DROP = {"operationType": "drop", "ns": {"coll": "outbox"}}
AWAY = {"operationType": "rename", "ns": {"coll": "outbox"}, "to": {"coll": "old"}}
OVER = {"operationType": "rename", "ns": {"coll": "new"}, "to": {"coll": "outbox"}}


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ([], {}),
        ([INSERT, INSERT], {}),
        ([INSERT, DROP, INSERT], {"outbox": 1}),
        ([INSERT, OTHER, AWAY], {"outbox": 1}),
        ([INSERT, OVER, INSERT], {"outbox": 1}),
        ([DROP, INSERT], {}),
        ([INSERT, OTHER, {"operationType": "dropDatabase", "ns": {}}], {"outbox": 1, "other": 1}),
        ([INSERT, {"operationType": "invalidate"}], {"outbox": 1}),
        ([INSERT, DROP, {"operationType": "invalidate"}], {"outbox": 1}),
    ],
)
def test_inserts_of_ended_collections_are_counted(changes: list[dict[str, Any]], left: dict[str, int]) -> None:
    unread = OplogGap()
    for change in changes:
        unread.feed(change)
    assert +unread.left == left


NOW = ClusterTime(5, 1)


def answers(*given: tuple[int, Sequence[dict[str, Any]]], rolls: bool = False) -> Callable[[], RawBatch]:
    """A stream that returns these changes, each up to a second, and must not be read further; or the log is
    lost then.
    """
    left = [
        RawBatch([bson.encode(change) for change in changes], {"_data": f"82{second:08X}{1:08X}"}, ended=False)
        for second, changes in given
    ]

    def more() -> RawBatch:
        if rolls and not left:
            raise HistoryLost("the log has rolled over")
        return left.pop(0)

    return more


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ([(4, []), (5, [])], 0),
        # Written to all the time, so a batch without changes may never come.
        ([(4, [INSERT]), (6, [DROP])], 1),
        # A transaction in several batches.
        ([(4, []), (5, [INSERT]), (5, [INSERT]), (5, [DROP]), (5, [])], 2),
        ([(5, [INSERT]), (6, [DROP])], 1),
    ],
)
def test_the_log_is_read_up_to_now(given: list[tuple[int, list[dict[str, Any]]]], left: int) -> None:
    assert counted(answers(*given), NOW).left.total() == left


def test_documents_that_are_still_in_the_log_are_refused() -> None:
    with pytest.raises(RecoveryUncertain, match=r"2 documents were inserted into shop\.outbox"):
        check_gap(counted(answers((4, [INSERT, INSERT]), (6, [DROP])), NOW), "shop")
    assert not check_gap(counted(answers((4, [INSERT]), (6, [])), NOW), "shop")


def test_a_log_that_is_lost_while_it_is_read() -> None:
    """The documents found so far are lost: they are reported, and do not prevent the recovery of the rest."""
    fields = check_gap(counted(answers((2, [INSERT, DROP]), (3, [INSERT]), rolls=True), NOW), "shop")
    assert fields.startswith("1 documents were inserted into shop.outbox")
    assert "cannot be" in fields
    assert not check_gap(counted(answers(rolls=True), NOW), "shop")
