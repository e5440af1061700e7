"""Tests of changes.py: rows and positions from changes. Cut, crashed and resumed anywhere, every row comes once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import bson
import pytest
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import CollectionGone, ProtocolError
from tailrace.event import UNREADABLE
from tailrace.positions.base import from_stored, to_stored
from tailrace.positions.mongo import ClusterTime, CollectionRead, StreamIdentity, TokenPosition
from tailrace.sources.mongo.changes import ChangeFollower, Token, plain_token, server_token, token_time
from tailrace.sources.mongo.documents import DocumentConverter

LOG = StreamIdentity("rs0", "shop", {"outbox": "ab"}, "f")
TYPE_BITS = b"@"


def head(seconds: int, increment: int) -> str:
    return f"82{seconds:08X}{increment:08X}2B02"


def high_water(seconds: int, increment: int) -> Token:
    """Returns the server's token for a time without changes of ours: it sorts before every change of that time."""
    return {"_data": head(seconds, increment) + "29296E04"}


def token(seconds: int, increment: int, index: int = 0, fragment: int = 0) -> Token:
    """Returns the token of a change: its number in the transaction, the collection, the kind and the document's id."""
    number = f"2B{2 * index:02X}" if index else "29"
    return {"_data": f"{head(seconds, increment)}2C0100{number}{f'2B{2 * fragment:02X}' if fragment else ''}6E5A1004"}


def change(
    seconds: int, increment: int, index: int = 0, *, kind: str = "insert", name: str = "a", **fields: Any
) -> dict[str, Any]:
    return {
        "_id": token(seconds, increment, index),
        "operationType": kind,
        "clusterTime": Timestamp(seconds, increment),
        "wallTime": DatetimeMS(seconds * 1000 + 7),
        "fullDocument": {"_id": name, "payload": {}},
        "ns": {"db": "shop", "coll": "outbox"},
        **fields,
    }


def fragments(whole: dict[str, Any], parts: int, index: int = 0) -> list[dict[str, Any]]:
    """Returns the fragments of a change, as a server sends large ones: each has some fields and its own token."""
    names = [name for name in whole if name != "_id"]
    stamp = whole["clusterTime"]
    return [
        {
            "_id": token(stamp.time, stamp.inc, index, number),
            "splitEvent": {"fragment": number, "of": parts},
            **{name: whole[name] for name in names[number - 1 :: parts]},
        }
        for number in range(1, parts + 1)
    ]


def position(**fields: Any) -> TokenPosition:
    return TokenPosition(LOG, high_water(50, 0), ClusterTime(50, 0), 5, **fields)


def following(start: TokenPosition | None = None, *, passing: ClusterTime | None = None) -> ChangeFollower:
    rows = DocumentConverter(("_id", "payload"), (), "payload")
    return ChangeFollower(start or position(), rows, passing=passing)


def feed(changes: ChangeFollower, *fed: dict[str, Any]) -> None:
    for each in fed:
        changes.feed(bson.encode(each))


def rows_of(changes: ChangeFollower) -> list[tuple[str, str]]:
    return [((row.values[0] or b"").decode(), row.position) for row in changes.rows]


def test_a_change_becomes_a_row_and_a_position() -> None:
    changes = following()
    feed(changes, change(60, 1), change(60, 2, name="b"))
    assert rows_of(changes) == [("a", "60.1:1"), ("b", "60.2:1")]
    assert {row.committed_ms for row in changes.rows} == {60_007}
    assert changes.position == TokenPosition(LOG, token(60, 2), ClusterTime(60, 2), 60_007, 1)


def test_changes_of_a_transaction_are_counted() -> None:
    changes = following()
    feed(changes, *[change(60, 1, index) for index in (0, 3, 4)])
    assert [at for _, at in rows_of(changes)] == ["60.1:1", "60.1:2", "60.1:3"]
    assert changes.position.ordinal == 3


def test_without_a_wall_time_the_cluster_time_is_used() -> None:
    changes = following()
    without = change(60, 1)
    del without["wallTime"]
    feed(changes, without)
    assert changes.rows[0].committed_ms == changes.position.at_ms == 60_000


def test_after_the_collection_the_stream_starts_at_its_beginning() -> None:
    start = position(collection_read=CollectionRead("c0", "x", 3))
    assert following(start).position == position()


