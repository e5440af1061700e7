"""Tests of names: no two classes share one, so that a search for it finds one place."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import tailrace

ROOT = Path(tailrace.__path__[0])


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in ROOT.rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(file.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
