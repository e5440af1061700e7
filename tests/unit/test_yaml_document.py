"""Reading YAML for whoever wants it: the words of the errors are the caller's (the rest: config/test_document.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.yaml_document import Wanted, read_document

BOOK = Wanted("a book", "title: Emma", "Buy one.", "Write one.", "Begin with its title.")


@pytest.mark.parametrize(
    ("text", "told", "remedy"),
    [
        (None, "does not exist", "Buy one."),
        ("", "is empty", "Write one."),
        ("- a", "is not a book", "Begin with its title."),
        ("a: 1\n---\nb: 2", "not valid YAML", "Keep one book per file."),
        ("[" * 10_000, "nested too deeply", "flatten it"),
    ],
)
def test_errors_speak_of_what_is_wanted(tmp_path: Path, text: str | None, told: str, remedy: str) -> None:
    file = tmp_path / "book.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=told) as caught:
        read_document(file, BOOK)
    assert remedy in caught.value.remedy
