"""Tests of copy_rows.py: the text format of COPY is unescaped correctly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.sources.postgres.copy_rows import Fields, fields

_ESCAPES = {b"\\": b"\\\\", b"\b": b"\\b", b"\f": b"\\f", b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t", b"\v": b"\\v"}


def copied(values: Fields) -> bytes:
    """Returns the line as the server writes it."""
    written = [
        b"\\N" if value is None else b"".join(_ESCAPES.get(bytes([byte]), bytes([byte])) for byte in value)
        for value in values
    ]
    return b"\t".join(written) + b"\n"


@given(st.lists(st.none() | st.text("ab\\N\n\t\r\b\f\vé", max_size=6).map(str.encode), min_size=1).map(tuple))
def test_escaped_values_are_unescaped(values: Fields) -> None:
    assert fields(copied(values)) == values


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"1\t\\N\t\n", (b"1", None, b"")),
        (b"\\\\xdead\t\\\\N\n", (b"\\xdead", b"\\N")),
        (b'{"a": "\\\\n"}\n', (b'{"a": "\\n"}',)),
    ],
)
def test_lines_written_by_hand(line: bytes, found: Fields) -> None:
    assert fields(line) == found
