"""The two pattern languages of `match`: shell patterns (globs), and subjects made of tokens.

    Order*         `*` any characters, `?` one, `[a-z]` one of these, `[!a-z]` any other; case-sensitive
    rwa.stock.*    `*` one token; `>` one or more, at the end; tokens are separated by dots

Events are matched by a regular expression. For the comparison of rules, a pattern is also a sequence of pieces: a set
of characters, once or repeated.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

CharSet = tuple[tuple[int, int], ...]
"""Code points as sorted ranges, both ends included."""
ANY: CharSet = ((1, 0xD7FF), (0xE000, 0x10FFFF))
"""What a text in Postgres can contain: no NUL and no surrogates."""
READABLE: tuple[CharSet, ...] = (((97, 122),), ((65, 90),), ((48, 57),), ((33, 126),))
"""Examples use a letter if possible."""
_TOKEN = "[^.]+"  # noqa: S105 - of a subject


class Piece(NamedTuple):
    chars: CharSet
    repeated: bool = False
    """Whether it matches any number of such characters, or none."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern with its regular expression, which matches whole texts, and its pieces."""

    text: str
    expression: str
    pieces: tuple[Piece, ...]
    is_subject: bool
    prefix: str
    """Every text that the pattern matches starts with this."""

    @property
    def literal(self) -> str | None:
        """The only text that the pattern matches, or None if there are several."""
        return self.prefix if len(self.prefix) == len(self.pieces) else None


def matcher(patterns: Sequence[Pattern]) -> Callable[[str], object]:
    """Returns a test whether any of the patterns matches a whole text."""
    return re.compile("|".join(pattern.expression for pattern in patterns)).match


def glob(text: str) -> Pattern:
    """Parses a shell pattern. The text of a ValueError says what is wrong with it."""
    pieces: list[Piece] = []
    at = 0
    while at < len(text):
        char, at = text[at], at + 1
        if char == "*":
            if not pieces or not pieces[-1].repeated:
                pieces.append(Piece(ANY, repeated=True))
        elif char == "?":
            pieces.append(Piece(ANY))
        elif char == "[" and (end := _closing(text, at)) is not None:
            pieces.append(Piece(_bracket(text[at:end])))
            at = end + 1
        else:
            pieces.append(_only(char))
    return Pattern(text, fnmatch.translate(text), tuple(pieces), False, _fixed_start(pieces))


def subject(text: str) -> Pattern:
    """Parses a pattern of tokens. The text of a ValueError says what is wrong with it."""
    tokens = text.split(".")
    if "" in tokens:
        raise ValueError("has an empty token: write one name, * or > between two dots")
    pieces: list[Piece] = []
    no_dot = _complement(((46, 46),))
    for number, part in enumerate(tokens):
        if part == ">" and number < len(tokens) - 1:
            raise ValueError("has a > before its end: > stands for all further tokens, * for one")
        if part not in {"*", ">"} and re.search("[*>]", part):
            raise ValueError(f"has the token {part!r}: * and > stand for whole tokens")
        if number:
            pieces.append(_only("."))
        if part in {"*", ">"}:
            pieces += [Piece(no_dot), Piece(no_dot if part == "*" else ANY, repeated=True)]
        else:
            pieces += map(_only, part)
    wild = {"*": _TOKEN, ">": rf"{_TOKEN}(?:\.{_TOKEN})*"}
    expression = r"\.".join(wild.get(part) or re.escape(part) for part in tokens)
    return Pattern(text, rf"(?s:{expression})\Z", tuple(pieces), True, _fixed_start(pieces))


def literal(text: str) -> Pattern:
    """A pattern that matches only this text."""
    return Pattern(text, rf"{re.escape(text)}\Z", tuple(map(_only, text)), False, text)


def common_text(sequences: Sequence[Sequence[Piece]]) -> str | None:
    """Returns a shortest text that fits all sequences of pieces, or None."""
    start = tuple(0 for _ in sequences)
    seen = {start}
    todo = deque([(start, "")])
    while todo:
        state, text = todo.popleft()
        if all(all(piece.repeated for piece in pieces[at:]) for pieces, at in zip(sequences, state, strict=True)):
            return text
        steps = [list(_steps(pieces, at)) for pieces, at in zip(sequences, state, strict=True)]
        for chosen in itertools.product(*steps):
            after = tuple(at for _, at in chosen)
            if after not in seen and (chars := _common(*(chars for chars, _ in chosen))):
                seen.add(after)
                todo.append((after, text + _readable(chars)))
    return None


def covers(wide: Pattern, narrow: Pattern) -> bool:
    """Whether `wide` certainly matches every text that `narrow` matches; False if this method cannot decide.

    Each piece of the narrow pattern must be within a piece of the wide one, in order.
    """
    if narrow.literal is not None:
        return bool(matcher([wide])(narrow.literal))
    if wide.is_subject != narrow.is_subject:
        return False

    @cache
    def fits(i: int, j: int) -> bool:
        if j == len(wide.pieces):
            return i == len(narrow.pieces)
        outer = wide.pieces[j]
        if outer.repeated and fits(i, j + 1):
            return True
        if i == len(narrow.pieces) or (narrow.pieces[i].repeated and not outer.repeated):
            return False
        inner = narrow.pieces[i]
        return _common(inner.chars, outer.chars) == inner.chars and fits(i + 1, j if outer.repeated else j + 1)

    return fits(0, 0)


def _steps(pieces: Sequence[Piece], at: int) -> Iterator[tuple[CharSet, int]]:
    """The characters that may come next, each with the position after them."""
    for number in range(at, len(pieces)):
        if not pieces[number].repeated:
            yield pieces[number].chars, number + 1
            return
        yield pieces[number].chars, number


def _closing(text: str, at: int) -> int | None:
    """Returns where the bracket that was opened before `at` ends; without an end it is a literal character."""
    start = at + (text[at : at + 1] == "!")
    end = text.find("]", start + 1)
    return end if end >= 0 else None


def _bracket(inside: str) -> CharSet:
    negated = inside.startswith("!")
    chars = inside[negated:]
    ranges: list[tuple[int, int]] = []
    at = 0
    while at < len(chars):
        is_range = chars[at + 1 : at + 2] == "-" and at + 2 < len(chars)
        last = chars[at + 2] if is_range else chars[at]
        if last < chars[at]:
            raise ValueError(f"has the empty range {chars[at]}-{last}: write the lower character first")
        ranges.append((ord(chars[at]), ord(last)))
        at += 3 if is_range else 1
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return _complement(tuple(merged)) if negated else tuple(merged)


def _complement(ranges: CharSet) -> CharSet:
    borders = [0, *(border for low, high in ranges for border in (low - 1, high + 1)), 0x10FFFF]
    pairs = zip(borders[::2], borders[1::2], strict=True)
    return _common(tuple((low, high) for low, high in pairs if low <= high), ANY)


def _common(*sets: CharSet) -> CharSet:
    first, *others = sets
    for other in others:
        pairs = ((max(a, c), min(b, d)) for a, b in first for c, d in other)
        first = tuple((low, high) for low, high in pairs if low <= high)
    return first


def _only(char: str) -> Piece:
    return Piece(((ord(char), ord(char)),))


def _fixed_start(pieces: Sequence[Piece]) -> str:
    fixed = itertools.takewhile(lambda piece: not piece.repeated and len(set(sum(piece.chars, ()))) == 1, pieces)
    return "".join(chr(piece.chars[0][0]) for piece in fixed)


def _readable(chars: CharSet) -> str:
    return chr(next((found for wanted in READABLE if (found := _common(chars, wanted))), chars)[0][0])
