"""COPY's text form: what Postgres escapes comes back as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.sources.postgres.copy_rows import Fields, fields

_ESCAPES = {b"\\": b"\\\\", b"\b": b"\\b", b"\f": b"\\f", b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t", b"\v": b"\\v"}


def copied(values: Fields) -> bytes:
    """As the server writes it."""
    written = [
        b"\\N" if value is None else b"".join(_ESCAPES.get(bytes([byte]), bytes([byte])) for byte in value)
        for value in values
    ]
    return b"\t".join(written) + b"\n"


@given(st.lists(st.none() | st.text("ab\\N\n\t\r\b\f\vé", max_size=6).map(str.encode), min_size=1).map(tuple))
def test_comes_back_as_it_was(values: Fields) -> None:
    assert fields(copied(values)) == values


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"1\t\\N\t\n", (b"1", None, b"")),
        (b"\\\\xdead\t\\\\N\n", (b"\\xdead", b"\\N")),
        (b'{"a": "\\\\n"}\n', (b'{"a": "\\n"}',)),
    ],
)
def test_by_hand(line: bytes, found: Fields) -> None:
    assert fields(line) == found
