"""The range of a replay, and its range in the archive for rows that the table no longer has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.archive import require_installed
from tailrace.errors import ConfigError, LayoutMismatch
from tailrace.positions.archive import ArchivePosition
from tailrace.positions.base import Position
from tailrace.replay.outbox_rows import open_outbox
from tailrace.replay.plan import Origin, Selection
from tailrace.replay.source_log import format_time
from tailrace.worker.wiring import Wiring

if TYPE_CHECKING:
    from tailrace.archive.backend import ArchiveOutbox
    from tailrace.archive.manifest import ManifestEntry
    from tailrace.archive.repository import ArchiveRepository


def has_archive(wiring: Wiring) -> bool:
    return wiring.settings.archive is not None


def archive_range(wiring: Wiring, selection: Selection, *, notes: tuple[str, ...] = ()) -> ReplayRange:
    """Returns everything that the archive has of the requested time."""
    return _range(_repository(wiring), selection, notes)


def moved_range(wiring: Wiring, selection: Selection) -> ReplayRange | None:
    """Returns the same if rows of that time were moved to the archive; None if the table still has them all."""
    if not has_archive(wiring) or wiring.database.timestamp is None:
        return None
    repository = _repository(wiring)
    entries = repository.meeting(selection.since_ms, selection.until_ms)
    if not entries:
        return None
    outbox = open_outbox(wiring)
    try:
        there = outbox.counts(entries)
        if not any(_has_left(repository, entry, outbox, there.get(entry.number, 0)) for entry in entries):
            return None
    finally:
        outbox.close()
    until = max(entry.committed.last_ms for entry in entries)
    note = (
        f"the table no longer has all rows of that time, and the archive has rows up to {format_time(until)}; rows "
        "that are still in the table are not in this plan: make another plan with the same points and --from-table"
    )
    return _range(repository, selection, (note,))


def _has_left(repository: ArchiveRepository, entry: ManifestEntry, outbox: ArchiveOutbox, of_its_time: int) -> bool:
    """Returns whether the outbox lacks rows of this file. If the counts are equal, each row is searched for."""
    if of_its_time < entry.rows:
        return True
    with repository.reader(entry) as reader:
        try:
            return sum(outbox.present(reader.columns, rows) for rows in reader.groups()) < entry.rows
        except LayoutMismatch:
            return True  # another key column: the table does not have these rows under that key


def _repository(wiring: Wiring) -> ArchiveRepository:
    require_installed()
    from tailrace.archive.repository import open_repository

    return open_repository(wiring.settings)


def _range(repository: ArchiveRepository, selection: Selection, notes: tuple[str, ...]) -> ReplayRange:
    if not repository.entries:
        raise ConfigError(
            f"the archive at {repository.store.url} is empty",
            remedy="Omit --from-archive; see `tailrace archive list`.",
        )
    first, last = repository.entries[0], repository.entries[-1]
    end = ArchivePosition(repository.name, last.number, last.rows, 0, last.committed.last_ms)
    more = "rows come in the order in which they were archived (source.order_by), not in commit order"
    # By number: if the oldest file is deleted before the plan is applied, that must be noticed.
    return ReplayRange("archive", ArchivePosition(repository.name, first.number), end, selection, (*notes, more))


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """A range of positions in a source."""

    origin: Origin
    start: Position
    end: Position
    selection: Selection
    notes: tuple[str, ...] = ()
