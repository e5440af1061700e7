"""Every text that suggests `--adopt`, which continues without missed rows, also names `tailrace recover`."""

from __future__ import annotations

import ast
from pathlib import Path

import tailrace

PACKAGE = Path(tailrace.__file__).parent
NOT_A_SUGGESTION = {
    ("cli/run.py", "--adopt"),  # the option's name
    ("sources/postgres/session.py", "drop the slot and start without --adopt to publish the table from its beginning."),
}


def texts(file: Path) -> list[str]:
    """The strings of a module, docstrings left out."""
    tree = ast.parse(file.read_text())
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (docs | inside):
            found.append(node.value)
    return found


def test_every_text_that_suggests_adopt_also_names_recover() -> None:
    suggesting = [
        (str(file.relative_to(PACKAGE)), text)
        for file in PACKAGE.rglob("*.py")
        for text in texts(file)
        if "--adopt" in text
    ]
    assert len(suggesting) > 20, "the search for texts is broken"
    silent = [
        (file, text)
        for file, text in suggesting
        if "recover" not in text and not any(file == known and text.endswith(end) for known, end in NOT_A_SUGGESTION)
    ]
    assert silent == []
