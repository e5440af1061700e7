"""Runs the archiver with the history of a pipeline: which rows it has passed, and where they were published.

What is passed is read before the dead letters, so an event that was dead-lettered and passed is found among them. The
original position of a row is only on the topics, as long as they keep it; the archive stores it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack

from tailrace.archive.pinned_rows import PinnedRows
from tailrace.archive.repository import open_repository
from tailrace.archive.writer import ArchiveReport, ArchiveRun, Original
from tailrace.errors import TailraceError
from tailrace.event import Row
from tailrace.outbox.layouts import Layout
from tailrace.positions.archive import NO_POSITION
from tailrace.replay.original_records import OriginalRecords
from tailrace.replay.outbox_rows import open_outbox, passed_rows_of
from tailrace.replay.source_log import topics_of
from tailrace.replay.table_points import before_first_start, stored_position
from tailrace.state import position_history
from tailrace.worker.wiring import Wiring


def archive(
    wiring: Wiring,
    before_ms: int,
    *,
    keep: bool,
    dry_run: bool,
    on_progress: Callable[[ArchiveReport], None],
    ignored: Collection[str] = (),
) -> tuple[ArchiveReport, tuple[str, ...]]:
    """Archives rows older than `before_ms`, or reports what it would do; also returns notes for people.

    `ignored` are pipelines that no longer read the same outbox.
    """
    repository = open_repository(wiring.settings)
    stored = stored_position(wiring)
    entries = position_history.read(wiring.kafka)
    processor = wiring.processor(with_rules=False)
    notes = before_first_start(
        wiring,
        stored,
        "are archived as well, although they were never published",
        "stay, because they were never published",
    )
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
        start, more = passed_rows_of(wiring, stored, entries, before_ms, ignored)
        notes += more
        held = PinnedRows(wiring.kafka, processor)
        opened.callback(held.close)
        originals = OriginalRecords()
        opened.callback(originals.close)
        topics = topics_of(wiring, entries)
        original = _original(originals, processor.layout, lambda: originals.fill(wiring.kafka, topics, None))
        archiving = ArchiveRun(
            repository, outbox, held, original, start=start, before_ms=before_ms, keep=keep, on_progress=on_progress
        )
        return (archiving.look() if dry_run else archiving.run()), tuple(notes)


def _original(originals: OriginalRecords, layout: Layout, fill: Callable[[], None]) -> Original:
    """Returns a function that finds the original position of a row.

    Topics are read only when the first row is found, since most runs find none. They are read whole, because an old row
    may have been published late.
    """
    named = originals.positioner(layout)
    filled = False

    def original(row: Row) -> tuple[str, int]:
        nonlocal filled
        if not filled:
            fill()
            filled = True
        found = named(row)
        return ("", 0) if found.position.startswith(f"{NO_POSITION}:") else (found.position, found.committed_ms)

    return original
