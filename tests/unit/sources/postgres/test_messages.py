"""Messages as events: their content as rows, and their place in the stream."""

from __future__ import annotations

import struct

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ProtocolError, Rejected, UnexpectedChange
from tailrace.event import UNREADABLE, Row
from tailrace.outbox.layouts import DEBEZIUM, Layout
from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.sources.postgres.messages import IGNORED, MessageConverter, MessageTransactions
from tailrace.sources.postgres.options import MessageOptions

OPTIONS = MessageOptions(
    "orders", ("id", "type", "aggregatetype", "aggregateid", "payload"), ("version",), "payload", frozenset({"status"})
)
EVENT = {"id": "e-1", "type": "OrderPlaced", "aggregatetype": "order", "aggregateid": "o-1", "payload": {"a": 1}}
LOG = LogIdentity("1", 1, "shop", "slot", "messages:orders", "messages")


def content(**changes: object) -> bytes:
    return orjson.dumps({**EVENT, **changes})


def row(of: bytes) -> Row:
    return MessageConverter(OPTIONS).row(of, "0/1:1", 7)


def values(of: bytes) -> dict[str, bytes | None]:
    made = row(of)
    return {column.name: value for column, value in zip(made.columns, made.values, strict=True)}


class TestContent:
    def test_fields_become_columns_and_the_payload_is_unchanged(self) -> None:
        payload = b'{ "n": 1.0, "big": 123456789012345678901234567890, "n": 2,\t"t": "\\u00e9\xc3\xa9" }'
        found = values(orjson.dumps({**EVENT, "tenant": "eu"})[:-1].replace(b'{"a":1}', payload) + b"}")
        assert found["payload"] == payload
        assert found["id"] == b"e-1"
        assert found["tenant"] == b"eu"
        assert found["version"] is None

    @pytest.mark.parametrize(
        ("value", "text"),
        [("a", b"a"), ("", b""), ('q"\\\n', b'q"\\\n'), (7, b"7"), (True, b"true"), (None, None), ([1, 2], b"[1,2]")],
    )
    def test_values_are_text(self, value: object, text: bytes | None) -> None:
        assert values(content(tenant=value))["tenant"] == text
        assert values(content(payload=value))["payload"] == text

    def test_columns_are_one_object_for_messages_of_one_shape(self) -> None:
        convert = MessageConverter(OPTIONS).row
        first, second = convert(content(), "0/1:1", 7), convert(orjson.dumps(dict(reversed(EVENT.items()))), "0/1:2", 7)
        assert first.columns is second.columns
        assert convert(content(x=1), "0/1:3", 7).columns is not first.columns

    def test_a_layout_reads_the_event(self) -> None:
        event = Layout(DEBEZIUM).read(row(content(status="pending")))
        assert (event.id, event.type, event.aggregate, event.key) == ("e-1", "OrderPlaced", "order", b"o-1")
        assert event.payload == b'{"a":1}'
        assert not event.keys_unique
        assert "status" not in dict(event.extra)

    @pytest.mark.parametrize(
        ("bad", "why"),
        [
            (b"", "not usable JSON"),
            (b"{", "not usable JSON"),
            (b"hello", "not usable JSON"),
            (b"[1]", "no JSON object"),
            (b"null", "no JSON object"),
            (b"{}", "no field 'id'"),
            (content()[:-1] + b',"x":"\xff"}', "not valid UTF-8"),
            (content()[:-1] + b',"\xff":1}', "not valid UTF-8"),
            (b'{"id":' + b"[" * 100_000, "not usable JSON"),
            (content().replace(b'"payload"', b'"body"'), "no field 'payload'"),
        ],
    )
    def test_other_content_is_kept_with_the_reason(self, bad: bytes, why: str) -> None:
        made = row(bad)
        assert made.columns is UNREADABLE
        assert made.values[0] == bad
        assert why in (made.values[1] or b"").decode()
        with pytest.raises(Rejected, match="the message"):
            Layout(DEBEZIUM).read(made)

    @given(st.binary(max_size=60))
    def test_no_content_fails(self, any_bytes: bytes) -> None:
        row(any_bytes)

    @given(st.text(max_size=20))
    def test_every_text_is_read_back(self, text: str) -> None:
        try:
            encoded = text.encode()
        except UnicodeEncodeError:
            return
        assert values(content(id=text))["id"] == encoded


def begin(lsn: int, xid: int = 5) -> bytes:
    return b"B" + struct.pack(">QqI", lsn, 0, xid)


def commit(lsn: int) -> bytes:
    return b"C" + struct.pack(">BQQq", 0, lsn, lsn + 8, 0)


def message(of: bytes, *, prefix: bytes = b"orders", transactional: bool = True) -> bytes:
    return b"M" + struct.pack(">BQ", transactional, 99) + prefix + b"\0" + struct.pack(">I", len(of)) + of


class Stream:
    def __init__(self, start: LsnPosition | None = None, *, halt: bool = False) -> None:
        self.warnings: list[str] = []
        self.transactions = MessageTransactions(
            start or LsnPosition(LOG, 0, 0), options=OPTIONS, warn=self.warnings.append, halt_on_change=halt
        )

    def feed(self, *messages: bytes) -> list[str]:
        """Returns the ids and positions of the rows so far."""
        for each in messages:
            self.transactions.feed(b"w" + each, 1)
        return [f"{(made.values[0] or b'').decode()} {made.position}" for made in self.transactions.rows]


class TestStream:
    def test_messages_of_a_transaction_are_numbered(self) -> None:
        found = Stream().feed(
            begin(100), message(content(id="a")), message(b"not ours", prefix=b"order"), message(content(id="b")),
            message(b"not ours", prefix=b"orders2"), commit(100), begin(200, 6), message(content(id="c")), commit(200),
        )  # fmt: skip
        assert found == ["a 0/64:1", "b 0/64:2", "c 0/C8:1"]

    def test_a_cut_transaction_continues_behind_the_published_messages(self) -> None:
        stream = Stream()
        stream.feed(begin(100), message(content(id="a")), message(content(id="b")))
        position = stream.transactions.position
        assert position.cut is not None
        resumed = Stream(position)
        frames = [message(content(id=each)) for each in "abc"]
        assert resumed.feed(begin(100), *frames, commit(100)) == ["c 0/64:3"]

    def test_messages_outside_of_transactions_are_ignored_with_few_warnings(self) -> None:
        stream = Stream()
        assert stream.feed(*[message(content(), transactional=False)] * 9) == []
        assert [each.partition(":")[0] for each in stream.warnings] == [IGNORED] * 4
        assert "'orders' at 0/63" in stream.warnings[0]
        assert "8 so far" in stream.warnings[-1]
        assert Stream().feed(message(content(), prefix=b"x", transactional=False)) == []

    def test_on_change_halt_stops_at_such_a_message(self) -> None:
        with pytest.raises(UnexpectedChange, match="is not transactional"):
            Stream(halt=True).feed(message(content(), transactional=False))

    @pytest.mark.parametrize("cut", [1, 2, 9, 16, 17, 20, 40])
    def test_truncated_messages_are_refused(self, cut: int) -> None:
        frame = message(content())
        stream = Stream()
        stream.feed(begin(100))
        if cut < 17:  # the prefix is not complete, so it is another one
            assert stream.feed(frame[:cut]) == []
            return
        with pytest.raises(ProtocolError):
            stream.feed(frame[:cut])

    def test_a_transactional_message_needs_a_transaction(self) -> None:
        with pytest.raises(ProtocolError, match="outside of a transaction"):
            Stream().feed(message(content()))
