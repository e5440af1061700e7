"""Tests of resume_check.py: which stored positions can be resumed, and the error of each refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.errors import Action, PositionAhead, StreamChanged, TailraceError, WrongLog
from tailrace.positions.mongo import ClusterTime, CollectionRead, StreamIdentity, TokenPosition
from tailrace.sources.mongo.resume_check import check_resume, is_ahead

LOG = StreamIdentity("rs0", "shop", {"outbox": "aa", "billing": "bb"}, "f")
AT = TokenPosition(LOG, {"_data": "82"}, ClusterTime(60, 5), 5, 1)
NOW = ClusterTime(60, 5)


@pytest.mark.parametrize(
    ("stored", "found", "now"),
    [
        (AT, LOG, NOW),
        (AT, LOG, ClusterTime(61, 1)),
        (replace(AT, collection_read=CollectionRead("c0", "x", 3)), LOG, NOW),
        (AT, replace(LOG, collections={"outbox": "", "billing": ""}), NOW),
        (replace(AT, log=replace(LOG, collections={"outbox": "", "billing": ""})), LOG, NOW),
        (replace(AT, log=replace(LOG, replica_set="")), replace(LOG, replica_set=""), NOW),
    ],
    ids=["the last write", "later", "reading the collection", "may not list now", "might not list then", "sharded"],
)
def test_positions_that_can_be_resumed(stored: TokenPosition, found: StreamIdentity, now: ClusterTime) -> None:
    check_resume(stored, found, now)


@pytest.mark.parametrize(
    ("found", "now", "error", "says"),
    [
        (replace(LOG, replica_set="rs1"), NOW, WrongLog, "replica set rs0, this is shop of rs1"),
        (replace(LOG, database="bank"), NOW, WrongLog, "database shop"),
        (replace(LOG, collections={"outbox": "cc", "billing": "bb"}), NOW, WrongLog, "shop.outbox is not the one"),
        (replace(LOG, collections={"outbox": "aa", "billing": "cc"}), NOW, WrongLog, "shop.billing is not the one"),
        (
            replace(LOG, collections={"stock": "dd"}, pipeline="g"),
            NOW,
            StreamChanged,
            "shop.outbox, billing; the settings now name shop.st",
        ),
        (LOG, ClusterTime(60, 4), PositionAhead, "60.5:1 is beyond the end of the server's log, 60.4"),
        (LOG, ClusterTime(59, 9), PositionAhead, "beyond"),
    ],
)
def test_positions_that_cannot_be_resumed(
    found: StreamIdentity, now: ClusterTime, error: type[TailraceError], says: str
) -> None:
    with pytest.raises(error) as caught:
        check_resume(AT, found, now)
    assert caught.type is error
    assert says in caught.value.what
    assert caught.value.action is Action.HALT
    assert "--adopt" in caught.value.remedy


def test_another_log_is_reported_before_another_stream() -> None:
    """Someone who points to the wrong server should not be advised to change the collections."""
    with pytest.raises(WrongLog):
        check_resume(AT, replace(LOG, replica_set="rs1", pipeline="g"), ClusterTime(1, 1))


@pytest.mark.parametrize(
    ("ordinal", "time", "ahead"),
    [
        (0, ClusterTime(60, 5), False),
        (0, ClusterTime(60, 6), False),
        (0, ClusterTime(60, 7), True),
        (0, ClusterTime(61, 0), True),
        (1, ClusterTime(60, 5), False),
        (1, ClusterTime(60, 6), True),
    ],
)
def test_a_stream_may_begin_where_the_next_write_will_be(ordinal: int, time: ClusterTime, ahead: bool) -> None:
    """`start: beginning` does; on a quiet server a restart finds the same position."""
    assert is_ahead(replace(AT, time=time, ordinal=ordinal), NOW) is ahead
