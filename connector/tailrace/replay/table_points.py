"""Points in the history of a table or of collections, which know times at best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tailrace.check.health import read_kafka_status
from tailrace.errors import ConfigError, WrongLog
from tailrace.positions.base import Position, other_kind
from tailrace.positions.mongo import ClusterTime, CollectionRead, TokenPosition
from tailrace.positions.postgres import LsnPosition, TableRead
from tailrace.replay.points import Lsn, Moment, Oldest, Point
from tailrace.replay.published_snapshot import passed_rows
from tailrace.replay.source_log import format_time
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.state.position_history import PositionEntry
from tailrace.verify.verification import ENDED
from tailrace.worker.wiring import Wiring


def time_of(point: Point | None, entries: Sequence[PositionEntry], option: str) -> int | None:
    """The time that a point stands for; None for no bound. An LSN has that of the last entry of the ledger before."""
    match point:
        case None | Oldest():
            return None
        case Moment(at_ms):
            return at_ms
        case ClusterTime():
            return point.seconds * 1000
        case Lsn(value):
            known = [each.position for each in entries if isinstance(each.position, LsnPosition)]
            times = [position.at_ms for position in known if position.lsn <= value]
            if times:
                return max(times)
    raise ConfigError(
        f"{option} is no point that a table knows",
        why="Rows have a time, but no place in the log.",
        remedy=f"Give a time, such as {option} 3d or {option} 2026-03-01T12:00Z; single events by --id.",
    )


def stored_position(wiring: Wiring) -> Position:
    stored = read_kafka_status(wiring.kafka).position
    if stored is None:
        raise ConfigError(
            f"the pipeline {wiring.settings.pipeline} has no stored position: it was never started",
            why="Nothing was published yet, so nothing can be published again.",
            remedy="Start it: `tailrace run`; source.start says from where.",
        )
    if is_reading_first(stored):
        raise ConfigError(
            f"the pipeline {wiring.settings.pipeline} is still at its first start: {stored}",
            why="Until the rows that were there before are all published, there is no place in the log to return to.",
            remedy="Let it come as far, then make the plan.",
        )
    _require_own(wiring.database, stored)
    return stored


def _require_own(database: PostgresOptions | MongoOptions, stored: Position) -> None:
    """Refuses settings of another outbox than the one that was read: what was passed there says nothing of this one."""
    if isinstance(database, MongoOptions):
        if not isinstance(stored, TokenPosition):
            raise other_kind(stored, "MongoDB")
        return
    if not isinstance(stored, LsnPosition):
        raise other_kind(stored, "Postgres")
    for what, read, named in (("table", stored.log.table, database.table), ("slot", stored.log.slot, database.slot)):
        if read != named:
            raise WrongLog(
                f"the stored position {stored} belongs to {what} {read}, this is {what} {named}",
                why="The settings were copied, and the name of the pipeline was left in them; or they were changed "
                "since it ran.",
                remedy=f"Give the pipeline a name of its own, or mend source.{what}. Nothing was changed.",
            )


def from_table(wiring: Wiring, stored: LsnPosition, entries: Sequence[PositionEntry]) -> tuple[LsnPosition, bool]:
    """Where to begin with the rows that the pipeline has published by now, and whether those are all."""
    if isinstance(wiring.database, MongoOptions):
        raise TypeError("a position of Postgres, and settings of MongoDB")

    def again() -> Position | None:
        news = read_kafka_status(wiring.kafka)
        return None if news.announced.get("state") in ENDED else news.position

    passed = passed_rows(wiring.database, stored, entries, again)
    return replace(stored, table_read=TableRead(passed.snapshot)), passed.is_all


def from_collections(stored: Position) -> Position:
    """The same for collections: what was inserted behind the stored position is left out, the stream tells which."""
    if not isinstance(stored, TokenPosition):
        raise TypeError("a position of another kind")
    return replace(stored, collection_read=CollectionRead())


def before_first_start(wiring: Wiring, stored: Position, taken: str, left: str) -> list[str]:
    """A note on rows that were there before the first start, and were never published: they are `taken`, or `left`."""
    if wiring.settings.source.start == "beginning":
        return []
    if isinstance(stored, LsnPosition) and stored.begun:
        return [
            f"rows from before the pipeline's first start (source.start: now) {left}; one changed since counts as new"
        ]
    if isinstance(stored, TokenPosition) and stored.begun:
        # Their own times may be set back: what is left out by those might have been published.
        when = f" ({format_time(int(stored.begun))})"
        return [f"documents from before the pipeline's first start{when} {taken}: their commits have no time"]
    return [f"rows from before the pipeline's first start (source.start: now) {taken}"]


def is_reading_first(stored: Position) -> bool:
    """Whether a pipeline there has not come to the stream yet."""
    if isinstance(stored, LsnPosition):
        return stored.creating or stored.table_read is not None
    return isinstance(stored, TokenPosition) and stored.collection_read is not None
