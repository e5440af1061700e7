"""Tests of layouts.py: the meaning of a row, missing columns, and unreadable values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import LayoutMismatch, Reason, Rejected
from tailrace.event import UNREADABLE, Column, Columns, OutboxEvent, Row
from tailrace.outbox import layouts
from tailrace.outbox.layouts import DEBEZIUM, DOCUMENT, ColumnMap, Layout
from tailrace.outbox.specs import LAYOUTS, layout_map
from tailrace.sources.mongo.documents import DocumentConverter

UUID, TEXT, JSON, JSONB, BYTEA, INT4 = 2950, 25, 114, 3802, 17, 23
PLAIN: Columns = tuple(
    Column(name, oid)
    for name, oid in [
        ("id", UUID),
        ("aggregatetype", TEXT),
        ("aggregateid", TEXT),
        ("type", TEXT),
        ("payload", JSONB),
    ]
)
VALUES = (b"e-1", b"order", b"o-7", b"OrderPlaced", b'{"a": 1}')


def row(*more: bytes | None, columns: Columns = PLAIN, **changed: bytes | None) -> Row:
    values = dict(zip((column.name for column in columns), (*VALUES, *more), strict=True)) | changed
    return Row(columns, tuple(values.values()), "0/1:0", 1_700_000_000_000)


def test_every_part_is_read_from_its_column() -> None:
    event = Layout(DEBEZIUM).read(row())
    assert event == OutboxEvent(
        "e-1", "OrderPlaced", "order", b"o-7", b'{"a": 1}', None, "0/1:0", 1_700_000_000_000, [], keys_unique=True
    )
    assert type(event) is OutboxEvent


@pytest.mark.parametrize(("type_oid", "unique"), [(JSONB, True), (JSON, False), (TEXT, False)])
def test_only_jsonb_is_known_to_have_unique_keys(type_oid: int, unique: bool) -> None:
    columns = (*PLAIN[:-1], Column("payload", type_oid))
    assert Layout(DEBEZIUM).read(row(columns=columns)).keys_unique is unique


@pytest.mark.parametrize("missing", ["id", "type", "aggregatetype", "aggregateid", "payload"])
def test_a_missing_column_is_named_with_its_setting_and_the_columns_there_are(missing: str) -> None:
    columns = tuple(column for column in PLAIN if column.name != missing)
    with pytest.raises(LayoutMismatch) as caught:
        Layout(DEBEZIUM).read(Row(columns, (b"x",) * 4, "", 0))
    text = str(caught.value)
    part = {"aggregatetype": "aggregate", "aggregateid": "key"}.get(missing, missing)
    assert repr(missing) in text
    assert f"outbox.columns.{part}" in text
    assert all(column.name in text for column in columns)


@pytest.mark.parametrize(
    ("headers", "version"),
    [
        (b'{"schema": {"version": 3}}', "3"),
        (b'{"schema": {"version": "4"}}', "4"),
        (b'{"schema": 3}', None),
        (b"{}", None),
        (b"[1]", None),
        (None, None),
    ],
)
def test_the_version_may_be_inside_a_json_column(headers: bytes | None, version: str | None) -> None:
    columns = (*PLAIN, Column("headers", JSONB))
    layout = Layout(replace(DEBEZIUM, version="headers#/schema/version"))
    assert layout.read(row(headers, columns=columns)).version == version


def test_a_version_inside_invalid_json_rejects_the_row() -> None:
    layout = Layout(replace(DEBEZIUM, version="headers#/version"))
    with pytest.raises(Rejected, match="not JSON"):
        layout.read(row(b"{", columns=(*PLAIN, Column("headers", TEXT))))


@pytest.mark.parametrize("part", ["version", "timestamp"])
def test_optional_parts_are_required_once_they_are_mapped(part: str) -> None:
    with pytest.raises(LayoutMismatch, match="'absent'"):
        Layout(replace(DEBEZIUM, **{part: "absent"})).read(row())


def test_a_payload_column_of_a_type_without_text_is_refused() -> None:
    columns = (*PLAIN[:-1], Column("payload", INT4))
    with pytest.raises(LayoutMismatch, match="payload"):
        Layout(DEBEZIUM).read(row(columns=columns))


def test_further_columns_become_headers_and_null_ones_are_left_out() -> None:
    columns = (*PLAIN, Column("traceparent", TEXT), Column("tenant", TEXT), Column("created_at", 1184))
    layout = Layout(replace(DEBEZIUM, timestamp="created_at"))
    event = layout.read(row(b"00-ab-cd-01", None, b"2026-01-01 00:00:00+00", columns=columns))
    assert event.extra == [("traceparent", b"00-ab-cd-01"), ("created_at", b"2026-01-01 00:00:00+00")]


def test_the_version_is_read_and_also_sent() -> None:
    columns = (*PLAIN, Column("version", INT4))
    layout = Layout(replace(DEBEZIUM, version="version"))
    event = layout.read(row(b"2", columns=columns))
    assert (event.version, event.extra) == ("2", [("version", b"2")])
    assert layout.read(row(None, columns=columns)).version is None


def test_the_plan_follows_columns_that_change_while_streaming() -> None:
    layout = Layout(DEBEZIUM)
    first = layout.read(row())
    turned = tuple(reversed(PLAIN))
    second = layout.read(Row(turned, tuple(reversed(VALUES)), first.position, first.committed_ms))
    assert second == first
    assert layout.read(row()) == first


def test_after_a_mismatch_the_next_row_is_not_read_by_the_old_plan() -> None:
    layout = Layout(DEBEZIUM)
    layout.read(row())
    bad = Row(PLAIN[:-1], VALUES[:-1], "", 0)
    for _ in range(2):
        with pytest.raises(LayoutMismatch):
            layout.read(bad)
    assert layout.read(row()).id == "e-1"


@pytest.mark.parametrize("oid", [TEXT, JSON, JSONB, 1043])
@given(payload=st.none() | st.binary())
def test_payloads_of_text_types_pass_untouched(oid: int, payload: bytes | None) -> None:
    columns = (*PLAIN[:-1], Column("payload", oid))
    assert Layout(DEBEZIUM).read(row(columns=columns, payload=payload)).payload == payload


@given(raw=st.none() | st.binary())
def test_bytea_is_decoded_in_every_part(raw: bytes | None) -> None:
    columns = (
        *PLAIN[:2],
        Column("aggregateid", BYTEA),
        PLAIN[3],
        Column("payload", BYTEA),
        Column("blob", BYTEA),
    )
    text = None if raw is None else b"\\x" + raw.hex().encode()
    event = Layout(DEBEZIUM).read(row(text, columns=columns, aggregateid=text, payload=text))
    assert (event.key, event.payload) == (raw, raw)
    assert event.extra == ([] if raw is None else [("blob", raw)])


@pytest.mark.parametrize("text", [b"\\xabc", b"\\xzz", b"abc", b"", b"\\x 0", b"\\000"])
def test_malformed_bytea_is_rejected(text: bytes) -> None:
    columns = (*PLAIN[:-1], Column("payload", BYTEA))
    with pytest.raises(Rejected, match="payload") as caught:
        Layout(DEBEZIUM).read(row(columns=columns, payload=text))
    assert caught.value.reason is Reason.POISON_MESSAGE


def test_null_key_payload_and_aggregate_are_allowed() -> None:
    event = Layout(DEBEZIUM).read(row(aggregateid=None, payload=None, aggregatetype=None))
    assert (event.key, event.payload, event.aggregate) == (None, None, "")


def test_a_table_without_an_aggregate_column() -> None:
    event = Layout(ColumnMap("id", "type", None, "aggregateid", "payload")).read(row())
    assert event.aggregate == ""
    assert event.extra == [("aggregatetype", b"order")]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"id": None}, "'id', the event's id, is NULL"),
        ({"type": None}, "'type', the event's type, is NULL"),
        ({"type": b""}, "'type', the event's type, is empty"),
        ({"id": b"\xff"}, "column id"),
        ({"type": b"\xff"}, "column type"),
        ({"aggregatetype": b"\xff"}, "column aggregatetype"),
    ],
)
def test_an_unreadable_value_names_its_column(changed: dict[str, bytes | None], says: str) -> None:
    with pytest.raises(Rejected) as caught:
        Layout(DEBEZIUM).read(row(**changed))
    assert caught.value.reason is Reason.POISON_MESSAGE
    assert says in caught.value.explanation


def test_names_are_interned_in_a_bounded_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "KNOWN_NAMES", 10)
    layout = Layout(DEBEZIUM)
    assert layout.read(row()).type is layout.read(row(type=bytes(bytearray(b"OrderPlaced")))).type
    for number in range(100):
        layout.read(row(type=b"T%d" % number))
        assert len(layout._names) <= 10


@pytest.mark.parametrize("column", ["type", "aggregatetype"])
def test_a_name_has_a_maximum_length(column: str) -> None:
    layout = Layout(DEBEZIUM)
    layout.read(row(**{column: b"x" * layouts.NAME_BYTES}))
    with pytest.raises(Rejected, match="1,001 bytes, more than the 1,000") as caught:
        layout.read(row(**{column: b"x" * (layouts.NAME_BYTES + 1)}))
    assert caught.value.reason is Reason.PERMANENT_FAILURE
    assert all(len(name) <= layouts.MEMORABLE_BYTES for name in layout._names)


@given(values=st.tuples(*[st.none() | st.binary(max_size=40)] * 5))
def test_any_row_is_read_or_rejected(values: tuple[bytes | None, ...]) -> None:
    try:
        event = Layout(DEBEZIUM).read(Row(PLAIN, values, "p", 1))
    except Rejected:
        unreadable = [value for value in (values[0], values[1], values[3]) if not _is_text(value)]
        assert unreadable or not values[3]
        return
    assert event.id.encode() == values[0]
    assert event.type.encode() == values[3]


def _is_text(value: bytes | None) -> bool:
    return value is not None and value.decode(errors="ignore").encode() == value


class TestDocuments:
    """Rows as a MongoDB source makes them, with the fields that the wiring requests."""

    BODY = {  # noqa: RUF012 - never changed
        "_id": "65",
        "event_id": "e-1",
        "event_type": "OrderPlaced",
        "entity_type": "order",
        "partition_key": "o-7",
        "payload": {"a": 1},
        "topic": "shop.orders",
        "created_at": "2026-01-01T00:00:00Z",
    }

    @staticmethod
    def reader() -> DocumentConverter:
        parts = dict(DOCUMENT.parts())
        required = tuple(parts.pop(part) for part in ("id", "type", "aggregate", "key", "payload"))
        return DocumentConverter(
            required, tuple(parts.values()), "payload", LAYOUTS["document"].ignored - set(parts.values())
        )

    def test_a_document_of_a_polling_publisher(self) -> None:
        polled = {
            **self.BODY,
            "status": "PENDING",
            "retry_count": 0,
            "max_retries": 5,
            "last_error": "x",
            "last_error_at": "x",
            "processing_started_at": "x",
            "published_at": "x",
            "locked_by": "x",
            "locked_until": "x",
            "tenant": "eu",
        }
        event = Layout(DOCUMENT).read(self.reader().row(polled, "60.1:1", 5))
        assert event[:8] == ("e-1", "OrderPlaced", "order", b"o-7", b'{"a":1}', None, "60.1:1", 5)
        assert dict(event.extra) == {
            "created_at": b"2026-01-01T00:00:00Z",
            "topic": b"shop.orders",
            "tenant": b"eu",
        }, "its bookkeeping is no news for consumers"

    @pytest.mark.parametrize("missing", ["topic", "created_at"])
    def test_an_optional_field_may_be_missing_in_one_document_and_present_in_the_next(self, missing: str) -> None:
        layout, reader = Layout(DOCUMENT), self.reader()
        without = {name: value for name, value in self.BODY.items() if name != missing}
        names = [dict(layout.read(reader.row(each, "p", 1)).extra) for each in (self.BODY, without, self.BODY)]
        assert [missing in extra for extra in names] == [True, False, True]

    @given(st.lists(st.dictionaries(st.sampled_from("abcdefgh"), st.text(max_size=3)), max_size=12))
    def test_documents_of_changing_shape_keep_their_values_apart(self, shapes: list[dict[str, str]]) -> None:
        layout, reader = Layout(DOCUMENT), self.reader()
        for number, further in enumerate(shapes):
            event = layout.read(reader.row({**further, **self.BODY, "event_id": str(number)}, "p", 1))
            assert (event.id, event.key, event.payload) == (str(number), b"o-7", b'{"a":1}')
            carried = {name: (value or b"") for name, value in event.extra if name in further}
            assert carried == {name: value.encode() for name, value in further.items()}

    def test_the_cache_of_shapes_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(layouts, "PLANS", 10)
        layout, reader = Layout(DOCUMENT), self.reader()
        for number in [*range(100), *range(100)]:
            event = layout.read(reader.row({**self.BODY, f"field{number}": "x"}, "p", 1))
            assert event.extra[-1] == (f"field{number}", b"x")
            assert len(layout._plans) <= 10

    def test_an_unreadable_document_is_rejected_and_the_next_is_read(self) -> None:
        layout, reader = Layout(DOCUMENT), self.reader()
        bad = reader.row({**self.BODY, "payload": {"a": float("nan")}}, "p", 1)
        assert bad.columns is UNREADABLE
        for _ in range(2):
            assert layout.read(reader.row(self.BODY, "p", 1)).id == "e-1"
            with pytest.raises(Rejected) as caught:
                layout.read(bad)
            assert caught.value.reason is Reason.POISON_MESSAGE
            assert "nan" in caught.value.explanation
            assert caught.value.remedy

    def test_the_columns_of_a_dead_letter_are_unreadable_too(self) -> None:
        """They are parsed from the dead letter's headers as another object that is equal."""
        columns = tuple(Column(column.name, column.type_oid) for column in UNREADABLE)
        with pytest.raises(Rejected, match="no form"):
            Layout(DOCUMENT).read(Row(columns, (b"{}", b"no form"), "p", 1))

    def test_a_document_without_a_required_field_is_rejected_alone(self) -> None:
        document = {name: value for name, value in self.BODY.items() if name != "event_type"}
        with pytest.raises(Rejected, match="no field 'event_type'"):
            Layout(DOCUMENT).read(self.reader().row(document, "p", 1))


def test_the_named_layouts() -> None:
    assert layout_map("debezium", "postgres") == DEBEZIUM
    assert layout_map("debezium", "mongo") == replace(DEBEZIUM, id="_id")
    assert layout_map("document", "mongo") == layout_map("document", "postgres") == DOCUMENT


def test_columns_about_delivery_are_no_part_of_the_event() -> None:
    assert LAYOUTS["debezium"].ignored == frozenset()
    assert LAYOUTS["streams"].ignored == {"processed", "processed_at", "error"}
    for name, expected in (
        ("document", {"_id", "status", "retry_count", "published_at"}),
        ("storage", {"delivery_status", "delivery_attempts", "next_retry_at", "max_attempts", "backoff_multiplier"}),
    ):
        kept = LAYOUTS[name].ignored
        assert expected <= kept
        assert not kept & {column for _, column in LAYOUTS[name].columns.parts()}, "no part of the event is left out"