def test_repeated_changes_are_skipped() -> None:
    """A stream that is opened by time begins with all changes of that time."""
    start = TokenPosition(LOG, token(60, 1, 1), ClusterTime(60, 1), 5, 2)
    changes = following(start)
    feed(changes, change(60, 1, 0), change(60, 1, 1))
    assert (changes.rows, changes.position) == ([], start)
    feed(changes, change(60, 1, 2, name="c"))
    assert rows_of(changes) == [("c", "60.1:3")]


class TestIdle:
    def test_the_position_follows_the_server_and_never_moves_back(self) -> None:
        changes = following()
        changes.idle(high_water(70, 2))
        assert changes.position == TokenPosition(LOG, high_water(70, 2), ClusterTime(70, 2), 70_000)
        changes.idle(high_water(60, 1))
        assert changes.position.time == ClusterTime(70, 2)

    def test_tokens_of_rows_that_were_received_change_nothing(self) -> None:
        changes = following()
        feed(changes, change(60, 1))
        before = changes.position
        changes.idle(token(60, 1))
        changes.idle(high_water(60, 1))
        assert changes.position == before

    def test_the_count_within_a_time_continues(self) -> None:
        changes = following()
        feed(changes, change(60, 1, 0))
        changes.idle(token(60, 1, 1))
        feed(changes, change(60, 1, 2))
        assert [at for _, at in rows_of(changes)] == ["60.1:1", "60.1:2"]

    def test_the_count_of_a_transaction_begins_with_one(self) -> None:
        changes = following()
        changes.idle(high_water(60, 1))
        feed(changes, change(60, 1, 0))
        assert [at for _, at in rows_of(changes)] == ["60.1:1"]

    def test_the_time_of_the_position_never_moves_back(self) -> None:
        changes = following()
        feed(changes, change(60, 1, wallTime=DatetimeMS(90_000)))
        changes.idle(high_water(61, 1))
        assert changes.position.at_ms == 90_000

    def test_a_token_of_an_unknown_format_has_an_order_but_no_time(self) -> None:
        changes = following()
        changes.idle({"_data": "83FF"})
        assert changes.position.token == {"_data": "83FF"}
        assert changes.position.time == ClusterTime(50, 0)


class TestFragments:
    @pytest.mark.parametrize("parts", [1, 2, 3, 6])
    def test_fragments_become_one_change(self, parts: int) -> None:
        changes = following()
        feed(changes, *fragments(change(60, 1), parts), change(60, 2, name="b"))
        assert rows_of(changes) == [("a", "60.1:1"), ("b", "60.2:1")]

    def test_the_position_does_not_move_between_fragments(self) -> None:
        changes = following()
        before = changes.position
        parts = fragments(change(60, 1), 3)
        for part in parts[:2]:
            feed(changes, part)
            changes.idle(part["_id"])
            changes.idle(high_water(80, 1))
            assert (changes.rows, changes.position) == ([], before)
        feed(changes, parts[2])
        assert changes.position.token == parts[2]["_id"]
        assert len(changes.rows) == 1

    @pytest.mark.parametrize(
        "order", [(1,), (2,), (0, 2), (0, 0), (0, 1, 1)], ids=["second", "third", "a gap", "twice", "twice later"]
    )
    def test_fragments_out_of_order_are_refused(self, order: tuple[int, ...]) -> None:
        changes = following()
        parts = fragments(change(60, 1), 3)
        with pytest.raises(ProtocolError):
            feed(changes, *[parts[number] for number in order])

    def test_a_whole_change_between_fragments_is_refused(self) -> None:
        """Its position would be behind a change that is not complete."""
        changes = following()
        with pytest.raises(ProtocolError):
            feed(changes, fragments(change(60, 1), 2)[0], change(60, 2))
        assert changes.position == position()


ENDS = [
    ("drop", {"db": "shop", "coll": "outbox"}, "collection shop.outbox was dropped"),
    ("rename", {"db": "shop", "coll": "outbox"}, "collection shop.outbox was renamed to shop.old at 60.2"),
    ("dropDatabase", {"db": "shop"}, "database shop was dropped"),
    ("invalidate", None, "ended the stream"),
    ("something new", {"db": "shop"}, "ended the stream"),
]


