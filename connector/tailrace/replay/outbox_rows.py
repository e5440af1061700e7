"""The rows of an outbox that every pipeline of it has passed: only these may be deleted.

Other pipelines that read the same outbox count as well: the log delivers them a deleted row, but a first read or a
recovery finds only rows that are still there. Only pipelines that share the offsets topic are known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from tailrace.archive.backend import ArchiveOutbox
from tailrace.archive.postgres_outbox import PostgresArchiveOutbox
from tailrace.errors import ConfigError, TailraceError
from tailrace.positions.base import MALFORMED, Position, from_stored, is_same_outbox, is_streaming
from tailrace.positions.mongo import TokenPosition
from tailrace.positions.postgres import LsnPosition
from tailrace.replay.table_points import from_collections, from_table
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.postgres import catalog
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.resume_check import require_same_server
from tailrace.sources.postgres.snapshot import Snapshot
from tailrace.state import offsets, position_history
from tailrace.state.position_history import PositionEntry
from tailrace.worker.wiring import Wiring


def open_outbox(wiring: Wiring) -> ArchiveOutbox:
    name = wiring.settings.pipeline
    if isinstance(wiring.database, MongoOptions):
        from tailrace.archive.mongo_outbox import MongoArchiveOutbox  # optional driver

        return MongoArchiveOutbox(wiring.database, name)
    return PostgresArchiveOutbox(wiring.database, name)


def passed_rows_of(
    wiring: Wiring, stored: Position, entries: Sequence[PositionEntry], before_ms: int, ignored: Collection[str]
) -> tuple[Position, list[str]]:
    """Returns the start for reading the rows that this pipeline and others of the outbox have passed, and notes.

    `ignored` are pipelines that no longer read the same outbox.
    """
    _require_same_server(wiring.database, stored)
    notes: list[str] = []
    start: Position
    if isinstance(stored, LsnPosition):
        start, is_all = from_table(wiring, replace(stored, cut=None), entries)
        if not is_all:
            notes.append("the pipeline has not caught up: rows that it may not have published yet are left out")
    else:
        start = from_collections(stored)
    start, others = passed_by_all(wiring, start, before_ms, ignored)
    return start, notes + others


def _require_same_server(database: PostgresOptions | MongoOptions, stored: Position) -> None:
    """Checks that the position belongs to this server. For MongoDB this is checked with the first document."""
    if isinstance(database, PostgresOptions) and isinstance(stored, LsnPosition):
        with database.connect(replication=True) as stream:
            require_same_server(stored, catalog.identify(stream))


_is_pipeline = re.compile(r"[a-z0-9_-]+").fullmatch
"""Matches names of pipelines; keys of replays and of other data on the topic contain other characters."""


def passed_by_all(
    wiring: Wiring, start: Position, before_ms: int, ignored: Collection[str]
) -> tuple[Position, list[str]]:
    """Returns `start` limited to what the other pipelines have passed, and notes; raises ConfigError if that is not
    known.
    """
    notes: list[str] = []
    for name, stored in _sharing(wiring, start, ignored):
        if not is_streaming(stored) or getattr(stored, "recovery", None) is not None:
            raise _refusal(
                name,
                f"is reading it for the first time: {stored}",
                "Rows that it has not read yet would never be published.",
            )
        if isinstance(start, LsnPosition) and isinstance(stored, LsnPosition):
            start, is_all = _least(wiring, name, start, stored)
            if not is_all:
                notes.append(
                    f"{name} reads this outbox as well and has not caught up: rows that it may not have "
                    "passed are left out"
                )
        elif isinstance(stored, TokenPosition) and stored.time.seconds * 1000 <= before_ms:
            raise _refusal(name, f"is behind: {stored}", "Documents deleted now may be new to it.")
    return start, notes


def _sharing(wiring: Wiring, mine: Position, ignored: Collection[str]) -> Iterator[tuple[str, Position]]:
    """Yields other pipelines of this outbox and their stored positions."""
    for key, value in sorted(offsets.read_keys(wiring.kafka, None).items()):
        name = key.decode(errors="replace")
        if name == wiring.settings.pipeline or name in ignored or not _is_pipeline(name):
            continue
        try:
            stored = from_stored(json.loads(value))
        except MALFORMED as error:
            raise ConfigError(
                f"the pipeline {name} may read the same outbox, but its stored position cannot be parsed: {error!r}",
                why="A newer version of Tailrace or another program wrote it. Rows that it has not passed must stay.",
                remedy="Use that version. If it reads another outbox or no longer exists, add "
                f"--ignore-pipeline {name}. Nothing was changed.",
            ) from None
        if is_same_outbox(mine, stored):
            yield name, stored


def _least(wiring: Wiring, name: str, start: LsnPosition, stored: LsnPosition) -> tuple[LsnPosition, bool]:
    assert start.table_read is not None  # noqa: S101 - it says which rows
    assert not isinstance(wiring.database, MongoOptions)  # noqa: S101 - the position is Postgres's
    kafka = replace(wiring.kafka, pipeline=name)
    its = replace(wiring, kafka=kafka, database=replace(wiring.database, slot=stored.log.slot))
    try:
        found, is_all = from_table(its, replace(stored, cut=None), position_history.read(kafka))
    except TailraceError as error:
        raise _refusal(name, f"has not caught up: {error.what}", error.why) from None
    assert found.table_read is not None  # noqa: S101 - it says which rows
    least = min(start.table_read.snapshot, found.table_read.snapshot, key=lambda text: Snapshot.parse(text).xmin)
    return replace(start, table_read=replace(start.table_read, snapshot=least)), is_all


def _refusal(name: str, what: str, why: str) -> ConfigError:
    return ConfigError(
        f"the pipeline {name} reads the same outbox, and {what}",
        why=why,
        remedy=f"Let {name} catch up, then run it again. If it no longer exists, add --ignore-pipeline {name}. "
        "Nothing was changed.",
    )
