"""Converts JSON values for an Avro writer, exactly: a value that would be read differently is rejected.

Writers are lenient: fastavro writes 1.9 as the int 1, "no" as true and 1e300 as infinity, and drops unknown fields. So
each type gets its own converter, made once per schema, and the writer only sees converted values. Payloads are plain
JSON, not Avro's JSON encoding:

    int, long                 a whole number that fits, not 1.0
    float, double             a number; a whole one only if it is exact, a fraction rounded to the type's precision
    bytes, fixed              base64 text
    decimal                   text such as "12.50", or a number that is exact in its scale (12.5 is, 12.34 is not)
    date, time, timestamp     ISO 8601 text, or the integer that Avro stores
    uuid                      its text

A converter raises ValueMismatch, which builds its message only when it is shown, because unions use mismatches to
choose a branch.
"""

from __future__ import annotations

import binascii
import re
import struct
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from tailrace.schemas.messages import describe
from tailrace.schemas.strict_json import Json

Convert = Callable[[Any], Any]

MISSING: Any = type("Missing", (), {})()
"""The value of a missing field. It has no JSON type, so every converter rejects it."""

_DECIMAL = re.compile(r"(-?)0*([0-9]*)(?:\.([0-9]+))?", re.ASCII).fullmatch
_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]+))?(?:(Z)|([+-])([0-9]{2}):([0-9]{2}))?"
).fullmatch
_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])(?:\.([0-9]+))?").fullmatch
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}").fullmatch
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}").fullmatch
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - both sides of the difference have no zone
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DAYS = range(date.min.toordinal() - _EPOCH_DAY, date.max.toordinal() - _EPOCH_DAY + 1)
"""The years 1 to 9999, the range of ISO 8601 and of most readers."""
_LONGEST = 4000
"""Digits. Python refuses to parse integers of more than 4,300."""


class ValueMismatch(Exception):
    """`value` does not match its type. `path` leads to it, innermost name first."""

    def __init__(self, expected: str, value: Json) -> None:
        super().__init__()
        self.expected = expected
        self.value = value
        self.path: list[str | int] = []

    def __str__(self) -> str:
        return f"expected {self.expected}, got {describe(self.value)}"


def null(value: Json) -> None:
    if value is not None:
        raise ValueMismatch("null", value)


def exactly(kind: type, expected: str) -> Convert:
    """Converts text and booleans: a value of the right type is valid."""

    def convert(value: Json) -> Json:
        if type(value) is kind:
            return value
        raise ValueMismatch(expected, value)

    return convert


def whole(bits: int, low: int | None = None, high: int | None = None) -> Convert:
    """Converts an integer of `bits`, or within narrower bounds."""
    least = -(1 << bits - 1) if low is None else low
    most = (1 << bits - 1) - 1 if high is None else high
    expected = f"a whole number of {bits} bits" if low is None else f"a whole number from {least} to {most}"

    def convert(value: Json) -> int:
        if type(value) is int and least <= value <= most:
            return value
        raise ValueMismatch(expected, value)

    return convert


def double(value: Json) -> float:
    if type(value) is float:
        return value
    if type(value) is int and int(number := float(value)) == value:
        return number
    raise ValueMismatch("a number that 64 bits hold exactly" if type(value) is int else "a number", value)


def single(value: Json) -> float:
    """Converts a number. Fractions are rounded to the type's precision; values beyond its range are rejected."""
    if type(value) is float or type(value) is int:
        try:
            stored: float = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            raise ValueMismatch("a number within 32 bits", value) from None
        if type(value) is float or int(stored) == value:
            return float(value)
        raise ValueMismatch("a number that 32 bits hold exactly", value)
    raise ValueMismatch("a number", value)


def binary(size: int | None = None) -> Convert:
    """Converts bytes and fixed."""
    expected = "base64 text" if size is None else f"base64 text of {size} byte{'' if size == 1 else 's'}"

    def convert(value: Json) -> bytes:
        if type(value) is str:
            try:
                data = binascii.a2b_base64(value, strict_mode=True)
            except ValueError:  # binascii.Error is a ValueError, and so is non-ASCII text
                raise ValueMismatch(expected, value) from None
            # Several texts may encode the same bytes; only the canonical one is read as it was written.
            if (size is None or len(data) == size) and b64encode(data).decode() == value:
                return data
        raise ValueMismatch(expected, value)

    return convert


def symbol(symbols: list[str]) -> Convert:
    known = frozenset(symbols)
    listed = ", ".join(map(repr, symbols[:20])) + (" and so on" if len(symbols) > 20 else "")
    expected = f"one of {listed[:240]}"

    def convert(value: Json) -> str:
        if type(value) is str and value in known:
            return value
        raise ValueMismatch(expected, value)

    return convert


def decimal(precision: int, scale: int, size: int | None) -> Convert:
    """Converts a decimal to the two's-complement bytes of its unscaled value; `size` bytes if it is fixed."""
    expected = f"a decimal of at most {precision} digits, {scale} of them after the point, as text or exact"

    def convert(value: Json) -> bytes:
        match = _DECIMAL(_digits(value))
        if match is None:
            raise ValueMismatch(expected, value)
        sign, before, after = match.groups()
        after = (after or "").rstrip("0")
        # The texts "", "-" and ".5" are not numbers, although the pattern accepts them.
        if len(after) > scale or len(before) > precision - scale or not _has_units(value):
            raise ValueMismatch(expected, value)
        number = int((before + after.ljust(scale, "0")) or "0")
        number = -number if sign else number
        shortest = (number if number >= 0 else ~number).bit_length() // 8 + 1
        return number.to_bytes(size or shortest, "big", signed=True)

    return convert