class TestEnds:
    @pytest.mark.parametrize(("kind", "ns", "says"), ENDS)
    def test_drops_and_renames_stop_the_source_at_its_position(
        self, kind: str, ns: dict[str, str] | None, says: str
    ) -> None:
        changes = following()
        end = change(60, 2, kind=kind, ns=ns, to={"db": "shop", "coll": "old"})
        del end["fullDocument"]
        if ns is None:
            del end["ns"]
        feed(changes, change(60, 1))
        before = changes.position
        with pytest.raises(CollectionGone, match=says) as caught:
            feed(changes, end)
        assert "60.2" in caught.value.what
        assert caught.value.remedy
        assert changes.position == before

    def test_drops_before_a_time_are_skipped(self) -> None:
        changes = following(passing=ClusterTime(60, 2))
        feed(changes, change(60, 1, kind="drop"), change(60, 2, kind="invalidate"))
        assert (changes.rows, changes.position.time) == ([], ClusterTime(60, 2))
        assert changes.position.token == token(60, 2)
        feed(changes, change(60, 3, name="b"))
        assert rows_of(changes) == [("b", "60.3:1")]
        with pytest.raises(CollectionGone):
            feed(changes, change(60, 4, kind="drop"))

    def test_a_drop_before_the_position_is_ignored(self) -> None:
        changes = following(TokenPosition(LOG, token(60, 2), ClusterTime(60, 2), 5))
        feed(changes, change(60, 1, kind="drop"), change(60, 2, kind="drop"))
        assert changes.position.time == ClusterTime(60, 2)


def test_an_unreadable_document_is_counted() -> None:
    changes = following()
    feed(changes, change(60, 1, 0, fullDocument={"_id": 1, "payload": float("nan")}), change(60, 1, 1))
    assert changes.rows[0].columns is UNREADABLE
    assert [row.position for row in changes.rows] == ["60.1:1", "60.1:2"]


def test_a_document_that_the_driver_cannot_decode_is_unreadable() -> None:
    changes = following()
    good = bson.encode(change(60, 1, fullDocument={"_id": "a", "payload": bson.Binary(b"\x03\0\0\0abc", 0)}))
    # The same bytes as binary data of the old subtype, which has its own length field, now one too large.
    bad = good.replace(b"\x07\0\0\0\x00\x03\0\0\0abc", b"\x07\0\0\0\x02\x04\0\0\0abc")
    assert bad != good
    changes.feed(bad)
    assert changes.rows[0].columns is UNREADABLE
    assert b"not proper BSON" in (changes.rows[0].values[1] or b"")
    assert changes.position == TokenPosition(LOG, token(60, 1), ClusterTime(60, 1), 60_007, 1)


@given(st.text("0123456789ABCDEF"), st.none() | st.binary())
def test_a_token_is_stored_as_json_and_parsed_unchanged(data: str, type_bits: bytes | None) -> None:
    given_token = {"_data": data} if type_bits is None else {"_data": data, "_typeBits": type_bits}
    assert server_token(json.loads(json.dumps(plain_token(given_token)))) == given_token


@pytest.mark.parametrize(
    ("data", "time"),
    [
        (high_water(1, 2)["_data"], ClusterTime(1, 2)),
        (token(2**32 - 1, 2**32 - 1)["_data"], ClusterTime(2**32 - 1, 2**32 - 1)),
        ("8200000001", None),
        ("81" + "0" * 16, None),
        ("", None),
    ],
)
def test_the_time_of_a_token(data: str, time: ClusterTime | None) -> None:
    assert token_time({"_data": data}) == time


class Written(NamedTuple):
    """An operation of a transaction; `parts` is the number of fragments, 0 for other collections."""

    parts: int
    type_bits: bool


class Transaction(NamedTuple):
    later: int
    operations: list[Written]


Item = bytes | Token


