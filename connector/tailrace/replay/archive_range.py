"""The archive as the way of a replay: whether it has what the table has no longer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.archive import require_installed
from tailrace.errors import ConfigError, LayoutMismatch
from tailrace.positions.archive import ArchivePosition
from tailrace.positions.base import Position
from tailrace.replay.plan import Origin
from tailrace.replay.selection import Selection
from tailrace.replay.source_log import format_time
from tailrace.worker.wiring import Wiring

if TYPE_CHECKING:
    from tailrace.archive.backend import ArchiveOutbox
    from tailrace.archive.manifest import ManifestEntry
    from tailrace.archive.repository import ArchiveRepository


def has_archive(wiring: Wiring) -> bool:
    return wiring.settings.archive is not None


def archive_way(wiring: Wiring, selection: Selection, *, notes: tuple[str, ...] = ()) -> ReplayRange:
    """All that the archive has by now of the time that is asked for."""
    return _way(_repository(wiring), selection, notes)


def archived_way(wiring: Wiring, selection: Selection) -> ReplayRange | None:
    """The same, if rows of that time have left the table for the archive; None if the table still has them all."""
    if not has_archive(wiring) or wiring.database.timestamp is None:
        return None
    repository = _repository(wiring)
    entries = repository.meeting(selection.since_ms, selection.until_ms)
    if not entries:
        return None
    from tailrace.replay.archive_context import open_outbox  # what it needs is known to be there by now

    outbox = open_outbox(wiring)
    try:
        there = outbox.counts(entries)
        if not any(_has_left(repository, entry, outbox, there.get(entry.number, 0)) for entry in entries):
            return None
    finally:
        outbox.close()
    until = max(entry.committed.last_ms for entry in entries)
    note = (
        f"the table no longer has all of that time, and the archive has rows up to {format_time(until)}; what is still "
        "in the table is not in this plan: make another one of the same points with --from-table"
    )
    return _way(repository, selection, (note,))


def _has_left(repository: ArchiveRepository, entry: ManifestEntry, outbox: ArchiveOutbox, of_its_time: int) -> bool:
    """Whether the outbox lacks rows of this file. As many may be others of the same time: then each is looked for."""
    if of_its_time < entry.rows:
        return True
    with repository.reader(entry) as reader:
        try:
            return sum(outbox.present(reader.columns, rows) for rows in reader.groups()) < entry.rows
        except LayoutMismatch:
            return True  # of another key: what it has, the table has not, by that name


def _repository(wiring: Wiring) -> ArchiveRepository:
    require_installed()
    from tailrace.archive.repository import open_repository

    return open_repository(wiring.settings)


def _way(repository: ArchiveRepository, selection: Selection, notes: tuple[str, ...]) -> ReplayRange:
    if not repository.entries:
        raise ConfigError(
            f"the archive at {repository.store.url} is empty",
            remedy="Leave --from-archive out; see `tailrace archive list`.",
        )
    first, last = repository.entries[0], repository.entries[-1]
    end = ArchivePosition(repository.name, last.number, last.rows, 0, last.committed.last_ms)
    more = "rows come in the order in which they were archived: that of source.order_by, not of commits"
    # By number, not "the first": should the oldest be deleted before the plan is carried out, that must show.
    return ReplayRange("archive", ArchivePosition(repository.name, first.number), end, selection, (*notes, more))


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """From where to where, in a source."""

    origin: Origin
    start: Position
    end: Position
    selection: Selection
    notes: tuple[str, ...] = ()
