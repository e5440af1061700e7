"""From where to where a replay reads, and in which source. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.positions.base import Position
from tailrace.replay.plan import Origin
from tailrace.replay.selection import Selection


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """From where to where, in a source."""

    origin: Origin
    start: Position
    end: Position
    selection: Selection
    notes: tuple[str, ...] = ()