def history(transactions: list[Transaction]) -> tuple[list[Item], list[tuple[str, str]]]:
    """Returns what a server sends (whole changes, fragments, tokens where it may pause) and the expected rows."""
    sent: list[Item] = []
    rows: list[tuple[str, str]] = []
    seconds, increment = 60, 1
    for transaction in transactions:
        seconds, increment = (seconds, increment + 1) if transaction.later < 3 else (seconds + transaction.later, 1)
        ordinal = 0
        for index, written in enumerate(transaction.operations):
            if not written.parts:
                sent.append(high_water(seconds, increment))
                continue
            ordinal += 1
            name = f"{seconds}.{increment}/{index}"
            rows.append((name, f"{seconds}.{increment}:{ordinal}"))
            whole = change(seconds, increment, index, name=name)
            parts = fragments(whole, written.parts, index) if written.parts > 1 else [whole]
            for part in parts:
                if written.type_bits:
                    part["_id"] |= {"_typeBits": TYPE_BITS}
                sent += [bson.encode(part), part["_id"]]
        sent += [high_water(seconds, increment), high_water(seconds, increment + 1)]
    return sent, rows


def data_of(item: Item) -> str:
    return str((bson.decode(item)["_id"] if isinstance(item, bytes) else item)["_data"])


def served(sent: list[Item], start: TokenPosition, *, by_time: bool) -> Iterator[Item]:
    """Yields the items behind the position's token; if opened by time, also earlier ones of that time."""
    behind = head(*start.time.pair) if by_time else server_token(start.token)["_data"]
    return (item for item in sent if data_of(item) > behind)


operations = st.builds(Written, st.integers(0, 3), st.booleans())
transactions = st.builds(Transaction, st.integers(0, 5), st.lists(operations, max_size=6))
reads = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["publish", "crash", "restart", "by time"])), max_size=40)


@given(st.lists(transactions, max_size=8), reads)
def test_cut_and_resumed_anywhere_every_row_comes_once_and_in_order(
    log: list[Transaction], reads: list[tuple[int, str]]
) -> None:
    """Each read takes at most so many rows; then they are published, or the process dies and resumes."""
    sent, expected = history(log)
    stored = position()
    published: list[tuple[str, str]] = []
    changes, stream = following(stored), served(sent, stored, by_time=False)
    # After any sequence of reads, the last ones take all that is left.
    for limit, then in [*reads, *[(5, "publish")] * (len(expected) + 1), (1000, "publish")]:
        changes.rows = []
        for item in stream:
            if isinstance(item, bytes):
                changes.feed(item)
            else:
                changes.idle(item)
            if len(changes.rows) >= limit:
                break
        if then != "crash":
            published += rows_of(changes)
            assert changes.position.progress >= stored.progress
            again = from_stored(json.loads(json.dumps(to_stored(changes.position))))
            assert isinstance(again, TokenPosition)
            stored = again
        if then != "publish":
            changes, stream = following(stored), served(sent, stored, by_time=then == "by time")
    assert published == expected


def test_int64_numbers_of_fragments() -> None:
    """Servers send either integer type."""
    parts = fragments(change(60, 1), 2)
    for number, part in enumerate(parts, 1):
        part["splitEvent"] = {"fragment": Int64(number), "of": Int64(2)}
    changes = following()
    feed(changes, *parts)
    assert rows_of(changes) == [("a", "60.1:1")]


@given(st.lists(st.sampled_from(["usual", "other form", "fragments", "seen before"]), max_size=8))
def test_several_changes_at_once_give_the_same_rows_as_one_by_one(kinds: list[str]) -> None:
    raw: list[bytes] = []
    for number, kind in enumerate(kinds, start=1):
        whole = change(60, number, name=f"n{number}")
        forms = {
            "usual": [whole],
            "other form": [{**whole, "_id": {**whole["_id"], "_typeBits": TYPE_BITS}}],
            "fragments": fragments(whole, 2),
            "seen before": [change(40, number)],
        }
        raw += map(bson.encode, forms[kind])
    one_by_one, at_once = following(), following()
    for each in raw:
        one_by_one.feed(each)
    at_once.feed_all(raw)
    assert at_once.rows == one_by_one.rows
    assert at_once.position == one_by_one.position


def test_a_document_that_is_not_bson_does_not_affect_others() -> None:
    bad = bson.encode(change(60, 2, fullDocument={"_id": "x", "payload": {"data": Binary(b"abcd", 2)}}))
    bad = bad.replace(b"\x02\x04\0\0\0abcd", b"\x02\x09\0\0\0abcd")  # a wrong length
    changes = following()
    changes.feed_all([bson.encode(change(60, 1, name="n1")), bad, bson.encode(change(60, 3, name="n3"))])
    assert [row.columns is UNREADABLE for row in changes.rows] == [False, True, False]
