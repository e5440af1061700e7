"""Finds the rows that the log has since a position, to distinguish them from changed rows in a resumed first read.

A row's transaction id shows that it was written after the snapshot of the first read, but not whether it was inserted
(then the stream sends it) or only updated (then nothing else sends it). The log is read through a temporary copy of the
slot. Only hashes of the keys are kept, in a temporary file.
"""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import suppress
from dataclasses import replace

from tailrace.errors import SourceError
from tailrace.event import Row
from tailrace.positions.postgres import LsnPosition
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.table_rescan import LogRescan
from tailrace.temporary_table import DiskSet
from tailrace.wakeup import Wakeup

ROWS, BYTES = 2000, 8 << 20
WAIT_SECONDS = 0.2
DIGEST_BYTES = 16


class InsertedRows:
    """The rows inserted between the start of a slot and an LSN."""

    def __init__(self, options: PostgresOptions, start: LsnPosition, end: int) -> None:
        """Reads the log from `start` up to the LSN `end`."""
        # Columns of the event are always in the log; others may be missing from the publication.
        self._names = [name for name in options.order_by if name in options.event_columns] or [options.id_column]
        self._keys = DiskSet(_no_room)
        wakeup = Wakeup()
        log = _Log(options, name="first", wakeup=wakeup)
        try:
            log.open(replace(start, table_read=None, moves_before=0), lambda _: None)
            log.flush()
            position = start
            while position.lsn < end:
                chunk = log.read(ROWS, BYTES, WAIT_SECONDS)
                self._keys.add(self._key(row) for row in chunk.rows)
                assert isinstance(chunk.position, LsnPosition)  # noqa: S101 - of this source
                position = chunk.position
        finally:
            log.close()
            wakeup.close()

    def __contains__(self, row: object) -> bool:
        return isinstance(row, Row) and self._key(row) in self._keys

    def _key(self, row: Row) -> bytes:
        at = {column.name: index for index, column in enumerate(row.columns)}
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for name in self._names:
            value = row.values[at[name]]
            digest.update(b"\0" if value is None else b"%d:%b" % (len(value), value))
        return digest.digest()


class _Log(LogRescan):
    def flush(self) -> None:
        """Writes a message to the log, which makes the server flush and send everything before it at once."""
        with suppress(SourceError):  # a role that may not write waits until the server does so by itself
            self._control.query("SELECT pg_logical_emit_message(true, 'tailrace', 'first read')")


def _no_room(error: sqlite3.Error) -> SourceError:
    return SourceError(
        f"the keys of new rows cannot be written to a temporary file: {error}",
        remedy="Free space in the folder for temporary files (TMPDIR), then start again.",
    )
