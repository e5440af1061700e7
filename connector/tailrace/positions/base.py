"""Positions in source logs: stored in Kafka with each batch, and where reading resumes.

Each kind of source has its own: `LsnPosition` for Postgres, `TokenPosition` for MongoDB, `ArchivePosition` for an
archive, `EmbeddedPosition` for an embedded outbox. All other code only stores positions, compares positions of the same
log, and shows them. A position names the log it belongs to; a position of another log is refused, never compared.
"""

from __future__ import annotations

from typing import Any, Protocol

from tailrace.errors import WrongLog
from tailrace.positions import archive, embedded, mongo, postgres
from tailrace.positions.archive import ArchivePosition
from tailrace.positions.embedded import EmbeddedPosition
from tailrace.positions.first_read import FirstRead
from tailrace.positions.mongo import TokenPosition
from tailrace.positions.postgres import LsnPosition

FORMAT = 1
"""Version of the stored form; a newer version is refused."""

Progress = tuple[int, int | str, int]


class Position(Protocol):
    """A position in a source log. `str()` gives a text for people."""

    @property
    def at_ms(self) -> int:
        """The source's clock at this position, for the lag in seconds."""

    @property
    def progress(self) -> Progress:
        """The sort key of positions of one log; rows read from the table come before the stream."""

    def is_alike(self, other: object) -> bool:
        """Whether both are positions of the same log, so that they can be compared."""

    def covers(self, row_position: str) -> bool:
        """Whether the row with this position text lies at or before this position."""

    def to_json(self) -> dict[str, Any]: ...


MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What parsing a JSON record of ours may raise if something else wrote it. `1e999` is JSON, and no integer."""


def to_stored(position: Position) -> dict[str, Any]:
    """Returns the stored form, which people can read on the offsets topic."""
    return {"format": FORMAT, **position.to_json()}


def from_stored(stored: dict[str, Any]) -> Position:
    """Parses the stored form; raises ValueError, KeyError or TypeError if it is invalid."""
    if stored["format"] == FORMAT and stored["source"] == postgres.SOURCE:
        return LsnPosition.from_json(stored)
    if stored["format"] == FORMAT and stored["source"] == mongo.SOURCE:
        return TokenPosition.from_json(stored)
    if stored["format"] == FORMAT and stored["source"] == archive.SOURCE:
        return ArchivePosition.from_json(stored)
    if stored["format"] == FORMAT and stored["source"] == embedded.SOURCE:
        return EmbeddedPosition.from_json(stored)
    raise ValueError(f"format {stored['format']} of source {stored['source']!r} is unknown")


def is_same_outbox(mine: Position, its: Position) -> bool:
    """Whether both positions belong to the same table, or to a collection that both read."""
    if isinstance(mine, LsnPosition) and isinstance(its, LsnPosition):
        one, other = mine.log, its.log
        return (one.system_id, one.database, one.table) == (other.system_id, other.database, other.table)
    if isinstance(mine, TokenPosition) and isinstance(its, TokenPosition):
        same = (mine.log.replica_set, mine.log.database) == (its.log.replica_set, its.log.database)
        return same and not mine.log.collections.keys().isdisjoint(its.log.collections)
    return False


def is_streaming(stored: Position | None) -> bool:
    """Returns whether a pipeline at this position has completed its first read of the outbox."""
    if isinstance(stored, LsnPosition):
        return stored.table_read is None and not stored.creating
    return isinstance(stored, EmbeddedPosition) or (
        isinstance(stored, TokenPosition) and stored.collection_read is None
    )


def knows_start(stored: Position | None) -> bool:
    """Whether the position records which rows existed before the first start and are not published."""
    return isinstance(stored, LsnPosition | TokenPosition) and bool(stored.begun)


def first_read_of(stored: Position | None) -> FirstRead | None:
    """Returns which rows the first read has left out because of source.start_where; None if it left out none."""
    return stored.first_read if isinstance(stored, LsnPosition | TokenPosition) else None


def other_kind(stored: Position, database: str) -> WrongLog:
    """Returns the error for a stored position of another kind of source."""
    return WrongLog(
        f"the stored position {stored} is not a position of {database}",
        why="A pipeline of this name has read another kind of database.",
        remedy="Give this pipeline another name: a name belongs to one log.",
    )
