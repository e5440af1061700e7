"""Archives outbox collections of MongoDB.

A file stores the document itself, byte for byte (BSON), next to the fields of the event. So a deleted document can be
put back, and a replay decodes it as the stream did. A document is deleted only if it is, byte for byte, what the file
has. Both are compared in one transaction, which MongoDB aborts if anything changes meanwhile. A document that was put
back is identical but new to the pipeline; the change stream shows that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from bson import json_util
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from pymongo import ReadPreference
from pymongo.client_session import ClientSession
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from tailrace.archive.backend import Candidate, PurgeResult
from tailrace.archive.format import ArchivedRow, FileSchema, require_nameable
from tailrace.archive.manifest import ManifestEntry
from tailrace.archive.mongo_published import OldDocuments
from tailrace.errors import AccessRefused, ConfigError
from tailrace.event import TEXT, Column, Columns, Row
from tailrace.positions.base import Position
from tailrace.sources.mongo.client import connect, translated_errors
from tailrace.sources.mongo.decoding import concatenated, decoded, framed, id_of
from tailrace.sources.mongo.documents import CODEC, STRICT, Document, DocumentConverter, milliseconds
from tailrace.sources.mongo.options import MongoOptions

COLLECTION, DOCUMENT = "tailrace_collection", "tailrace_document"
BYTEA = 17
DIGEST_BYTES = 16

OnDeleted = Callable[[ClientSession, str, Sequence[bytes]], None]
"""Called in the transaction of each deletion with its collection and the ids of the deleted documents (BSON)."""


class MongoArchiveOutbox:
    """Implements `ArchiveOutbox`."""

    PURPOSE = "archive"
    INSTEAD = "or archive with --keep. Archived rows are listed, and a later run deletes them"
    """What else can be done where documents cannot be deleted."""

    def __init__(self, options: MongoOptions, pipeline: str) -> None:
        # Another name, so that it is not counted as a connector.
        self._options = replace(options, app_name=f"{options.app_name} ({self.PURPOSE})", create=False, adopt=False)
        self._timestamp = self._time_field()
        self._client = connect(options.uri, app_name=self._options.app_name, timeout=options.link_timeout)
        self._documents = DocumentConverter.of(options)
        names = [*options.required, *options.optional]
        require_nameable(f"{options.database}.{', '.join(options.collections)}", names)
        columns = (*(Column(name, TEXT) for name in names), Column(COLLECTION, TEXT), Column(DOCUMENT, BYTEA))
        self._passed: OldDocuments | None = None
        self.shape = FileSchema(pipeline, options.database, columns, frozenset({DOCUMENT}))
        self.order_by = options.order_by

    def require_deletable(self) -> None:
        """Nothing to check: the change stream only delivers inserts, and a missing privilege shows with the
        first page.
        """

    def candidates(self, start: Position, before_ms: int | None, only: Document | None = None) -> Iterator[Candidate]:
        """`before_ms` None: of any time; `only` is a filter that the documents must match."""
        source = OldDocuments(self._options, self._timestamp, before_ms, only)
        try:
            source.open(start, lambda _: None)
            while (taken := source.taken()) is not None:
                yield from self._fetched(taken, before_ms)
        finally:
            source.close()

    def counts(self, entries: Sequence[ManifestEntry]) -> dict[int, int]:
        found: dict[int, int] = {}
        with translated_errors("counting old documents"):
            oldest = self._oldest_ms()
            for entry in entries:
                if oldest is None or entry.created.last_ms < oldest:
                    continue
                span = {"$gte": DatetimeMS(entry.created.first_ms), "$lte": DatetimeMS(entry.created.last_ms)}
                found[entry.number] = sum(
                    self._collection(name).count_documents({self._timestamp: span})
                    for name in self._options.collections
                )
        return found

    def row(self, columns: Columns, kept: ArchivedRow, position: str) -> Row:
        return document_row(self._documents, columns, kept, position)

    def name(self, columns: Columns, kept: ArchivedRow) -> bytes:
        collection, raw = _parts(columns, kept)
        return hashlib.blake2b(collection.encode() + b"\0" + id_of(raw), digest_size=DIGEST_BYTES).digest()

    def present(self, columns: Columns, rows: Sequence[ArchivedRow]) -> int:
        with translated_errors("counting archived documents"):
            return sum(
                self._collection(name).count_documents(_among(those))
                for name, those in _by_collection(columns, rows).items()
            )

    def look(self, columns: Columns, rows: Sequence[ArchivedRow], start: Position) -> PurgeResult:
        self._follow(start)
        done = PurgeResult(0)
        with translated_errors("comparing archived documents"):
            for collection, wanted in _by_collection(columns, rows).items():
                same, result = self._compare(collection, wanted)
                done = done.plus(result._replace(deleted=len(same)))
        return done

    def purge(
        self,
        columns: Columns,
        rows: Sequence[ArchivedRow],
        start: Position,
        on_deleted: OnDeleted = lambda *_: None,
    ) -> PurgeResult:
        self._follow(start)
        done = PurgeResult(0)
        with self._deleting() as session:
            for collection, wanted in _by_collection(columns, rows).items():
                result = session.with_transaction(
                    lambda inside, name=collection, those=wanted: self._purged(inside, name, those, on_deleted),  # type: ignore[misc]
                    read_concern=ReadConcern("snapshot"),
                    write_concern=WriteConcern("majority"),
                    read_preference=ReadPreference.PRIMARY,
                )
                done = done.plus(result)
        return done

    def close(self) -> None:
        if self._passed is not None:
            self._passed.close()
        self._client.close()

    def _time_field(self) -> str:
        if self._options.timestamp is None:
            raise ConfigError(
                "the outbox has no field with the time of a document, so old documents cannot be found",
                remedy="Name the field in outbox.columns.timestamp.",
            )
        return self._options.timestamp

    def _follow(self, start: Position) -> None:
        """Checks that `start` is a position of this change stream, before anything is deleted."""
        if self._passed is None:
            self._passed = OldDocuments(self._options, self._timestamp, 0)
            self._passed.open(start, lambda _: None)
            self._passed.later()

    @contextmanager
    def _deleting(self) -> Iterator[ClientSession]:
        try:
            with translated_errors("deleting archived documents"), self._client.start_session() as session:
                yield session
        except AccessRefused as error:
            raise AccessRefused(
                error.what,
                why=error.why,
                remedy=f"Grant the user the action remove on the outbox collections; {self.INSTEAD}.",
            ) from None

    def _oldest_ms(self) -> int | None:
        """Returns the oldest time. In most runs it is later than everything archived, and nothing need be counted."""
        # An array of dates matches the type as well, and would hide later documents.
        timed = {self._timestamp: {"$type": "date", "$not": {"$type": "array"}}}
        asked: Any = {"projection": {self._timestamp: 1, "_id": 0}, "sort": [(self._timestamp, 1)]}
        found = [self._collection(name).find_one(timed, **asked) for name in self._options.collections]
        times = [milliseconds(document.get(self._timestamp)) for document in found if document]
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def _purged(
        self, session: ClientSession, collection: str, wanted: dict[bytes, bytes], on_deleted: OnDeleted
    ) -> PurgeResult:
        same, result = self._compare(collection, wanted, session)
        if same:
            self._collection(collection).delete_many(_among(same), session=session)
            on_deleted(session, collection, same)
        return result._replace(deleted=len(same))

    def _compare(
        self, collection: str, wanted: dict[bytes, bytes], session: ClientSession | None = None
    ) -> tuple[list[bytes], PurgeResult]:
        """Returns the documents that may be deleted, and counts those that may not."""
        assert self._passed is not None  # noqa: S101 - followed first
        found = {id_of(raw): raw for raw in self._raw(collection, _among(wanted), session)}
        same = [key for key, raw in found.items() if wanted.get(key) == raw]
        # Read after the documents, so that everything put back before is known.
        later = self._passed.later() if same else ()
        passed = [key for key in same if key not in later]
        return passed, PurgeResult(0, len(found) - len(same), len(same) - len(passed))

    def _fetched(self, taken: list[tuple[str, bytes]], before_ms: int | None) -> Iterator[Candidate]:
        """Yields the documents as they are now, without those that are gone."""
        for collection in dict.fromkeys(name for name, _ in taken):
            keys = [key for name, key in taken if name == collection]
            with translated_errors("reading old documents"):
                found = {id_of(raw): raw for raw in self._raw(collection, _among(keys))}
            for raw in (found[key] for key in keys if key in found):
                document = decoded(raw)
                created_ms = milliseconds(document.get(self._timestamp))
                if before_ms is None or (created_ms is not None and created_ms < before_ms):
                    yield self._candidate(collection, raw, document, created_ms or 0)

    def _candidate(self, collection: str, raw: bytes, document: Document, created_ms: int) -> Candidate:
        row = self._documents.row(document, "", created_ms)
        result = {column.name: value for column, value in zip(row.columns, row.values, strict=True)}
        # For people; the document itself is what counts.
        shown = [_shown(result.get(column.name)) for column in self.shape.columns[:-2]]
        kept = ArchivedRow((*shown, collection.encode(), raw), "", created_ms, created_ms)
        order = tuple(json_util.dumps(document.get(name), json_options=STRICT) for name in self.order_by)
        return Candidate(row, kept, order)

    def _raw(self, collection: str, asked: RawBSONDocument, session: ClientSession | None = None) -> Iterator[bytes]:
        batches: Any = self._collection(collection, in_transaction=session is not None).find_raw_batches(
            asked, session=session
        )
        for batch in batches:
            yield from concatenated(batch)

    def _collection(self, name: str, *, in_transaction: bool = True) -> Any:  # noqa: ANN401 - of documents
        """Reads from the primary in any case. Inside a transaction, its own read concern applies."""
        concern = None if in_transaction else ReadConcern("majority")
        database = self._client.get_database(
            self._options.database, codec_options=CODEC, read_preference=ReadPreference.PRIMARY, read_concern=concern
        )
        return database[name]


def document_row(documents: DocumentConverter, columns: Columns, kept: ArchivedRow, position: str) -> Row:
    """Returns the row that the stream would deliver for an archived document."""
    return documents.row(decoded(_parts(columns, kept)[1]), position, kept.committed_ms)


def _parts(columns: Columns, kept: ArchivedRow) -> tuple[str, bytes]:
    """Returns the last two columns of every file of documents."""
    assert [column.name for column in columns[-2:]] == [COLLECTION, DOCUMENT]  # noqa: S101 - the repository is one outbox's
    return (kept.values[-2] or b"").decode(), kept.values[-1] or b""


def _by_collection(columns: Columns, rows: Sequence[ArchivedRow]) -> dict[str, dict[bytes, bytes]]:
    """Groups documents by collection and id."""
    found: dict[str, dict[bytes, bytes]] = {}
    for row in rows:
        collection, raw = _parts(columns, row)
        found.setdefault(collection, {})[id_of(raw)] = raw
    return found


def _among(keys: Iterable[bytes]) -> RawBSONDocument:
    """Returns the query for documents with these ids, byte for byte, since decoding may change an id."""
    head = 5  # the length of the document and the type of the field
    each = [key[4:head] + b"%d\0" % number + key[head + len(b"_id\0") : -1] for number, key in enumerate(keys)]
    return RawBSONDocument(framed(b"\x03_id\0" + framed(b"\x04$in\0" + framed(b"".join(each)))))


def _shown(value: bytes | None) -> bytes | None:
    return None if value is None else value.decode("utf-8", "backslashreplace").encode()
