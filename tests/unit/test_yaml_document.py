"""Reading YAML with the error texts of the caller. More tests: config/test_pipeline_file.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.yaml_document import ExpectedContent, read_document, read_value

BOOK = ExpectedContent("a book", "title: Emma", "Buy one.", "Write one.", "Begin with its title.")


@pytest.mark.parametrize(
    ("text", "reported", "remedy"),
    [
        (None, "does not exist", "Buy one."),
        ("", "is empty", "Write one."),
        ("- a", "is not a book", "Begin with its title."),
        ("a: 1\n---\nb: 2", "not valid YAML", "Keep one book per file."),
        ("[" * 10_000, "nested too deeply", "Reduce the nesting"),
    ],
)
def test_errors_name_the_expected_content(tmp_path: Path, text: str | None, reported: str, remedy: str) -> None:
    file = tmp_path / "book.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=reported) as caught:
        read_document(file, BOOK)
    assert remedy in caught.value.remedy


def nested_aliases(levels: int, width: int) -> str:
    """A few lines that stand for width ** levels values."""
    lines = ["l0: &l0 [" + ", ".join("a" * width) + "]"]
    lines += [f"l{n}: &l{n} [" + ", ".join([f"*l{n - 1}"] * width) + "]" for n in range(1, levels)]
    return "\n".join(lines)


def test_aliases_count_with_all_values_they_expand_to(tmp_path: Path) -> None:
    file = tmp_path / "book.yaml"
    file.write_text(nested_aliases(8, 9))
    with pytest.raises(ConfigError, match="contains more than 50,000 values") as caught:
        read_document(file, BOOK)
    assert "aliases" in caught.value.remedy
    with pytest.raises(ConfigError, match="VARIABLE contains more than"):
        read_value(nested_aliases(8, 9), "VARIABLE")


def test_ordinary_aliases_are_read(tmp_path: Path) -> None:
    file = tmp_path / "book.yaml"
    file.write_text("a: &x {title: Emma}\nb: *x\n")
    assert read_document(file, BOOK).data == {"a": {"title": "Emma"}, "b": {"title": "Emma"}}


def test_a_file_of_another_size_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "book.yaml"
    file.write_text("title: " + "x" * (1 << 20))
    with pytest.raises(ConfigError, match="larger than 1,048,576 bytes"):
        read_document(file, BOOK)
