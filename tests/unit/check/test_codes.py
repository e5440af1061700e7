"""Every finding has a code that is described, and every described code belongs to a finding."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import tailrace
from tailrace.check.codes import AREAS, CODES
from tailrace.check.result import CheckResult, State

FOLDER = Path(tailrace.__file__).parent
FINDINGS = {"problem", "warning", "note", "report"}
RESULTS = {"ok", "warn", "fail", "failed", "CheckResult", "report"}
MADE_ELSEWHERE = {"topic", "postgres-version", "mongo-known-bug", "librdkafka-known-bug", "kafka-known-bug"}
"""`topic` has the name of a topic; the others are in the table of known bugs."""


def calls(names: set[str]) -> Iterator[ast.expr]:
    """The first argument of every call of these functions below check/ and in cli/doctor.py."""
    for file in [*(FOLDER / "check").rglob("*.py"), FOLDER / "cli" / "doctor.py"]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in names and node.args:
                yield node.args[0]


def texts(names: set[str]) -> set[str]:
    return {arg.value for arg in calls(names) if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}


def strings() -> set[str]:
    """Every string in these files: names of checks are also in tables and variables."""
    found = set()
    for file in [*(FOLDER / "check").rglob("*.py"), FOLDER / "cli" / "doctor.py"]:
        if file.name != "codes.py":
            tree = ast.walk(ast.parse(file.read_text()))
            found |= {node.value for node in tree if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return found


def test_every_result_has_a_described_code() -> None:
    names = texts(FINDINGS | RESULTS)
    assert len(names) > 60
    assert {CheckResult(name, State.OK, "").code for name in names} - CODES.keys() == set()


def test_every_described_code_is_used() -> None:
    used = {CheckResult(text, State.OK, "").code for text in strings() if len(text) < 40} | MADE_ELSEWHERE
    assert CODES.keys() - used == set()


def test_areas_exist_and_all_texts_are_sentences() -> None:
    for name, code in CODES.items():
        assert code.area in AREAS, name
        assert code.what.endswith("."), name
        assert code.why.endswith("."), name
        assert re.fullmatch("[a-z]+(-[a-z]+)*", name), name


def test_checks_of_topics_share_a_code() -> None:
    assert CheckResult("topic orders.topic placed", State.OK, "").code == "topic"
    assert CheckResult("topics by template", State.OK, "").code == "topics-by-template"
    assert CheckResult("wal_level", State.OK, "").code == "wal-level"
