"""Payloads as JSON text."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import uuid
from decimal import Decimal
from typing import Any

import orjson
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import EventInvalid
from tailrace.outbox.writer.payload import PayloadWriter


@dataclasses.dataclass
class Line:
    sku: str
    cents: float


class Order(pydantic.BaseModel):
    at: dt.date
    lines: list[Line]


class State(enum.Enum):
    OPEN = "open"


def writer(default: Any = None, max_bytes: int = 1000) -> PayloadWriter:
    return PayloadWriter(default, max_bytes)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (None, None),
        (b' {"a": 1} ', b' {"a": 1} '),
        ({"a": [1, None, "ä"]}, '{"a":[1,null,"ä"]}'.encode()),
        ({"state": State.OPEN}, b'{"state":"open"}'),
        ({"line": Line("x", 1.5)}, b'{"line":{"sku":"x","cents":1.5}}'),
        (Order(at=dt.date(2026, 1, 2), lines=[Line("x", 1)]), b'{"at":"2026-01-02","lines":[{"sku":"x","cents":1.0}]}'),
        ({"id": uuid.UUID(int=7)}, b'{"id":"00000000-0000-0000-0000-000000000007"}'),
    ],
)
def test_values_are_written_as_json(payload: object, text: bytes | None) -> None:
    assert writer().text(payload) == text


def test_own_types_are_converted_by_the_services_function() -> None:
    def default(value: object) -> object:
        if isinstance(value, Decimal):
            return str(value) if value.is_finite() else float("nan")
        raise TypeError

    written = writer(default).text({"a": Decimal("1.50"), "b": Line("x", 0.5)})
    assert written == b'{"a":"1.50","b":{"sku":"x","cents":0.5}}'
    for bad, text in ((Decimal("NaN"), "NaN"), (object(), "object")):
        with pytest.raises(EventInvalid, match=text):
            writer(default).text({"a": bad})


@pytest.mark.parametrize(
    "hidden", [Line("x", float("inf")), Order(at=dt.date(2026, 1, 2), lines=[Line("x", float("nan"))])]
)
def test_nan_is_found_inside_objects(hidden: object) -> None:
    with pytest.raises(EventInvalid, match="NaN"):
        writer().text({"deep": [{"a": (None, hidden)}]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON)
def test_a_value_comes_back_unchanged_or_is_refused(value: Any) -> None:
    try:
        text = writer(max_bytes=1_000_000).text({"a": value})
    except EventInvalid:
        shown = json.dumps(value)
        assert "NaN" in shown or "Infinity" in shown or "\\u0000" in shown or "\\ud" in shown
    else:
        assert text is not None
        assert orjson.loads(text) == {"a": value}


@given(JSON)
def test_the_size_as_jsonb_is_bounded(value: Any) -> None:
    """jsonb writes a space after each comma and colon."""
    text = orjson.dumps({"a": value})
    size = len(json.dumps(json.loads(text), ensure_ascii=False).encode())
    writer(max_bytes=max(size, len(text))).check_jsonb(b"{}")
    if b"e" in text:
        return  # numbers with an exponent have a rule of their own
    writer(max_bytes=size).check_jsonb(text)
    with pytest.raises(EventInvalid, match="more than the limit"):
        writer(max_bytes=size - 1).check_jsonb(text)
