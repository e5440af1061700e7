"""What archiving needs to know of a pipeline's history: which rows it has passed, and where they were published.

What is passed is asked for first, then what is held: an event that was set aside and passed is among the letters by
then. Where a row was published stands on the topics alone, as long as they keep it; the archive remembers it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace

from tailrace.archive.backend import ArchiveOutbox
from tailrace.archive.pinned_rows import PinnedRows
from tailrace.archive.postgres_outbox import PostgresArchiveOutbox
from tailrace.archive.repository import open_repository
from tailrace.archive.writer import ArchiveReport, ArchiveRun, Original
from tailrace.errors import TailraceError
from tailrace.event import Row
from tailrace.outbox.layouts import Layout
from tailrace.positions.base import Position
from tailrace.positions.postgres import LsnPosition
from tailrace.replay.original_records import FORGOTTEN, OriginalRecords
from tailrace.replay.other_pipelines import passed_by_all
from tailrace.replay.resolve import topics_of
from tailrace.replay.table_points import before_first_start, from_collections, from_table, stored_position
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.postgres import catalog as catalogue
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.resume_check import require_same_server
from tailrace.state import position_history
from tailrace.worker.wiring import Wiring


def open_outbox(wiring: Wiring) -> ArchiveOutbox:
    name = wiring.settings.pipeline
    if isinstance(wiring.database, MongoOptions):
        from tailrace.archive.mongo_outbox import MongoArchiveOutbox  # its driver is only there for those who need it

        return MongoArchiveOutbox(wiring.database, name)
    return PostgresArchiveOutbox(wiring.database, name)


def archive(
    wiring: Wiring,
    before_ms: int,
    *,
    keep: bool,
    dry_run: bool,
    tell: Callable[[ArchiveReport], None],
    ignored: Collection[str] = (),
) -> tuple[ArchiveReport, tuple[str, ...]]:
    """Archives what is older than `before_ms`, or says what it would; notes for people beside it.

    `ignored` are other pipelines that read the same outbox no longer.
    """
    shelf = open_repository(wiring.settings)
    stored = stored_position(wiring)
    _require_same_server(wiring.database, stored)
    entries = position_history.read(wiring.kafka)
    processor = wiring.processor()
    notes = before_first_start(wiring, stored, "go, too, never published", "stay: they were never published")
    with ExitStack() as opened:
        outbox = open_outbox(wiring)
        opened.callback(outbox.close)
        if not keep:
            try:
                outbox.require_deletable()
            except TailraceError as error:
                if not dry_run:
                    raise
                notes.append(f"without --dry-run this is refused: {error.what}. {error.remedy}")
        start: Position
        if isinstance(stored, LsnPosition):
            start, is_all = from_table(wiring, replace(stored, cut=None), entries)
            if not is_all:
                notes.append("the pipeline has not caught up: rows that it may not have published yet are left out")
        else:
            start = from_collections(stored)
        start, others = passed_by_all(wiring, start, before_ms, ignored)
        notes += others
        held = PinnedRows(wiring.kafka, processor)
        opened.callback(held.close)
        originals = OriginalRecords()
        opened.callback(originals.close)
        topics = topics_of(wiring, entries)
        original = _original(originals, processor.layout, lambda: originals.fill(wiring.kafka, topics, None))
        archiving = ArchiveRun(shelf, outbox, held, original, start=start, before_ms=before_ms, keep=keep, tell=tell)
        return (archiving.look() if dry_run else archiving.run()), tuple(notes)


def _require_same_server(database: PostgresOptions | MongoOptions, stored: Position) -> None:
    """What was passed elsewhere says nothing of this outbox. Of MongoDB that is compared at the first document."""
    if isinstance(database, PostgresOptions) and isinstance(stored, LsnPosition):
        with database.connect(replication=True) as stream:
            require_same_server(stored, catalogue.identify(stream))


def _original(originals: OriginalRecords, layout: Layout, fill: Callable[[], None]) -> Original:
    """Topics are read when the first row is asked for: most runs of a day find none that is old enough.

    All of each: an old row may have been published late.
    """
    named = originals.namer(layout)
    filled = False

    def original(row: Row) -> tuple[str, int]:
        nonlocal filled
        if not filled:
            fill()
            filled = True
        found = named(row)
        return ("", 0) if found.position.startswith(f"{FORGOTTEN}:") else (found.position, found.committed_ms)

    return original
