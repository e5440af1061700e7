"""Converters of records, arrays, maps and unions, composed of the converters of their parts. See `scalar_converters`
for the rules.

A record accepts no unknown field, and a field may only be missing if its default is null: Avro has no "absent", and any
other default would publish a value that the service did not write. A union takes the first matching branch, except that
a fraction prefers `double` to `float`, which would round it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tailrace.schemas.avro.scalar_converters import MISSING, Convert, ValueMismatch
from tailrace.schemas.messages import MAX_ERRORS, cut, describe
from tailrace.schemas.strict_json import Json

_NULL = ("null", None)


class Field(NamedTuple):
    """A field of a record. `absent` is the value of a missing field. A value of type `same` needs no conversion."""

    name: str
    convert: Convert
    absent: Any
    same: type | None


class Branch(NamedTuple):
    """One type of a union: its name for messages and for the writer, and the JSON types it may accept."""

    name: str
    tag: str
    convert: Convert
    takes: frozenset[type]


class WrongFields(ValueMismatch):
    """An object with unknown or missing fields."""

    def __init__(self, value: Json, fields: Sequence[Field]) -> None:
        super().__init__("", value)
        self.fields = fields

    def __str__(self) -> str:
        # Names are collected only here, because most mismatches are never shown.
        missing = [name for name, _, absent, _ in self.fields if absent is MISSING and name not in self.value]
        if missing:
            fields, them = ("fields", "them") if len(missing) > 1 else ("field", "it")
            return f"expected the {fields} {_names(missing)}, got {describe(self.value)} without {them}"
        known = {field.name for field in self.fields}
        return f"expected no further fields, got {_names([name for name in self.value if name not in known])}"


def _names(names: list[str]) -> str:
    shown = ", ".join(repr(cut(name)) for name in names[:MAX_ERRORS])
    return f"{shown} and {len(names) - MAX_ERRORS} more" if len(names) > MAX_ERRORS else shown


def record(name: str, fields: Sequence[Field]) -> Convert:
    expected = f"an object ({cut(name)})"
    plan = tuple(fields)
    known = frozenset(field.name for field in plan)
    complete = all(field.absent is MISSING for field in plan)
    count = len(plan)

    def convert(value: Json) -> dict[str, Any]:
        if type(value) is not dict:
            raise ValueMismatch(expected, value)
        datum = {}
        get = value.get
        field = ""
        try:
            for field, to, absent, same in plan:
                item = get(field, absent)
                datum[field] = item if type(item) is same else to(item)
        except ValueMismatch as mismatch:
            if mismatch.value is MISSING:
                raise WrongFields(value, plan) from None
            mismatch.path.append(field)
            raise
        # All fields were found, so the same number of keys means no others, unless some may be absent.
        if (len(value) != count) if complete else not value.keys() <= known:
            raise WrongFields(value, plan)
        return datum

    return convert


def array(item: Convert) -> Convert:
    def convert(value: Json) -> list[Any]:
        if type(value) is not list:
            raise ValueMismatch("an array", value)
        data: list[Any] = []
        try:
            for one in value:
                data.append(item(one))
        except ValueMismatch as mismatch:
            mismatch.path.append(len(data))
            raise
        return data

    return convert


def mapping(item: Convert) -> Convert:
    def convert(value: Json) -> dict[str, Any]:
        if type(value) is not dict:
            raise ValueMismatch("an object", value)
        data = {}
        key = ""
        try:
            for key, one in value.items():
                data[key] = item(one)
        except ValueMismatch as mismatch:
            mismatch.path.append(key)
            raise
        return data

    return convert


def union(branches: Sequence[Branch], tried: dict[int, Any]) -> Convert:
    """Converts a union. The result is tagged with its branch, so that the writer need not choose one.

    `tried` remembers the result for each object of the payload and is cleared after each payload. Where several
    branches are records, each object is tried only once: otherwise the time would double with each level of recursive
    records (days for an expression tree of 40 levels).
    """
    expected = " or ".join(cut(branch.name) for branch in branches)
    choices: dict[type, list[Branch]] = {}
    for branch in branches:
        for kind in branch.takes:
            choices.setdefault(kind, []).append(branch)
    if float in choices:
        choices[float].sort(key=lambda branch: branch.name == "float")
    nullable = type(None) in choices

    def convert(value: Json) -> tuple[str, Any]:
        if value is None and nullable:
            return _NULL
        fitting = choices.get(type(value), ())
        if len(fitting) == 1:
            _, tag, to, _ = fitting[0]
            return tag, to(value)
        return remembered(value, fitting) if type(value) is dict else first(value, fitting)

    def first(value: Json, fitting: Sequence[Branch]) -> tuple[str, Any]:
        inside = []
        for _, tag, to, _ in fitting:
            try:
                return tag, to(value)
            except ValueMismatch as mismatch:
                if mismatch.path:
                    inside.append(mismatch)
        # If only one branch has the right fields, it was meant, and the problem is inside it.
        raise inside[0] if len(inside) == 1 else ValueMismatch(expected, value)

    def remembered(value: Json, fitting: Sequence[Branch]) -> tuple[str, Any]:
        known = tried.get(id(value))
        if known is None:
            try:
                known = first(value, fitting)
            except ValueMismatch as mismatch:
                known = mismatch
            tried[id(value)] = known
        if isinstance(known, ValueMismatch):
            # Its path may be extended twice, but it is not shown then: two branches fail inside.
            raise known
        found: tuple[str, Any] = known
        return found

    return convert


def default_as_value(convert: Convert) -> Callable[[Json], bool]:
    """Returns a check of defaults, for types whose defaults are written like their values."""

    def fits(value: Json) -> bool:
        try:
            convert(value)
        except ValueMismatch:
            return False
        return True

    return fits


def default_as_bytes(value: Json) -> bool:
    """Whether a default of bytes is valid: it has one character per byte."""
    return isinstance(value, str) and all(ord(one) < 256 for one in value)
