"""The first steps of a whole chunk, taken at once: read and routed here, checked with the help of another process.

The loop then goes through its rows as ever, and asks for each step in its turn. So an event that waits behind a parked
key is still never published, and one that cannot be published is still set aside in its place; what was found out about
either too early is simply not asked for.
"""

from __future__ import annotations

from typing import TypeVar

from tailrace.errors import LayoutMismatch, Rejected
from tailrace.event import OutboxEvent, Route, Row
from tailrace.line import Helped, Line
from tailrace.schemas.checking import Checked, Verdict
from tailrace.schemas.helper import LARGE, MANY

T = TypeVar("T")


class Foreseen:
    """What became of each row, to be asked for in their order: first `read`, then perhaps `route`, then `check`."""

    def __init__(self, line: Line, helped: Helped, rows: list[Row]) -> None:
        self._outcomes: list[tuple[OutboxEvent | Rejected, Route | Rejected | None, Verdict | None]] = []
        self._at = -1
        begun = [_begun(line, row) for row in rows]
        pairs = [(event, to.topic) for event, to in begun if isinstance(event, OutboxEvent) and isinstance(to, Route)]
        verdicts = iter(helped.check_all(pairs))
        self._outcomes = [(event, to, next(verdicts) if isinstance(to, Route) else None) for event, to in begun]

    def read(self, _: Row) -> OutboxEvent:
        self._at += 1
        return _told(self._outcomes[self._at][0])

    def route(self, _: OutboxEvent) -> Route:
        return _told(self._outcomes[self._at][1])

    def check(self, _: OutboxEvent, __: str) -> Checked:
        return _told(self._outcomes[self._at][2])


def foresee(line: Line, rows: list[Row]) -> Foreseen | None:
    """The first steps of these rows, if they are many, large, and there is help."""
    if line.helped is None or len(rows) < MANY:
        return None
    try:
        sample = line.layout.read(rows[len(rows) // 2])
        # What the source has parsed is checked in no time.
        if sample.parsed is not None or len(sample.payload or b"") < LARGE or not line.helped.ready():
            return None
        return Foreseen(line, line.helped, rows)
    except (Rejected, LayoutMismatch):
        return None  # the loop will meet it in its turn


def _begun(line: Line, row: Row) -> tuple[OutboxEvent | Rejected, Route | Rejected | None]:
    try:
        event = line.layout.read(row)
    except Rejected as rejected:
        return rejected, None
    try:
        return event, line.route(event)
    except Rejected as rejected:
        return event, rejected


def _told(outcome: T | Rejected | None) -> T:
    if isinstance(outcome, Rejected):
        raise outcome
    assert outcome is not None  # noqa: S101 - a step is asked for only behind the one before it
    return outcome
