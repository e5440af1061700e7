"""The commands of docs/tutorial.md work as they stand there, and print what the page shows."""

from __future__ import annotations

import pytest

from tools import tutorial


@pytest.mark.slow
def test_the_tutorial_shows_what_its_commands_print() -> None:
    page = tutorial.PAGE.read_text(encoding="utf-8")
    assert tutorial.comparable(tutorial.performed(page)) == tutorial.comparable(page), "run `make tutorial`"
