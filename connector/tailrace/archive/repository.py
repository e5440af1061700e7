"""The archive of one pipeline: its files and the entries that list them, in one place.

A file is written first, read back, and only then listed. Between those steps anything may end us: a file without an
entry is no part of the archive, and is told as an orphan.
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
from tailrace.archive.files import FileReader, WrittenFile, fetch, opened, widened
from tailrace.archive.format import FileSchema
from tailrace.archive.manifest import ManifestEntry, TimeRange
from tailrace.archive.object_store import AlreadyExistsError, ObjectStore
from tailrace.config.model import PipelineSettings
from tailrace.errors import ArchiveBusy, ArchiveDamaged, ArchiveError, ConfigError, LayoutMismatch, TailraceError
from tailrace.worker.wiring import column_map

AT_ONCE = 8
"""Entries asked for at a time: each is small, and a bucket is far away."""


class ArchiveRepository:
    """Looked at when it is opened, and after each file that is added."""

    def __init__(self, store: ObjectStore, pipeline: str, table: str, parts: Sequence[tuple[str, str]] = ()) -> None:
        """`parts` are those of an event, and the columns that the settings name for them."""
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
                f"the archive at {store.url} is of {others[0]}, and the pipeline {pipeline} reads {table}",
                why="A pipeline's name stands for one outbox, and so does its archive.",
                remedy="Give this pipeline a name of its own, or another archive.url. Nothing was changed.",
            )

    @property
    def name(self) -> str:
        """Whose it is, for positions in it."""
        return f"{self.pipeline} {self.table}"

    @property
    def last(self) -> int:
        return self.entries[-1].number if self.entries else 0

    def meeting(self, since_ms: int | None, until_ms: int | None) -> list[ManifestEntry]:
        """Files with events that were committed in this time."""
        return [entry for entry in self.entries if entry.committed.meets(since_ms, until_ms)]

    def reader(self, entry: ManifestEntry) -> AbstractContextManager[FileReader]:
        return opened(self.store, entry)

    def add(self, written: WrittenFile, shape: FileSchema, order_by: tuple[str, ...]) -> ManifestEntry:
        """Puts a file there and lists it; ArchiveBusy if somebody else has listed one meanwhile."""
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
            pass  # an answer was lost and the store asked again: no one else has this name; it is read back now
        self._require_exclusive(entry.file)
        failpoints.reached(failpoints.ARCHIVE_WRITTEN)
        with self.reader(entry) as reader:
            rows = sum(map(len, reader.groups()))
        if rows != entry.rows:
            raise ArchiveDamaged(
                f"{entry.file} gives {rows:,} rows, {entry.rows:,} were written", remedy="Run it again."
            )
        failpoints.reached(failpoints.ARCHIVE_READ_BACK)
        self._list(entry)
        failpoints.reached(failpoints.ARCHIVE_LISTED)
        self.entries.append(entry)
        return entry

    def flaws(self) -> Iterator[tuple[ManifestEntry, str]]:
        """Every file in turn, and what is wrong with it; "" if nothing is."""
        for entry in self.entries:
            try:
                with self.reader(entry) as reader:
                    yield entry, _flaw(entry, reader)
            except ArchiveDamaged as error:
                yield entry, error.what

    def require_listed(self, first: int, last: int) -> None:
        """Raises ArchiveDamaged unless there is an entry of each of these numbers: at either end, no gap would tell."""
        missing = set(range(first, last + 1)) - {entry.number for entry in self.entries}
        if missing:
            raise ArchiveDamaged(
                f"the archive at {self.store.url} no longer lists file {min(missing)}, which is to be read",
                why="Its entry was deleted or moved since the plan was made.",
                remedy="Put it back from a copy of the archive, or make a new plan of what is left. Nothing of it was "
                "published by this run.",
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
                        remedy="Make the plan with a copy of the settings, of the same pipeline, whose outbox.columns "
                        "names those of the file; or choose another time with --from and --to. Nothing was changed.",
                    )

    def require_whole(self, entries: list[ManifestEntry]) -> None:
        """Raises ArchiveDamaged unless each of these files is just what was listed."""
        for entry in entries:
            fetch(self.store, entry)

    def span(self) -> TimeRange | None:
        """From the oldest commit to the newest."""
        if not self.entries:
            return None
        spans = [entry.committed for entry in self.entries]
        return TimeRange(min(each.first_ms for each in spans), max(each.last_ms for each in spans))

    def _require_exclusive(self, taken: str) -> None:
        """Some stores take no notice of `only if there is none`: there, two archivers would list over each other."""
        try:
            self.store.create(taken, b"")
        except AlreadyExistsError:
            return
        raise ArchiveError(
            f"{self.store.url} lets an object be overwritten that was to be created",
            why="Of two archivers at once, one would replace the entry of the other, whose rows are deleted by then.",
            remedy="Take a store that keeps `If-None-Match: *`: a folder, S3, GCS, Azure. Nothing was deleted.",
        )

    def _list(self, entry: ManifestEntry) -> None:
        content = json.dumps(entry.to_json()).encode()
        try:
            self.store.create(entry.name, content)
        except AlreadyExistsError:
            if self.store.read(entry.name) == content:
                return  # ours: the answer was lost on its way
            try:
                self.store.remove(entry.file)
            except TailraceError:
                pass  # then it stays, as an orphan
            raise ArchiveBusy(
                f"another archiver has listed {entry.name} meanwhile",
                why="Two were at work at once. Of the rows that this one had at hand, none is listed twice or deleted.",
                remedy="Let the other one end, then run this one again.",
            ) from None

    def _entry(self, number: int) -> ManifestEntry:
        name = manifest.entry_name(number)
        try:
            return ManifestEntry.from_json(json.loads(self.store.read(name)))
        except (KeyError, TypeError, ValueError) as error:
            raise ArchiveDamaged(
                f"{name} is no entry of an archive: {error!r}",
                why="Something else wrote it, or a newer version of Tailrace did.",
                remedy="Put it back from a copy of the archive. Nothing was changed.",
            ) from None


def _flaw(entry: ManifestEntry, reader: FileReader) -> str:
    """What an entry says that its file does not; "" if nothing."""
    rows = 0
    created: list[int] = []
    committed: list[int] = []
    for group in reader.groups():
        rows += len(group)
        for row in group:
            created, committed = widened(created, row.created_ms), widened(committed, row.committed_ms)
    if rows != entry.rows:
        return f"{rows:,} rows can be read of {entry.rows:,}"
    for name, listed, found in (
        ("columns", entry.columns, tuple((column, oid) for column, oid in reader.columns)),
        ("created", list(entry.created), created),
        ("committed", list(entry.committed), committed),
    ):
        if listed != found:
            return f"`{name}` in {entry.name} is not what the file holds"
    return ""


def open_repository(settings: PipelineSettings) -> ArchiveRepository:
    """The archive that the settings name."""
    if settings.archive is None:
        raise ConfigError(
            f"the pipeline {settings.pipeline} has no archive",
            remedy="Name one in its settings, such as `archive: {url: 's3://cold/outbox'}`; see docs/archive.md.",
        )
    source = settings.source
    # Of MongoDB the database: collections may come and go within a pipeline's life, and a file names each document's.
    table = source.table or source.collection[0].partition(".")[0]
    store = ObjectStore(settings.archive.url, settings.archive.option_values(), settings.pipeline)
    # A document is archived whole, whatever its fields are called.
    parts = [] if source.mongo is not None else column_map(settings).parts()
    return ArchiveRepository(store, settings.pipeline, table, parts)
