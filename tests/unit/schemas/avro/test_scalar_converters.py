"""Random values of Avro schemas: each is read back equal, or rejected with a reason."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.avro import (
    JSON,
    compile_schema,
    decimal,
    field,
    logical,
    pairs,
    read,
    record,
    same,
    written,
)
from tailrace.errors import SchemaError


@given(st.data())
def test_every_valid_value_is_read_back_equal(data: st.DataObject) -> None:
    document, values = data.draw(pairs())
    value = data.draw(values)
    assert written(document, value) == value


@given(st.data())
def test_any_json_value_is_read_back_equal_or_rejected_with_a_reason(data: st.DataObject) -> None:
    document, _ = data.draw(pairs())
    value = data.draw(JSON)
    schema = compile_schema(document)
    if schema.is_valid(value):
        assert same(value, read(document, schema.encode(value)))
    else:
        assert "expected" in schema.explain(value, 0)


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=4))
def test_every_decimal_text_is_read_back_exactly(number: Decimal) -> None:
    assert written(decimal(14, 4), format(number, "f")) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_fraction_is_a_decimal_only_if_it_is_exact(number: float) -> None:
    schema = compile_schema(decimal(20, 3))
    if schema.is_valid(number):
        assert read(decimal(20, 3), schema.encode(number)) == Decimal(number)
    else:
        assert Fraction(number) * 1000 % 1 != 0 or abs(number) >= 10**17


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.timezones()))  # noqa: DTZ001
def test_every_timestamp_text_is_read_back_as_the_same_time(moment: datetime) -> None:
    text = moment.isoformat()
    schema = compile_schema(logical("long", "timestamp-micros"))
    if schema.is_valid(text):
        assert read(logical("long", "timestamp-micros"), schema.encode(text)) == datetime.fromisoformat(text)
    else:
        # Historical zones have offsets with seconds, which ISO 8601 cannot express.
        assert moment.utcoffset().total_seconds() % 60 != 0  # type: ignore[union-attr]


@given(st.binary())
def test_all_bytes_are_read_back_from_base64(data: bytes) -> None:
    import base64

    assert written("bytes", base64.b64encode(data).decode()) == data


@pytest.mark.parametrize(
    ("kind", "ends", "python"),
    [
        (logical("int", "date"), (-719_162, 2_932_896), (date.min, date.max)),
        (
            logical("long", "timestamp-millis"),
            (-62_135_596_800_000, 253_402_300_799_999),
            (datetime.min.replace(tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)),
        ),
    ],
)
def test_the_first_and_last_timestamps_can_be_read(kind: Any, ends: tuple[int, int], python: tuple[Any, Any]) -> None:
    """Also inside a record, which the generated writer writes."""
    assert tuple(written(kind, end) for end in ends) == python
    assert tuple(written(record(field("at", kind)), {"at": end})["at"] for end in ends) == python
    for beyond in (ends[0] - 1, ends[1] + 1):
        assert not compile_schema(record(field("at", kind))).is_valid({"at": beyond})


def test_a_fixed_decimal_of_no_bytes_is_refused() -> None:
    with pytest.raises(SchemaError, match="do not fit into 0 bytes"):
        compile_schema({"type": "fixed", "name": "F", "size": 0, "logicalType": "decimal", "precision": 1})
