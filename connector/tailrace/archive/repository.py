"""The archive of one pipeline: its files and the entries that list them.

A file is written first, read back, and only then listed. If the process ends in between, the file is an orphan: it has
no entry and is not part of the archive.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from tailrace import failpoints
from tailrace.archive import manifest
from tailrace.archive.files import FileReader, WrittenFile, extended, fetch, opened
from tailrace.archive.format import FileSchema
from tailrace.archive.manifest import ManifestEntry, TimeRange
from tailrace.archive.object_store import AlreadyExistsError, ObjectStore
from tailrace.config.model import PipelineSettings
from tailrace.errors import (
    ArchiveBusy,
    ArchiveDamaged,
    ArchiveError,
    ConfigError,
    LayoutMismatch,
    NoOutboxTable,
    TailraceError,
)
from tailrace.positions.base import MALFORMED
from tailrace.worker.options import column_map

AT_ONCE = 8
"""Entries fetched at a time, since each is small and a bucket is slow."""


class ArchiveRepository:
    """The entries are read when it is opened, and extended with each added file."""

    def __init__(self, store: ObjectStore, pipeline: str, table: str, parts: Sequence[tuple[str, str]] = ()) -> None:
        """`parts` are the parts of an event and the columns that the settings name for them."""
        self.store = store
        self.pipeline = pipeline
        self.table = table
        self._parts = parts
        names = store.names()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            self.entries: list[ManifestEntry] = list(pool.map(self._entry, manifest.numbers(names)))
        self.orphans = manifest.orphans(self.entries, names)
        others = [entry.table for entry in self.entries if (entry.pipeline, entry.table) != (pipeline, table)]
        if others:
            raise ConfigError(
                f"the archive at {store.url} belongs to {others[0]}, but the pipeline {pipeline} reads {table}",
                why="A pipeline's name belongs to one outbox, and so does its archive.",
                remedy="Give this pipeline its own name, or another archive.url. Nothing was changed.",
            )

    @property
    def name(self) -> str:
        """The name of the archive in positions."""
        return f"{self.pipeline} {self.table}"

    @property
    def last(self) -> int:
        return self.entries[-1].number if self.entries else 0

    def meeting(self, since_ms: int | None, until_ms: int | None) -> list[ManifestEntry]:
        """Returns files with events committed in this time."""
        return [entry for entry in self.entries if entry.committed.meets(since_ms, until_ms)]

    def reader(self, entry: ManifestEntry) -> AbstractContextManager[FileReader]:
        return opened(self.store, entry)

    def add(self, written: WrittenFile, shape: FileSchema, order_by: tuple[str, ...]) -> ManifestEntry:
        """Stores a file and lists it; raises ArchiveBusy if another archiver has listed one meanwhile."""
        number = self.last + 1
        entry = ManifestEntry(
            number=number,
            file=manifest.file_name(number, secrets.token_hex(4)),
            pipeline=self.pipeline,
            table=self.table,
            rows=written.rows,
            bytes=written.bytes,
            sha256=written.sha256,
            created=written.created,
            committed=written.committed,
            order_by=order_by,
            first=written.first,
            last=written.last,
            columns=tuple((name, oid) for name, oid in shape.columns),
            written_ms=time.time_ns() // 1_000_000,
        )
        try:
            self.store.create(entry.file, written.path)
        except AlreadyExistsError:
            pass  # a response was lost and the store retried: no other archiver has this name, and it is read back now
        self._require_exclusive(entry.file)
        failpoints.reached(failpoints.ARCHIVE_WRITTEN)
        with self.reader(entry) as reader:
            rows = sum(map(len, reader.groups()))
        if rows != entry.rows:
            raise ArchiveDamaged(
                f"{entry.file} has {rows:,} rows, but {entry.rows:,} were written", remedy="Run it again."
            )
        failpoints.reached(failpoints.ARCHIVE_READ_BACK)
        self._list(entry)
        failpoints.reached(failpoints.ARCHIVE_LISTED)
        self.entries.append(entry)
        return entry

    def flaws(self) -> Iterator[tuple[ManifestEntry, str]]:
        """Yields every file and what is wrong with it; an empty string if nothing is."""
        for entry in self.entries:
            try:
                with self.reader(entry) as reader:
                    yield entry, _flaw(entry, reader)
            except ArchiveDamaged as error:
                yield entry, error.what

    def require_listed(self, first: int, last: int) -> None:
        """Raises ArchiveDamaged unless each of these numbers has an entry; a missing end would not show as a gap."""
        missing = set(range(first, last + 1)) - {entry.number for entry in self.entries}
        if missing:
            raise ArchiveDamaged(
                f"the archive at {self.store.url} no longer lists file {min(missing)}, which must be read",
                why="Its entry was deleted or moved since the plan was made.",
                remedy="Restore it from a copy of the archive, or make a new plan of what is left. This run published "
                "nothing of it.",
            )

    def require_readable(self, entries: list[ManifestEntry]) -> None:
        """Raises LayoutMismatch unless each of these files has the columns that the settings name."""
        for entry in entries:
            columns = [name for name, _ in entry.columns]
            for part, column in self._parts:
                if column not in columns:
                    raise LayoutMismatch(
                        f"{entry.file} has no column {column!r}, which outbox.columns.{part} names",
                        why=f"The outbox had other columns when it was archived: {', '.join(columns)}.",
                        remedy="Make the plan with a copy of the settings of the same pipeline whose outbox.columns "
                        "names the columns of the file; or choose another time with --from and --to. Nothing was "
                        "changed.",
                    )

    def require_whole(self, entries: list[ManifestEntry]) -> None:
        """Raises ArchiveDamaged unless each of these files matches its entry."""
        for entry in entries:
            fetch(self.store, entry)

    def span(self) -> TimeRange | None:
        """Returns the range from the oldest commit to the newest."""
        if not self.entries:
            return None
        spans = [entry.committed for entry in self.entries]
        return TimeRange(min(each.first_ms for each in spans), max(each.last_ms for each in spans))

    def _require_exclusive(self, taken: str) -> None:
        """Checks that the store refuses to overwrite: otherwise two archivers could replace each other's entries."""
        try:
            self.store.create(taken, b"")
        except AlreadyExistsError:
            return
        raise ArchiveError(
            f"{self.store.url} allows to overwrite an object that must only be created",
            why="Of two concurrent archivers, one would replace the entry of the other, whose rows are already "
            "deleted.",
            remedy="Use a store that supports `If-None-Match: *`: a folder, S3, GCS, Azure. Nothing was deleted.",
        )

    def _list(self, entry: ManifestEntry) -> None:
        content = json.dumps(entry.to_json()).encode()
        try:
            self.store.create(entry.name, content)
        except AlreadyExistsError:
            if self.store.read(entry.name) == content:
                return  # our own: the response was lost
            try:
                self.store.remove(entry.file)
            except TailraceError:
                pass  # it stays as an orphan
            raise ArchiveBusy(
                f"another archiver has listed {entry.name} meanwhile",
                why="Two archivers worked at the same time. No row of this one is listed twice or deleted.",
                remedy="Let the other one finish, then run this one again.",
            ) from None

    def _entry(self, number: int) -> ManifestEntry:
        name = manifest.entry_name(number)
        try:
            return ManifestEntry.from_json(json.loads(self.store.read(name)))
        except MALFORMED as error:
            raise ArchiveDamaged(
                f"{name} is not an entry of an archive: {error!r}",
                why="Another program or a newer version of Tailrace wrote it.",
                remedy="Restore it from a copy of the archive. Nothing was changed.",
            ) from None


