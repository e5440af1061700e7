"""Finds the old documents that the pipeline has passed, and those inserted behind its position."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tailrace.event import Row
from tailrace.positions.mongo import TokenPosition
from tailrace.sources.mongo.documents import Document, milliseconds
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.mongo.snapshot import CollectionReader
from tailrace.sources.mongo.source import MongoSource
from tailrace.temporary_table import DiskSet
from tailrace.wakeup import Wakeup

PAGE_ROWS, PAGE_BYTES = 1000, 4 << 20


class _Reader(CollectionReader):
    """Records which documents it has returned."""

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401
        timed_by: str,
        before_ms: int | None,
        only: Document | None,
        **named: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*arguments, **named)
        if only is not None:
            self._selected = {"$and": [self._selected, only]} if self._selected else only
        self._timed_by = timed_by
        self._before_ms = before_ms
        self.taken: list[tuple[str, bytes]] = []

    def learnt(self) -> DiskSet:
        """Returns the ids inserted behind the starting position so far."""
        self._new_snapshot()
        assert self._later is not None  # noqa: S101 - just learnt
        return self._later

    def _row(self, document: Document, key: bytes) -> Row | None:
        # Only by the field: a document without a time there, or with a later one, is not old.
        if self._before_ms is not None:
            when = milliseconds(document.get(self._timed_by))
            if when is None or when >= self._before_ms:
                return None
        self.taken.append((self._collection, key))
        return super()._row(document, key)


class OldDocuments(MongoSource):
    """The old documents that the pipeline has passed."""

    def __init__(
        self, options: MongoOptions, timestamp: str, before_ms: int | None, only: Document | None = None
    ) -> None:
        """`before_ms` None: of any time; `only` is a filter that the documents must match."""
        super().__init__(replace(options, start_where=""), wakeup=Wakeup())
        self._timed_by = timestamp
        self._before_ms = before_ms
        self._only = only
        self._reader: _Reader | None = None

    def taken(self) -> list[tuple[str, bytes]] | None:
        """Returns the next documents by collection and id; None at the end, where the stream would begin."""
        assert self._reader is not None  # noqa: S101 - opened first
        _, position = self._reader.read(PAGE_ROWS, PAGE_BYTES)
        taken, self._reader.taken = self._reader.taken, []
        return None if position is None else taken

    def later(self) -> DiskSet:
        """Returns the ids that the pipeline has not passed."""
        assert self._reader is not None  # noqa: S101 - opened first
        return self._reader.learnt()

    def _open_collection(self, start: TokenPosition, *, fresh: bool) -> None:
        self._collection = self._reader = _Reader(
            self._client,
            self._options.watched,
            self._documents,
            order_by=self._options.order_by,
            timestamp=self._options.timestamp,
            start=start,
            fresh=fresh,
            timed_by=self._timed_by,
            before_ms=self._before_ms,
            only=self._only,
        )
