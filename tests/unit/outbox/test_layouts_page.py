"""The tables of docs/layouts.md match the layouts."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from tailrace.outbox.specs import LAYOUTS

PAGE = (Path(__file__).parents[3] / "docs" / "layouts.md").read_text()
NAMES = list(LAYOUTS)


def cells(part: str) -> dict[str, list[str]]:
    line = re.search(rf"^\| {part} \|(.*)\|$", PAGE, re.MULTILINE)
    assert line, part
    return {name: re.findall(r"`([^`]+)`", cell) for name, cell in zip(NAMES, line[1].split("|"), strict=True)}


def test_the_columns_of_every_part() -> None:
    header = re.search(r"^\| part \|(.*)\|$", PAGE, re.MULTILINE)
    assert header
    assert re.findall(r"`(\w+)`", header[1]) == NAMES
    for part in [field.name for field in fields(LAYOUTS["debezium"].columns)]:
        for name, named in cells(part).items():
            column = getattr(LAYOUTS[name].columns, part)
            assert named[:1] == ([column] if column else []), (part, name)


def test_the_columns_that_are_never_sent() -> None:
    for name, named in cells("never sent").items():
        assert set(named) == LAYOUTS[name].ignored
        assert len(named) == len(set(named))
