"""The two pattern languages of `match`: shell patterns, and subjects made of tokens.

    Order*         `*` any characters, `?` one, `[a-z]` one of these, `[!a-z]` one but these; case-sensitive
    rwa.stock.*    `*` one token; `>` one or more, at the end; tokens are what stands between the dots

One parse gives both the regular expression that events are matched with and the automaton by which rules are
compared. A property test holds the two together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

CharSet = tuple[tuple[int, int], ...]
"""Code points as sorted ranges, both ends included."""
Edge = tuple[CharSet, int]

HIGHEST = 0x10FFFF
ANY: CharSet = ((0, HIGHEST),)
DOT: CharSet = ((46, 46),)
NO_DOT: CharSet = ((0, 45), (47, HIGHEST))
_TOKEN = "[^.]+"  # noqa: S105 - of a subject


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern as an expression and as an automaton: `edges[state]` are its ways on, the last state accepts.

    `literal` is the only text that it matches, if there is only one; every text it matches begins with `prefix`.
    """

    text: str
    expression: str
    edges: tuple[tuple[Edge, ...], ...]
    accepting: int
    prefix: str
    literal: str | None


def matcher(patterns: Sequence[Pattern]) -> Callable[[str], object]:
    """Whether any of the patterns matches the whole text."""
    return re.compile("|".join(rf"(?s:{pattern.expression})\Z" for pattern in patterns)).match


def glob(text: str) -> Pattern:
    """A shell pattern. ValueError says what is wrong with it."""
    pieces: list[CharSet | None] = []
    at = 0
    while at < len(text):
        char, at = text[at], at + 1
        if char == "*":
            if not pieces or pieces[-1] is not None:
                pieces.append(None)
        elif char == "?":
            pieces.append(ANY)
        elif char == "[" and (end := _closing(text, at)) is not None:
            pieces.append(_bracket(text[at:end]))
            at = end + 1
        else:
            pieces.append(_only(char))
    edges: list[list[Edge]] = [[]]
    for piece in pieces:
        if piece is None:
            edges[-1].append((ANY, len(edges) - 1))
        else:
            edges[-1].append((piece, len(edges)))
            edges.append([])
    prefix = _fixed_start(pieces)
    literal = prefix if len(prefix) == len(pieces) else None
    return Pattern(text, _expression(pieces), _frozen(edges), len(edges) - 1, prefix, literal)


def subject(text: str) -> Pattern:
    """A pattern of tokens. ValueError says what is wrong with it."""
    tokens = text.split(".")
    if "" in tokens:
        raise ValueError("has an empty token: write one name, * or > between two dots")
    edges: list[list[Edge]] = [[]]
    for number, part in enumerate(tokens):
        if part == ">" and number < len(tokens) - 1:
            raise ValueError("has a > that is not its end: > stands for all further tokens, * for one")
        if part not in {"*", ">"} and re.search("[*>]", part):
            raise ValueError(f"has the token {part!r}: * and > stand for whole tokens")
        if number:
            edges[-1].append((DOT, len(edges)))
            edges.append([])
        for char in [NO_DOT] if part in {"*", ">"} else map(_only, part):
            edges[-1].append((char, len(edges)))
            edges.append([])
        if part in {"*", ">"}:
            edges[-1].append((NO_DOT, len(edges) - 1))
        if part == ">":
            # A dot must be followed by a token: back to where its first character is read.
            edges[-1].append((DOT, len(edges)))
            edges.append([(NO_DOT, len(edges) - 1)])
    accepting = len(edges) - (2 if tokens[-1] == ">" else 1)
    wild = {"*": _TOKEN, ">": rf"{_TOKEN}(?:\.{_TOKEN})*"}
    expression = r"\.".join(wild.get(part) or re.escape(part) for part in tokens)
    prefix = re.split(r"(?:^|(?<=\.))[*>]", text, maxsplit=1)[0]
    literal = None if {"*", ">"} & set(tokens) else text
    return Pattern(text, expression, _frozen(edges), accepting, prefix, literal)


def _closing(text: str, at: int) -> int | None:
    """Where the bracket that was opened before `at` ends; a bracket that is never closed stands for itself."""
    start = at + (text[at : at + 1] == "!")
    end = text.find("]", start + 1)
    return end if end >= 0 else None


def _bracket(inside: str) -> CharSet:
    negated = inside.startswith("!")
    chars = inside[negated:]
    ranges: list[tuple[int, int]] = []
    at = 0
    while at < len(chars):
        last = chars[at + 2] if chars[at + 1 : at + 2] == "-" and at + 2 < len(chars) else chars[at]
        if last < chars[at]:
            raise ValueError(f"has the empty range {chars[at]}-{last}: write the lower character first")
        ranges.append((ord(chars[at]), ord(last)))
        at += 3 if chars[at + 1 : at + 2] == "-" and at + 2 < len(chars) else 1
    return _complement(_sorted(ranges)) if negated else _sorted(ranges)


def _sorted(ranges: list[tuple[int, int]]) -> CharSet:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _complement(ranges: CharSet) -> CharSet:
    borders = [0, *(border for low, high in ranges for border in (low - 1, high + 1)), HIGHEST]
    pairs = zip(borders[::2], borders[1::2], strict=True)
    return tuple((low, high) for low, high in pairs if low <= high)


def _only(char: str) -> CharSet:
    return ((ord(char), ord(char)),)


def _is_only(piece: CharSet | None) -> bool:
    return piece is not None and len(piece) == 1 and piece[0][0] == piece[0][1]


def _fixed_start(pieces: list[CharSet | None]) -> str:
    start = ""
    for piece in pieces:
        if piece is None or not _is_only(piece):
            break
        start += chr(piece[0][0])
    return start


def _expression(pieces: list[CharSet | None]) -> str:
    """`*` becomes an atomic group, except for the last: so even `*a*a*a*b` takes no exponential time."""
    groups: list[str] = [""]
    for piece in pieces:
        if piece is None:
            groups.append("")
        elif _is_only(piece):
            groups[-1] += re.escape(chr(piece[0][0]))
        else:
            groups[-1] += "[" + "".join(rf"\U{low:08x}-\U{high:08x}" for low, high in piece) + "]"
    first, *rest = groups
    return first + "".join(f"(?>.*?{group})" for group in rest[:-1]) + "".join(f".*{group}" for group in rest[-1:])


def _frozen(edges: list[list[Edge]]) -> tuple[tuple[Edge, ...], ...]:
    return tuple(map(tuple, edges))
