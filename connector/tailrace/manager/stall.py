"""Decides whether a running pipeline is stalled: one of its threads is blocked, or nothing moves but the log. Pure.

A pipeline that waits for a known reason is not stalled. While Kafka is slow, the publisher's thread gives signs of life
and ends its wait itself; the pipeline is then RETRYING. A database that works for the reader (`busy`) is no stall
either: a restart would make it begin again. The same applies to the first read of existing rows. While the log moves
without events, positions are stored only every IDLE_STORE_SECONDS: that time is added to the bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.errors import PipelineStalled
from tailrace.pipeline.loop import IDLE_STORE_SECONDS
from tailrace.pipeline.recorder import RELEASING
from tailrace.positions.base import Position, is_streaming
from tailrace.worker.metrics import Liveness

RELEASE_FACTOR = 10
"""Releasing parked keys reads a topic of any length before it gives the next sign of life."""
FIRST_READ_SECONDS = 7200.0
"""While existing rows are read, the database may sort a large table for up to an hour before the first row comes."""
REMEDY = "Nothing is lost: after a restart it continues at its stored position. A worker restarts it by itself."
DOING = {
    "reading": "It waits for the database.",
    "processing": "It processes events: a schema, a routing rule or a business rule may take that long.",
    "publishing": "It waits for the publisher.",
    "releasing": "It releases parked keys.",
}


@dataclass(frozen=True, slots=True)
class Sighting:
    """What is known at one moment. `behind` and `busy` are of the last probe; None if there is no recent one."""

    alive: Liveness
    position: Position | None
    behind: bool | None
    busy: bool = False


class StallDetector:
    """Adds up for how long nothing has moved.

    Time counts from one look to the next, at most `max_step` seconds each: the process may have been suspended.
    """

    def __init__(self, bound: float, *, max_step: float) -> None:
        self._bound = bound
        self._max_step = max_step
        self._looked_at: float | None = None
        self._reader_at = self._publisher_at = 0.0
        self._position: Position | None = None
        self._reader = self._publisher = self._unmoved = 0.0

    def look(self, now: float, seen: Sighting) -> PipelineStalled | None:
        """Takes what is known now; returns the error if the pipeline is stalled."""
        passed = min(now - self._looked_at, self._max_step) if self._looked_at is not None else 0.0
        self._looked_at = now
        alive = seen.alive
        if not alive.running:
            self._reader = self._publisher = self._unmoved = 0.0
            return None
        self._reader = 0.0 if alive.reader_at != self._reader_at else self._reader + passed
        waits = alive.publisher_busy and alive.publisher_at == self._publisher_at
        self._publisher = self._publisher + passed if waits else 0.0
        streaming = is_streaming(seen.position)
        if seen.position is not self._position or seen.behind is False or seen.busy or not streaming:
            self._unmoved = 0.0
        elif alive.publisher_busy:
            pass  # it waits for Kafka within its own time limit
        elif seen.behind:
            self._unmoved += passed
        self._reader_at, self._publisher_at, self._position = alive.reader_at, alive.publisher_at, seen.position
        patience = self._bound * (RELEASE_FACTOR if alive.phase == RELEASING else 1)
        return self._stalled(alive.phase, patience if streaming else max(patience, FIRST_READ_SECONDS))

    def _stalled(self, phase: str, patience: float) -> PipelineStalled | None:
        if self._reader > patience:
            return PipelineStalled(
                f"the reading thread has not moved for {self._reader:.0f} s",
                why=DOING.get(phase, ""),
                remedy=REMEDY,
            )
        if self._publisher > self._bound:
            return PipelineStalled(
                f"the publishing thread has not moved for {self._publisher:.0f} s",
                why="It is blocked, although Kafka's client limits every wait.",
                remedy=REMEDY,
            )
        if self._unmoved > self._bound + IDLE_STORE_SECONDS:
            return PipelineStalled(
                f"the pipeline has stored no position for {self._unmoved:.0f} s, although the log has more",
                why="Nothing arrives from the database, whose connection looks healthy.",
                remedy=REMEDY,
            )
        return None
