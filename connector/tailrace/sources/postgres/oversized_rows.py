"""Rows that are too large for the server to send as text: read without their large values. Pure.

The server builds a row as text in one piece of memory, of at most 1 GB; a bytea takes two bytes for each of its own. It
knows the size of a value without reading it. Such a row is a dead letter that has the columns which are small.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from tailrace.event import TEXT, UNREADABLE, Column, Columns, Row
from tailrace.sql_names import quote

LIMIT = 1_000_000_000
"""Bytes of text in a row; the server's own limit is a little above."""
SMALL = 65_536
"""Bytes of a value that is kept of such a row."""
_TEXT_BYTES = {17: 2, TEXT: 1, 1042: 1, 1043: 1}
"""By the number of the type, bytea, text, char and varchar: bytes of text for each byte of a value."""


def too_large(columns: Sequence[Column]) -> str:
    """The SQL condition for such rows."""
    sizes = [
        f"{_TEXT_BYTES[kind]} * coalesce(octet_length({quote(name)}), 0)::bigint"
        for name, kind in columns
        if kind in _TEXT_BYTES
    ]
    return f"{' + '.join(sizes)} > {LIMIT}" if sizes else "false"


def is_small(column: Column) -> str:
    """The SQL expression for a value that may be too large: NULL if it is."""
    name = quote(column.name)
    if column.type_oid not in _TEXT_BYTES:
        return name
    return f"CASE WHEN octet_length({name}) <= {SMALL} THEN {name} END"


def oversized_row(columns: Columns, values: Sequence[bytes | None], place: str, committed_ms: int) -> Row:
    """The row that stands for one that is too large; `values` are those of `small`."""
    named = zip((column.name for column in columns), values, strict=True)
    document = {name: value.decode(errors="replace") for name, value in named if value is not None}
    why = f"the row has more than {LIMIT:,} bytes as text, which the server cannot send"
    return Row(UNREADABLE, (orjson.dumps(document), why.encode()), place, committed_ms)