def _flaw(entry: ManifestEntry, reader: FileReader) -> str:
    """Returns in what an entry differs from its file; an empty string if it does not."""
    rows = 0
    created: list[int] = []
    committed: list[int] = []
    for group in reader.groups():
        rows += len(group)
        for row in group:
            created, committed = extended(created, row.created_ms), extended(committed, row.committed_ms)
    if rows != entry.rows:
        return f"only {rows:,} of {entry.rows:,} rows can be read"
    for name, listed, found in (
        ("columns", entry.columns, tuple((column, oid) for column, oid in reader.columns)),
        ("created", list(entry.created), created),
        ("committed", list(entry.committed), committed),
    ):
        if listed != found:
            return f"`{name}` in {entry.name} does not match the file"
    return ""


def open_repository(settings: PipelineSettings) -> ArchiveRepository:
    """Opens the archive that the settings name."""
    if settings.archive is None:
        raise ConfigError(
            f"the pipeline {settings.pipeline} has no archive",
            remedy="Configure one in its settings, such as `archive: {url: 's3://cold/outbox'}`; see docs/archive.md.",
        )
    source = settings.source
    # For MongoDB the database, because collections may be added and removed; a file names the collection of each
    # document.
    if source.messages is not None:
        raise NoOutboxTable(
            f"the events of the pipeline {settings.pipeline} are messages, which cannot be archived",
            why="Messages of pg_logical_emit_message are only in the log. No table contains them, so there is nothing "
            "to delete either.",
            remedy="Keep the events by the retention of their topics.",
        )
    table = source.table or source.collection[0].partition(".")[0]
    store = ObjectStore(settings.archive.url, settings.archive.option_values(), settings.pipeline)
    # A document is archived whole, so its field names do not matter.
    parts = [] if source.mongo is not None else column_map(settings).parts()
    return ArchiveRepository(store, settings.pipeline, table, parts)
