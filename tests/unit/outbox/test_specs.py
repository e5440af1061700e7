"""Tests of the layouts `streams` and `storage`: extraction, keys inside the payload, missing and wrong columns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.errors import LayoutMismatch, Reason, Rejected
from tailrace.event import Column, Columns, OutboxEvent, Row
from tailrace.outbox.layouts import DEBEZIUM, DOCUMENT, Layout
from tailrace.outbox.specs import LAYOUTS, STORAGE, STREAMS, event_columns, reader

OIDS = {"text": 25, "jsonb": 3802, "timestamptz": 1184, "boolean": 16, "bigint": 20, "integer": 23}
PAYOUT = b'{"team_id": "t_555", "payout_id": "p_001", "shard": 7, "deep": {"er": "x"}, "no": null, "half": 0.5}'
STREAM_ROW: dict[str, bytes | None] = {
    "id": b"evt-1",
    "stream": b"STREAM_PAYOUT",
    "topic": b"payout.generated",
    "payload": PAYOUT,
    "created_at": b"2026-01-01 00:00:00+00",
    "processed": b"t",
    "processed_at": b"2026-01-01 00:00:01+00",
    "error": b"invalid payload",
}
STORAGE_ROW: dict[str, bytes | None] = {
    **{column.name: b"1" for column in LAYOUTS["storage"].table},
    "outbox_id": b"outbox_1",
    "aggregate_id": b"s-1",
    "aggregate_type": b"store",
    "event_type": b"STORED",
    "event_payload": b'{"a": 1}',
    "event_metadata": b'{"event_version": "2.1.0"}',
    "sequence_number": b"3",
    "target_topic": b"storage.events",
    "partition_key": b"s-1",
}


def columns_of(layout: str, **types: int) -> Columns:
    found = ((column.name, column.type) for column in LAYOUTS[layout].table)
    return tuple(Column(name, types.get(name, OIDS.get(kind, 1043))) for name, kind in found)


def read(layout: str, values: dict[str, bytes | None], key: str | None = None) -> OutboxEvent:
    mapped = LAYOUTS[layout].columns
    rows = reader(layout, replace(mapped, key=key) if key else mapped)
    return rows.read(Row(columns_of(layout), tuple(values.values()), "0/1:0", 5))


class TestStreams:
    def test_the_topic_is_the_type_and_the_stream_the_key(self) -> None:
        event = read("streams", STREAM_ROW)
        assert event == OutboxEvent(
            "evt-1", "payout.generated", "", b"STREAM_PAYOUT", PAYOUT, None, "0/1:0", 5,
            [("stream", b"STREAM_PAYOUT"), ("created_at", b"2026-01-01 00:00:00+00")], keys_unique=True,
        )  # fmt: skip

    @pytest.mark.parametrize(("path", "key"), [("team_id", b"t_555"), ("shard", b"7"), ("deep/er", b"x")])
    def test_the_key_may_be_inside_the_payload(self, path: str, key: bytes) -> None:
        event = read("streams", STREAM_ROW, f"payload#/{path}")
        assert (event.key, event.payload) == (key, PAYOUT)
        assert dict(event.extra).keys() == {"stream", "created_at"}

    @pytest.mark.parametrize(("path", "said"), [("no", "missing"), ("team_id/x", "missing"), ("half", "neither")])
    def test_an_event_without_its_key_is_rejected(self, path: str, said: str) -> None:
        with pytest.raises(Rejected, match=f"the value at 'payload#/{path}' is {said}") as caught:
            read("streams", STREAM_ROW, f"payload#/{path}")
        assert caught.value.reason is Reason.PERMANENT_FAILURE
        assert "outbox.columns.key" in caught.value.remedy

    def test_a_key_inside_a_column_of_bytes(self) -> None:
        mapped = replace(DEBEZIUM, aggregate=None, key="payload#/k")
        columns = (Column("id", 25), Column("type", 25), Column("payload", 17))
        event = Layout(mapped).read(Row(columns, (b"e", b"T", b"\\x" + b'{"k":"v"}'.hex().encode()), "", 0))
        assert (event.key, event.payload) == (b"v", b'{"k":"v"}')


class TestStorage:
    def test_no_column_about_delivery_is_part_of_the_event(self) -> None:
        event = read("storage", STORAGE_ROW)
        assert event[:6] == ("outbox_1", "STORED", "store", b"s-1", b'{"a": 1}', "2.1.0")
        assert [name for name, _ in event.extra] == [
            "aggregate_id", "event_metadata", "sequence_number", "created_at", "target_topic",
        ]  # fmt: skip

    @pytest.mark.parametrize("metadata", [b"{}", b'{"event_version": null}', None])
    def test_an_event_without_a_version_has_the_first(self, metadata: bytes | None) -> None:
        assert read("storage", {**STORAGE_ROW, "event_metadata": metadata}).version == "1.0.0"

    @pytest.mark.parametrize("missing", ["aggregate_id", "sequence_number", "event_metadata", "target_topic"])
    def test_a_missing_column_is_named(self, missing: str) -> None:
        columns = tuple(column for column in columns_of("storage") if column.name != missing)
        with pytest.raises(LayoutMismatch, match=missing) as caught:
            reader("storage", STORAGE).require(columns)
        assert "Add the column" in caught.value.remedy

    @pytest.mark.parametrize(("name", "said"), [("event_metadata", "jsonb"), ("sequence_number", "bigint")])
    def test_a_column_of_the_wrong_type_is_named(self, name: str, said: str) -> None:
        with pytest.raises(LayoutMismatch, match=f"{name}.*OID 25") as caught:
            reader("storage", STORAGE).require(columns_of("storage", **{name: 25}))
        assert f"ALTER COLUMN {name} TYPE {said}" in caught.value.remedy

    def test_a_payload_under_another_name_must_be_json_too(self) -> None:
        columns = (*columns_of("storage"), Column("body", 25))
        with pytest.raises(LayoutMismatch, match="body"):
            reader("storage", replace(STORAGE, payload="body")).require(columns)


def test_a_column_about_delivery_that_the_settings_name_is_read() -> None:
    columns = (*columns_of("streams"),)
    rows = reader("streams", replace(STREAMS, subject="error"))
    assert dict(rows.read(Row(columns, tuple(STREAM_ROW.values()), "", 0)).extra)["error"] == b"invalid payload"


def test_event_columns_are_all_that_a_record_needs() -> None:
    assert event_columns("streams", STREAMS) == {"id", "topic", "stream", "payload", "created_at"}
    assert event_columns("storage", STORAGE) >= {"sequence_number", "aggregate_id", "event_metadata"}
    assert "delivery_status" not in event_columns("storage", STORAGE)
    assert event_columns("document", DOCUMENT) == {column for _, column in DOCUMENT.parts()}
