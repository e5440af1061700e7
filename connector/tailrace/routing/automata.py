"""All texts at once: which texts do some patterns accept, and which other patterns do those texts meet?

Texts are explored breadth first through the product of small automata, characters that no pattern tells apart being
tried once. So the first text found is a shortest one, and an answer "none" is exact. The work is bounded by an
`Effort`; patterns can be written whose product is astronomically large.

A text may also be a pair, an aggregate and a type, JOINed by a character that no text in Postgres can hold. That is
for the subject `<aggregate>.<type>`, which depends on both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Protocol

from tailrace.routing.patterns import HIGHEST, CharSet, Pattern

JOIN = "\0"
STEPS = 3_000_000
"""About two seconds. Real folders take a few thousand."""

_UNREAL = ((0, 0), (0xD800, 0xDFFF))
"""Postgres's text holds neither NUL nor surrogates."""
_READABLE = ((97, 122), (65, 90), (48, 57), (45, 46), (33, 126), (32, HIGHEST))
"""Of the characters that no pattern tells apart, an example takes a letter if there is one."""


class TooHard(Exception):
    """The patterns are so many, or so entangled, that they cannot be compared with reasonable effort."""


class Effort:
    """What may still be spent."""

    def __init__(self, steps: int = STEPS) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooHard


class Machine(Protocol):
    """Reads a text. A state of None is a dead end: whatever follows, the text is not accepted."""

    charsets: frozenset[CharSet]
    start: Hashable

    def step(self, state: Hashable, char: str) -> Hashable | None: ...

    def accepts(self, state: Hashable) -> bool: ...


class AnyOf:
    """Accepts what at least one of the patterns matches."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._edges: list[tuple[tuple[CharSet, int], ...]] = []
        starts, accepting = [], []
        for pattern in patterns:
            base = len(self._edges)
            starts.append(base)
            accepting.append(base + pattern.accepting)
            self._edges += [tuple((chars, base + to) for chars, to in ways) for ways in pattern.edges]
        self._accepting = frozenset(accepting)
        self._known: dict[tuple[Hashable, str], frozenset[int] | None] = {}
        self.charsets = frozenset(chars for ways in self._edges for chars, _ in ways)
        self.start: Hashable = frozenset(starts)

    def step(self, state: Hashable, char: str) -> Hashable | None:
        if (state, char) not in self._known:
            self._known[state, char] = self._next(state, ord(char)) if char != JOIN else None
        return self._known[state, char]

    def accepts(self, state: Hashable) -> bool:
        return isinstance(state, frozenset) and not self._accepting.isdisjoint(state)

    def _next(self, state: Hashable, code: int) -> frozenset[int] | None:
        states = state if isinstance(state, frozenset) else frozenset()
        return frozenset(to for at in states for chars, to in self._edges[at] if _holds(chars, code)) or None


class Anything:
    """Accepts every text, or every text but the empty one."""

    charsets: frozenset[CharSet] = frozenset()

    def __init__(self, *, empty: bool) -> None:
        self.start: Hashable = empty

    def step(self, state: Hashable, char: str) -> Hashable | None:
        return True if char != JOIN else None

    def accepts(self, state: Hashable) -> bool:
        return bool(state)


class Pair:
    """Accepts `<aggregate>JOIN<type>`; a type is never empty."""

    charsets: frozenset[CharSet] = frozenset()
    start: Hashable = "aggregate"

    def step(self, state: Hashable, char: str) -> Hashable | None:
        if char == JOIN:
            return "no type yet" if state == "aggregate" else None
        return "aggregate" if state == "aggregate" else "type"

    def accepts(self, state: Hashable) -> bool:
        return state == "type"


class OfAggregate:
    """Accepts a pair whose aggregate another machine accepts."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.charsets = machine.charsets
        self.start: Hashable = (machine.start,)

    def step(self, state: Hashable, char: str) -> Hashable | None:
        if not isinstance(state, tuple):
            return state
        if char == JOIN:
            return "accepted" if self._machine.accepts(state[0]) else None
        after = self._machine.step(state[0], char)
        return None if after is None else (after,)

    def accepts(self, state: Hashable) -> bool:
        return state == "accepted"