def _digits(value: Json) -> str:
    if type(value) is str:
        return value if len(value) <= 2 * _LONGEST else "?"
    if type(value) is int:
        return str(value)
    # Use the exact value of the float, not its shortest text: 12.34 may have been 12.340000000000000001 in the payload.
    return format(Decimal(value), "f") if type(value) is float else "?"


def _has_units(value: Json) -> bool:
    return type(value) is not str or value.removeprefix("-")[:1].isdigit()


def moment(digits: int, *, local: bool) -> Convert:
    """Converts timestamp-millis (3 digits of a second), -micros (6) and -nanos (9); local ones have no zone."""
    zone = "without a zone" if local else "with its zone"
    expected = f"an ISO 8601 time {zone}, at most {digits} digits of a second, or an integer, of the years 1 to 9999"
    unit: int = 86_400 * 10**digits
    known = range(max(_DAYS.start * unit, -(1 << 63)), min(_DAYS.stop * unit, 1 << 63))

    def stored(number: int) -> int:
        if number not in known:
            raise ValueError
        return number

    def convert(value: Json) -> int:
        if type(value) is int:
            if value in known:
                return value
            raise ValueMismatch(expected, value)
        match = _MOMENT(value) if type(value) is str else None
        if match is None:
            raise ValueMismatch(expected, value)
        text, fraction, utc, sign, hours, minutes = match.groups()
        if local is not (utc is None and sign is None):
            raise ValueMismatch(expected, value)
        try:
            since = datetime.fromisoformat(text) - _EPOCH
            seconds = since.days * 86_400 + since.seconds
            if sign is not None:
                offset = int(hours) * 3600 + int(minutes) * 60
                if int(hours) > 23 or int(minutes) > 59:
                    raise ValueMismatch(expected, value)
                seconds += offset if sign == "-" else -offset
            return stored(seconds * 10**digits + _fraction(fraction, digits))
        except (ValueError, ValueMismatch):
            raise ValueMismatch(expected, value) from None

    return convert


def time_of_day(digits: int) -> Convert:
    """Converts time-millis and time-micros."""
    expected = f"an ISO 8601 time of day, at most {digits} digits of a second, or an integer of less than a day"
    unit: int = 10**digits

    def convert(value: Json) -> int:
        if type(value) is int and 0 <= value < 86_400 * unit:
            return value
        match = _TIME(value) if type(value) is str else None
        if match is not None:
            hours, minutes, seconds, fraction = match.groups()
            try:
                part = _fraction(fraction, digits)
            except ValueError:
                raise ValueMismatch(expected, value) from None
            return (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * unit + part
        raise ValueMismatch(expected, value)

    return convert


def _fraction(text: str | None, digits: int) -> int:
    text = (text or "").rstrip("0")
    if len(text) > digits:
        raise ValueError
    return int(text.ljust(digits, "0"))


def day(value: Json) -> int:
    if type(value) is int and value in _DAYS:
        return value
    if type(value) is str and _DATE(value):
        try:
            return date.fromisoformat(value).toordinal() - _EPOCH_DAY
        except ValueError:
            pass  # the 30th of February
    raise ValueMismatch("an ISO 8601 date, or the number of its days since 1970, of the years 1 to 9999", value)


def uuid_text(value: Json) -> str:
    if type(value) is str and _UUID(value):
        return value
    raise ValueMismatch("a UUID", value)


def uuid_bytes(value: Json) -> bytes:
    return UUID(uuid_text(value)).bytes


LOGICAL: Mapping[tuple[str, str], tuple[Convert, frozenset[type]]] = {
    ("int", "date"): (day, frozenset({str, int})),
    ("int", "time-millis"): (time_of_day(3), frozenset({str, int})),
    ("long", "time-micros"): (time_of_day(6), frozenset({str, int})),
    ("long", "timestamp-millis"): (moment(3, local=False), frozenset({str, int})),
    ("long", "timestamp-micros"): (moment(6, local=False), frozenset({str, int})),
    ("long", "timestamp-nanos"): (moment(9, local=False), frozenset({str, int})),
    ("long", "local-timestamp-millis"): (moment(3, local=True), frozenset({str, int})),
    ("long", "local-timestamp-micros"): (moment(6, local=True), frozenset({str, int})),
    ("long", "local-timestamp-nanos"): (moment(9, local=True), frozenset({str, int})),
    ("string", "uuid"): (uuid_text, frozenset({str})),
}
"""The converter and the JSON types it may accept, by type and logicalType. Others count as their plain type, as the
specification says; `decimal` and the fixed `uuid` need more than their name."""

PLAIN: Mapping[str, tuple[Convert, frozenset[type]]] = {
    "null": (null, frozenset({type(None)})),
    "boolean": (exactly(bool, "true or false"), frozenset({bool})),
    "int": (whole(32), frozenset({int})),
    "long": (whole(64), frozenset({int})),
    "float": (single, frozenset({float, int})),
    "double": (double, frozenset({float, int})),
    "string": (exactly(str, "text"), frozenset({str})),
    "bytes": (binary(), frozenset({str})),
}
MAX_PRECISION = _LONGEST
