"""Resets a projection's offsets; refuses a reset that would apply events twice.

Markers make it safe to read events again. But old markers are pruned, and events from before that time (the horizon)
would be applied a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from aiokafka.errors import KafkaError

from tailrace.errors import BehindHorizon, ConfigError, KafkaUnavailable, ProjectionError
from tailrace.projections.core.store import Partition
from tailrace.projections.faust.app import ProjectionApp
from tailrace.projections.faust.topics import ProjectionTopics
from tailrace.projections.projection import Projection

FORMS = "earliest, latest, or a time such as 2026-11-01T14:05Z"


@dataclass(frozen=True, slots=True)
class Move:
    """The stored next offset of a partition, and the new one."""

    partition: Partition
    stored: int | None
    target: int


def parse_time(text: str) -> int | None:
    """Returns the time that `text` names in Unix milliseconds; None for `earliest` and `latest`."""
    if text in ("earliest", "latest"):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a point in a topic", remedy=f"Give {FORMS}.") from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


async def plan(app: ProjectionApp, projection: Projection, to: str) -> list[Move]:
    """Returns the offsets that a reset would set; raises if it is not allowed. The store must be open."""
    at_ms = parse_time(to)
    horizon = await projection.store.horizon()
    stored = await projection.store.positions()
    try:
        async with ProjectionTopics(app, projection.topics) as topics:
            if await topics.members():
                raise ProjectionError(
                    f"{projection.name} has running workers",
                    why="They would continue from where they are, and then stop because their position was changed.",
                    remedy="Stop all of them, then reset.",
                )
            targets = await topics.offsets(to if at_ms is None else at_ms)
            safe = await topics.offsets(horizon) if horizon else {}
    except KafkaError as error:
        raise KafkaUnavailable(
            f"Kafka does not answer: {type(error).__name__}", remedy="Nothing was changed. Try again."
        ) from None
    moves = [Move(partition, stored.get(partition), target) for partition, target in sorted(targets.items())]
    _require_markers(projection.name, moves, safe, horizon)
    return moves


def _require_markers(name: str, moves: list[Move], safe: Mapping[Partition, int], horizon: int) -> None:
    behind = [
        move
        for move in moves
        if move.target < safe.get(move.partition, 0) and move.stored is not None and move.target < move.stored
    ]
    if behind:
        shown = ", ".join(
            f"{move.partition} to {move.target} (not before {safe[move.partition]})" for move in behind[:5]
        )
        since = datetime.fromtimestamp(horizon / 1000, UTC).isoformat(timespec="seconds")
        raise BehindHorizon(
            f"{name} cannot be reset to where it has no markers: {shown}",
            why=f"Markers of events before {since} are pruned: those events would be applied a second time.",
            remedy=f"Reset to {since} or later, or rebuild the projection with --rebuild.",
        )
