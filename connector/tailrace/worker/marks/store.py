"""The values that delivery marks are made of, and the interface of a database that stores them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tailrace.dlq.undelivered import Undelivered
from tailrace.positions.base import Position


@dataclass(slots=True)
class Changes:
    """The outcomes of the events of some committed batches."""

    published: list[str] = field(default_factory=list)
    """Ids of published events; with a watermark, only of those that had waited."""
    undelivered: list[Undelivered] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    """Ids of published events that had waited behind a parked key."""
    redriven: list[str] = field(default_factory=list)
    """Positions of dead letters whose events were published later."""

    @property
    def size(self) -> int:
        return len(self.published) + len(self.undelivered) + len(self.released) + len(self.redriven)

    def extend(self, other: Changes) -> None:
        self.published += other.published
        self.undelivered += other.undelivered
        self.released += other.released
        self.redriven += other.redriven


class Probe(NamedTuple):
    """A sample of what is committed now: everything that `seen` describes lies before the position `end` of the log."""

    seen: str
    end: tuple[int, ...]
    is_complete: bool = True
    """Whether it shows everything that was in the log when the marks fell behind."""


class MarkStore(Protocol):
    """The database of the outbox, through its own connection. Any error closes it; `open` connects again."""

    has_watermark: bool
    """Whether a probe is stored with the marks; otherwise probes are taken only while marks are behind."""

    def open(self, began: Position) -> bool:
        """Connects, and creates what is missing. Returns whether all events before `began` are marked."""

    def end_of(self, position: Position) -> tuple[int, ...]:
        """Returns the position in the form of `Probe.end`."""

    def probe(self) -> Probe: ...
    def fell_behind(self) -> None:
        """Ids of published events were dropped: `catch_up` finds them by a probe that is complete from here on."""

    def store_baseline(self, position: Position) -> None:
        """Connects, and stores that nothing before `position` is to be marked: the log before it was skipped."""

    def retry_unseen(self) -> None:
        """Marks events whose rows were not found before, if they are there now."""

    def write(self, changes: Changes, position: Position | None, passed: Probe | None) -> None:
        """Marks `changes`. With a position, stores that everything up to it is marked.

        `passed` is a probe that lies before that position.
        """

    def catch_up(self, passed: Probe, going: Callable[[], bool], pace: Callable[[float], None]) -> bool:
        """Marks what lies before a probe and is not marked; all undelivered events before it are written.

        Returns False if `going` ended it. `pace` is called after each step with the seconds it took.
        """

    def save_undelivered(self, undelivered: Sequence[Undelivered]) -> None: ...
    def keep_waiting(self, event_ids: Sequence[str]) -> None:
        """Removes all events that wait behind a parked key except these: they were published."""

    def remove_redriven(self, positions: Sequence[str]) -> None: ...
    def has_undelivered(self) -> bool: ...
    def close(self) -> None: ...
