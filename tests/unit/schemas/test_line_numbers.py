"""The line of a place in a JSON file."""

from __future__ import annotations

import pytest

from tailrace.schemas.line_numbers import line_of

TEXT = b"""{
  "properties": {
    "a/b": {"type": "string"},
    "list": [
      1,
      {"x": 2}
    ]
  }
}
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 1),
        (("properties",), 2),
        (("properties", "a/b", "type"), 3),
        (("properties", "list", 1, "x"), 6),
        (("properties", "list", "1"), 6),
        (("properties", "absent", "deeper"), 2),
    ],
)
def test_the_line_of_a_member_or_of_the_nearest_one_around_it(path: tuple[str | int, ...], line: int) -> None:
    assert line_of(TEXT, path) == line


@pytest.mark.parametrize("text", [b"", b"\xff", b'{\n\t"a": 1}', b"[" * 5000])
def test_a_text_that_yaml_cannot_read_has_no_line(text: bytes) -> None:
    assert line_of(text, ("a",)) is None
