"""A place in a log: what is stored in Kafka with each batch, and where reading resumes.

Each kind of log has its own: `LsnPosition` for Postgres, `TokenPosition` for MongoDB; an archive that is read again has
`ArchivePosition`. The rest of the house stores it, compares how far two of one log are, and shows it; nothing else. A
position is tagged with the log it belongs to: one of another log is refused, never compared.
"""

from __future__ import annotations

from typing import Any, Protocol

from tailrace.errors import WrongLog
from tailrace.positions import archive, mongo, postgres
from tailrace.positions.archive import ArchivePosition
from tailrace.positions.mongo import TokenPosition
from tailrace.positions.postgres import LsnPosition

FORMAT = 1
"""Version of the stored form; a newer one is refused rather than half understood."""

Progress = tuple[int, int | str, int]


class Position(Protocol):
    """Where a pipeline stands. Its text is for people."""

    @property
    def at_ms(self) -> int:
        """The source's clock there, for lag in seconds."""

    @property
    def progress(self) -> Progress:
        """Sorts positions of one log by how far they are; what was there before comes before the stream."""

    def is_alike(self, other: object) -> bool:
        """Whether both are places in one log, so that they can be compared."""

    def covers(self, place: str) -> bool:
        """Whether the row at `place` lies at or before this position."""

    def to_json(self) -> dict[str, Any]: ...


def to_stored(position: Position) -> dict[str, Any]:
    """The stored form, so written that a person can read the offsets topic."""
    return {"format": FORMAT, **position.to_json()}


def from_stored(stored: dict[str, Any]) -> Position:
    """Reads the stored form; ValueError, KeyError or TypeError if it is not one."""
    if stored["format"] == FORMAT and stored["source"] == postgres.SOURCE:
        return LsnPosition.from_json(stored)
    if stored["format"] == FORMAT and stored["source"] == mongo.SOURCE:
        return TokenPosition.from_json(stored)
    if stored["format"] == FORMAT and stored["source"] == archive.SOURCE:
        return ArchivePosition.from_json(stored)
    raise ValueError(f"format {stored['format']} of source {stored['source']!r} is not known here")


def is_same_outbox(mine: Position, its: Position) -> bool:
    """Whether both are places in logs of the same table, or of a collection that both read."""
    if isinstance(mine, LsnPosition) and isinstance(its, LsnPosition):
        one, other = mine.log, its.log
        return (one.system_id, one.database, one.table) == (other.system_id, other.database, other.table)
    if isinstance(mine, TokenPosition) and isinstance(its, TokenPosition):
        same = (mine.log.replica_set, mine.log.database) == (its.log.replica_set, its.log.database)
        return same and not mine.log.collections.keys().isdisjoint(its.log.collections)
    return False


def knows_start(stored: Position | None) -> bool:
    """Whether it tells which rows were there before the pipeline's first start, and are not published."""
    return isinstance(stored, LsnPosition | TokenPosition) and bool(stored.begun)


def other_kind(stored: Position, database: str) -> WrongLog:
    """The refusal of a position that is of another kind of log."""
    return WrongLog(
        f"the stored position {stored} is not one of {database}",
        why="A pipeline of this name has read another kind of database.",
        remedy="Give this pipeline a name of its own: a name stands for one log.",
    )
