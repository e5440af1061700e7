"""YAML is read strictly, with line numbers, and its errors never quote the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.config.load import PIPELINE_FILE
from tailrace.errors import ConfigError
from tailrace.yaml_document import read_document


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_reads_data_and_lines(tmp_path: Path) -> None:
    document = read_document(write(tmp_path, "﻿a: 1\n\nb:\n  c: [x,\n    y]\n"), PIPELINE_FILE)
    assert document.data == {"a": 1, "b": {"c": ["x", "y"]}}
    assert document.lines == {("a",): 1, ("b",): 3, ("b", "c"): 4, ("b", "c", "0"): 4, ("b", "c", "1"): 5}


def test_allows_aliases_and_merges(tmp_path: Path) -> None:
    document = read_document(write(tmp_path, "a: &x {p: 1}\nb:\n  <<: *x\n  q: 2\nc: *x\n"), PIPELINE_FILE)
    assert document.data == {"a": {"p": 1}, "b": {"p": 1, "q": 2}, "c": {"p": 1}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", ["orders.yaml:3: a is given twice", "line 1", "Remove one"]),
        ("s:\n  p: 1\n  p: s3cret\n", ["orders.yaml:3: s.p is given twice", "line 2"]),
        ("a: [1, 2\nb: 3\n", ["orders.yaml:2", "column"]),
        ("a: 1\n\tb: s3cret\n", ["orders.yaml:2", "tab", "spaces"]),
        ("p: *s3cret\n", ["orders.yaml:1:4", "alias", "quotes"]),
        ("p: !s3cret x\n", ["orders.yaml:1:4", "tag", "quotes"]),
        ("p: @s3cret\n", ["orders.yaml:1:4", "character", "quotes"]),
        ('p: "s3cret\\q"\n', ["orders.yaml:1", "character"]),
        ("a: 1\n---\nb: s3cret\n", ["orders.yaml:2", "second document", "one pipeline per file"]),
        ("p: a: s3cret\n", ["orders.yaml:1:5", "not valid YAML"]),
        ("a: &a [*a]\n", ["orders.yaml:1", "contains itself"]),
        ("a: 2024-13-45\n", ["orders.yaml", "quotes"]),
        ("a: \x01s3cret\n", ["orders.yaml", "control characters"]),
        ("", ["orders.yaml is empty", "tailrace init"]),
        ("# nothing\n", ["orders.yaml is empty"]),
        ("- s3cret\n", ["not a pipeline", "tailrace init"]),
        ("s3cret\n", ["not a pipeline"]),
        (b"a: \xff\n", ["UTF-8"]),
    ],
    ids=[str(number) for number in range(18)],  # the text itself would be in the path
)
def test_invalid_yaml_is_refused(tmp_path: Path, text: str | bytes, expected: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_document(write(tmp_path, text), PIPELINE_FILE)
    for part in expected:
        assert part in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.remedy


def test_a_folder_or_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read_document(tmp_path / "absent.yaml", PIPELINE_FILE)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_document(tmp_path, PIPELINE_FILE)
