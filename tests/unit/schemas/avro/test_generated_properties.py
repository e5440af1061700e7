"""The generated writer with random schemas and values: the same bytes as the reference path, or none."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from helpers.avro import JSON, decimal, field, logical, pairs, read, record, same
from helpers.avro_writers import reference_schema, same_bytes
from tailrace.schemas.avro.generated_writer import varint

MILLIS = logical("long", "timestamp-millis")
ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))) | st.just(UTC)
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=ZONES)  # noqa: DTZ001
ALMOST_MOMENT = st.text(st.sampled_from("0123456789-:.TZ+²٣_ "), max_size=30)
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (MILLIS, MOMENTS.map(lambda one: one.isoformat(timespec="milliseconds").replace("+00:00", "Z"))),
    (logical("long", "timestamp-micros"), MOMENTS.map(datetime.isoformat)),
    (logical("long", "timestamp-nanos"), MOMENTS.map(datetime.isoformat)),
    (logical("long", "local-timestamp-micros"), st.datetimes().map(datetime.isoformat)),
    (logical("int", "date"), st.dates().map(str) | st.integers(-(2**31), 2**31 - 1)),
    (logical("int", "time-millis"), st.integers(0, 86_399_999)),
    (logical("string", "uuid"), st.uuids().map(str)),
    ("bytes", st.binary().map(lambda data: base64.b64encode(data).decode())),
    (decimal(12, 2), st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: str(Decimal(n).scaleb(-2)))),
]


@st.composite
def documents(draw: st.DrawFn) -> tuple[Any, st.SearchStrategy[Any]]:
    """A schema and a strategy for its values: any types, or a record of leaves that may be null, absent or repeated."""
    if draw(st.booleans()):
        return draw(pairs())
    fields, required, optional = [], {}, {}
    for index in range(draw(st.integers(0, 4))):
        kind, values = draw(st.sampled_from(LEAVES) | pairs(depth=1))
        form = draw(st.sampled_from(["plain", "nullable", "absent", "list", "map"]))
        name = f"f{index}"
        if form in ("nullable", "absent") and not isinstance(kind, list) and kind != "null":
            more = {"default": None} if form == "absent" else {}
            fields.append(field(name, draw(st.permutations(["null", kind])), **more))
            (optional if more else required)[name] = values | st.none()
            continue
        if form == "list":
            kind, values = {"type": "array", "items": kind}, st.lists(values, max_size=3)
        elif form == "map":
            kind, values = {"type": "map", "values": kind}, st.dictionaries(st.text("ab"), values, max_size=3)
        fields.append(field(name, kind))
        required[name] = values
    return record(*fields, name="Leaves"), st.fixed_dictionaries(required, optional=optional)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields every container inside, with each of its keys or indexes."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """A value with one member replaced, removed or added."""
    whole = [deepcopy(value)]
    holder, key = draw(st.sampled_from(list(places(whole))))
    how = draw(st.sampled_from(["replace", "nudge", "remove", "add"]))
    if how == "remove" and holder is not whole:
        del holder[key]
    elif how == "add" and isinstance(holder, dict):
        holder[draw(st.sampled_from(["a", "f1", "f9"]))] = draw(JSON)
    elif how == "nudge" and type(holder[key]) in (int, bool, float, str):
        one = holder[key]
        holder[key] = draw(st.sampled_from([bool(one), f"{one}", f"{one}0", f"{one}Z", str(one)[:-1], 2**31, 2**63]))
    else:
        holder[key] = draw(JSON | ALMOST_MOMENT)
    return whole[0]


def has_union(schema: Any) -> bool:
    if isinstance(schema, dict):
        parts = [schema.get("items"), schema.get("values"), schema.get("type")]
        return any(map(has_union, [*parts, *(part["type"] for part in schema.get("fields", []))]))
    return isinstance(schema, list)


@given(st.data())
def test_every_valid_value_is_written_and_read_back(data: st.DataObject) -> None:
    document, values = data.draw(pairs())
    value = data.draw(values)
    found = same_bytes(document, value)
    if found is not None:
        assert same(value, read(document, found))
    else:
        assert has_union(document)  # and the value belongs to another branch than the first


@given(st.data())
def test_every_valid_value_is_written_with_the_same_bytes(data: st.DataObject) -> None:
    document, values = data.draw(documents())
    value = data.draw(values)
    assert (
        same_bytes(document, value) is not None or has_union(document) or not reference_schema(document).is_valid(value)
    )


@given(st.data())
def test_an_almost_valid_value_is_written_with_the_same_bytes_or_not_at_all(data: st.DataObject) -> None:
    document, values = data.draw(documents())
    same_bytes(document, data.draw(changed(data.draw(values))))


@given(st.data())
def test_any_json_value_is_written_with_the_same_bytes_or_not_at_all(data: st.DataObject) -> None:
    document, _ = data.draw(documents())
    same_bytes(document, data.draw(JSON))


@given(st.sampled_from(["millis", "micros", "nanos"]), ALMOST_MOMENT | MOMENTS.map(datetime.isoformat))
@example("millis", "2026-01-02T03:04:05.678Z")
def test_every_text_is_the_same_timestamp_or_rejected(unit: str, text: str) -> None:
    document = logical("long", f"timestamp-{unit}")
    if same_bytes(document, text) is None:
        assert not reference_schema(document).is_valid(text)


@given(st.integers(-(2**63), 2**63 - 1) | st.integers(-70_000, 70_000))
def test_every_integer_is_read_back(number: int) -> None:
    assert read("long", varint(number)) == number
