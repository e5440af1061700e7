"""Examines the text of a SQL predicate before a server sees it. Pure.

The predicate becomes `WHERE (predicate)` of several statements, next to other conditions. So it must be one complete
expression that cannot end these parentheses or the statement, and whose value depends on the row alone: a first read
that is resumed after a crash evaluates it again. Whether columns exist and functions are volatile is asked from the
server (`start_where.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST = 2000
"""Most characters; the text is part of every stored position."""

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<comment>--|/\*)
    |(?P<escaped>[eE]'(?:[^'\\]|''|\\.)*')
    |(?P<text>(?:[bBnNxX]|[uU]&)?'(?:[^']|'')*')
    |(?P<quoted>(?:[uU]&)?"(?:[^"]|"")+")
    |(?P<word>[^\W\d][\w$]*)
    |(?P<number>\.?\d[\w.]*)
    |(?P<operator>[-+*/<>=~!@\#%^&|`?]+)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_QUERIES = frozenset({"select", "with", "values", "table"})
_CHANGING = frozenset(
    {
        "current_date", "current_time", "current_timestamp", "localtime", "localtimestamp",
        "current_user", "current_role", "session_user", "user", "current_schema", "current_catalog",
    }
)  # fmt: skip
_SYSTEM = frozenset({"xmin", "xmax", "cmin", "cmax", "ctid", "tableoid"})
_MOMENTS = frozenset({"now", "today", "tomorrow", "yesterday"})


@dataclass(frozen=True, slots=True)
class Predicate:
    """The names in a predicate: names before a parenthesis, operators, and all other names."""

    functions: frozenset[str]
    operators: frozenset[str]
    names: frozenset[str]


def parse_predicate(text: str) -> Predicate:
    """Returns what the predicate refers to; raises ValueError with the reason if it cannot be accepted."""
    if not text.strip():
        raise ValueError("it is empty")
    if len(text) > LONGEST:
        raise ValueError(f"it has more than {LONGEST} characters")
    if "\0" in text:
        raise ValueError("it contains a NUL character")
    functions, operators, names = set[str](), set[str](), set[str]()
    depth, last = 0, ""
    for found in _TOKEN.finditer(text):
        kind, part = found.lastgroup or "", found[0]
        if kind == "space":
            continue
        if kind in ("word", "quoted"):
            last = _name(kind, part)
            names.add(last)
            continue
        _require_plain(kind, part)
        if kind == "operator":
            operators.add(part)
        if part == "(" and last:
            functions.add(last)
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(part, 0)
        if depth < 0:
            raise ValueError("a closing parenthesis has no opening one")
        last = ""
    if depth:
        raise ValueError("a parenthesis is not closed")
    return Predicate(frozenset(functions), frozenset(operators), frozenset(names))


def _name(kind: str, part: str) -> str:
    if kind == "quoted":
        return part[part.index('"') + 1 : -1].replace('""', '"')
    _require_row_only(part.lower())
    return part.lower()


def _require_row_only(word: str) -> None:
    if word in _QUERIES:
        raise ValueError(f"it contains a query ({word.upper()}): the rows of other tables may change at any time")
    if word in _CHANGING:
        raise ValueError(f"the value of {word} is not the same in a later session")
    if word in _SYSTEM:
        raise ValueError(f"{word} is a system column, which changes with every UPDATE")


def _require_plain(kind: str, part: str) -> None:
    if kind == "comment":
        raise ValueError("it contains a comment")
    if kind == "operator" and ("--" in part or "/*" in part):
        raise ValueError("it contains a comment")
    if kind == "text" and "\\" in part:
        raise ValueError(r"a text with a backslash is read in two ways; write it as E'…\\…'")
    if kind in ("text", "escaped") and part.partition("'")[2][:-1].strip().lower() in _MOMENTS:
        raise ValueError(f"the value of {part} is not the same in a later session; write a date")
    if kind == "other" and part not in "()[],.:":
        what = {"'": "a text is not closed", '"': "a quoted name is not closed", ";": "it contains a semicolon"}
        raise ValueError(what.get(part, f"it contains {part!r}"))