class OfType:
    """Accepts a pair whose type another machine accepts."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.charsets = machine.charsets
        self.start: Hashable = "waiting"

    def step(self, state: Hashable, char: str) -> Hashable | None:
        if not isinstance(state, tuple):
            return (self._machine.start,) if char == JOIN else state
        after = self._machine.step(state[0], char)
        return None if after is None else (after,)

    def accepts(self, state: Hashable) -> bool:
        return isinstance(state, tuple) and self._machine.accepts(state[0])


class OfSubject:
    """Accepts a pair whose subject another machine accepts: a dot between the two, none if there is no aggregate."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.charsets = machine.charsets
        self.start: Hashable = (machine.start, False)

    def step(self, state: Hashable, char: str) -> Hashable | None:
        if not isinstance(state, tuple):
            return None
        inner, begun = state
        if char == JOIN and not begun:
            return inner, True
        after = self._machine.step(inner, "." if char == JOIN else char)
        return None if after is None else (after, True)

    def accepts(self, state: Hashable) -> bool:
        return isinstance(state, tuple) and self._machine.accepts(state[0])


def explore(must: Sequence[Machine], met: Sequence[Machine], effort: Effort) -> Iterator[tuple[str, frozenset[int]]]:
    """Texts that all of `must` accept, shortest first, each with the indices of those in `met` that accept it, too.

    Not every text, but one for every state that the machines can be in together.
    """
    machines = [*must, *met]
    chars = alphabet(machines)
    if any(isinstance(machine, Pair) for machine in must):
        chars.append(JOIN)
    start = tuple(machine.start for machine in machines)
    seen: set[tuple[Hashable | None, ...]] = {start}
    todo: deque[tuple[tuple[Hashable | None, ...], str]] = deque([(start, "")])
    while todo:
        states, text = todo.popleft()
        effort.spend(len(machines))
        if all(machine.accepts(state) for machine, state in zip(must, states, strict=False)):
            others = enumerate(zip(met, states[len(must) :], strict=True))
            yield text, frozenset(n for n, (machine, state) in others if state is not None and machine.accepts(state))
        for char in chars:
            effort.spend(len(machines))
            after = _together(machines, states, char, len(must))
            if after is not None and after not in seen:
                seen.add(after)
                todo.append((after, text + char))


def alphabet(machines: Sequence[Machine]) -> list[str]:
    """One character for each set of characters that no machine tells apart."""
    charsets = {chars for machine in machines for chars in machine.charsets}
    # Most sets are single letters of a name. Each is a class of its own; only the others need to be compared.
    single = {chars[0][0] for chars in charsets if len(chars) == 1 and chars[0][0] == chars[0][1]}
    wide = sorted(chars for chars in charsets if len(chars) > 1 or chars[0][0] != chars[0][1])
    ranges = [part for chars in [*wide, _UNREAL, tuple((code, code) for code in single)] for part in chars]
    borders = sorted({1, *(low for low, _ in ranges), *(high + 1 for _, high in ranges)} - {0, HIGHEST + 1})
    chosen: dict[tuple[bool, ...], tuple[int, int]] = {}
    for low, after in zip(borders, [*borders[1:], HIGHEST + 1], strict=True):
        if low not in single and not _holds(_UNREAL, low):
            kind = tuple([_holds(chars, low) for chars in wide])
            chosen[kind] = min(chosen.get(kind, (99, 0)), _readable(low, after - 1))
    letters = (_readable(code, code) for code in single if not _holds(_UNREAL, code))
    return [chr(code) for _, code in sorted([*chosen.values(), *letters])]


def _together(
    machines: Sequence[Machine], states: tuple[Hashable | None, ...], char: str, needed: int
) -> tuple[Hashable | None, ...] | None:
    after: list[Hashable | None] = []
    for machine, state in zip(machines, states, strict=True):
        following = None if state is None else machine.step(state, char)
        if following is None and len(after) < needed:
            return None
        after.append(following)
    return tuple(after)


def _readable(low: int, high: int) -> tuple[int, int]:
    """The best character of a range, and how good it is: the lower the better."""
    for rank, (first, last) in enumerate(_READABLE):
        if low <= last and high >= first:
            return rank, max(low, first)
    return len(_READABLE), low


def _holds(chars: CharSet, code: int) -> bool:
    return any(low <= code <= high for low, high in chars)
