"""Encodes columns of values as text arrays, so that one statement writes many rows.

Each value becomes the text that psycopg would send for it, and the statement casts it to the column's type. This works
for every type, arrays included (`unnest` would flatten an array of arrays), and a column may mix ints and Decimals.
psycopg's own arrays must have one Python type each, and take five to ten times as long. COPY to a temporary table takes
twice as long, and more time of the server.

The JSON text of a list of texts and numbers, which orjson writes quickly, is the literal of an array but for its
brackets and for the escapes of control characters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime
from types import NoneType
from typing import Any
from uuid import UUID

import orjson
from psycopg.abc import Transformer
from psycopg.adapt import PyFormat
from psycopg.types.json import Jsonb

_JSON = frozenset({"json", "jsonb"})
_SAME_IN_JSON = frozenset({str, int, UUID, NoneType})
"""Types whose text is the same in JSON as in Postgres."""
_OTHER_ESCAPE = re.compile(rb"\\[bfnrtu]")
"""An escape that JSON has and arrays do not; also matches an escaped backslash before such a letter."""


def array(texts: Sequence[str | None]) -> str:
    """Returns the literal of a text[]."""
    return _literal(texts) or "{" + ",".join(["NULL" if text is None else _element(text) for text in texts]) + "}"


def numbers(values: Sequence[int | None]) -> str:
    """Returns the literal of a bigint[]."""
    return _literal(values) or "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def _literal(values: Sequence[Any]) -> str | None:
    """Returns the literal of an array of texts, numbers and None by way of JSON; None if that is not possible."""
    try:
        text = orjson.dumps(values)
    except TypeError:
        return None  # an int of more than 64 bits, or a text that is not Unicode
    return None if _OTHER_ESCAPE.search(text) else "{" + text[1:-1].decode() + "}"


def binary(value: bytes | None) -> str | None:
    """Returns text that casts to bytea."""
    return None if value is None else "\\x" + value.hex()


def _element(text: str) -> str:
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    return '"' + text.replace('"', '\\"') + '"'


class ColumnEncoder:
    """Encodes values with the adapters of one connection."""

    def __init__(self, transformer: Transformer) -> None:
        self._transformer = transformer

    def column(self, values: Sequence[Any], kind: str) -> str:
        """Returns the array literal of a column's values; `kind` is the column's type."""
        if kind in _JSON:
            return array([None if value is None else self._json(value) for value in values])
        types = set(map(type, values))
        if types <= _SAME_IN_JSON or (kind == "boolean" and types <= {bool, NoneType}):
            literal = _literal(values)
            if literal is not None:
                return literal
        return array([None if value is None else self._plain(value) for value in values])

    def _plain(self, value: Any) -> str | None:  # noqa: ANN401 - any type that psycopg adapts
        cls = type(value)
        if cls is str:
            return str(value)
        if cls is int or cls is UUID or cls is datetime:
            return str(value)  # as psycopg does, at a third of the cost
        text = self._transformer.get_dumper(value, PyFormat.TEXT).dump(value)
        return None if text is None else bytes(text).decode()

    def _json(self, value: Any) -> str | None:  # noqa: ANN401
        # A str is JSON text already, as elsewhere in psycopg; Jsonb("…") is a JSON string.
        if isinstance(value, (dict, list, tuple, bool, float)):
            try:
                return orjson.dumps(value).decode()
            except TypeError:
                value = Jsonb(value)  # psycopg may have an adapter for what orjson cannot write
        return self._plain(value)


_OWN_IDENTITY = {"smallint": int, "integer": int, "bigint": int, "uuid": UUID, "text": str, "character varying": str}


def identities(values: Sequence[Any], kind: str, length: int) -> Sequence[Any] | None:
    """Returns the `identity` of each value; None if one is not certain."""
    if length < 0 and set(map(type, values)) == {_OWN_IDENTITY.get(kind)}:
        return values
    found = [identity(value, kind, length) for value in values]
    return None if None in found else found


def identity(value: Any, kind: str, length: int) -> Any:  # noqa: ANN401
    """Returns equal results for two values exactly if Postgres treats them as one key; None if that is not certain.

    `length` is the limit of a `character varying`, beyond which Postgres cuts blanks; -1 for none.
    """
    cls = type(value)
    try:
        match kind:
            case "smallint" | "integer" | "bigint":
                return int(value) if cls is int or cls is str else None
            case "uuid":
                return value if cls is UUID else UUID(value) if cls is str else None
            case "text" | "character varying":
                return value if cls is str and (length < 0 or len(value) <= length) else None
            case "date":
                return value if cls is date else None
            case "timestamp with time zone":
                return value if cls is datetime and value.tzinfo is not None and length < 0 else None
            case "boolean":
                return value if cls is bool else None
            case "bytea":
                return value if cls is bytes else None
    except ValueError:
        pass  # not of that type: Postgres will report it
    return None
