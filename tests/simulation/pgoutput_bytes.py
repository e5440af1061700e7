"""Bytes as the walsender sends them: replication frames with pgoutput messages of protocol version 1."""

from __future__ import annotations

import struct
from collections.abc import Sequence

OUTBOX = 16384
COLUMNS = ("id", "aggregatetype", "aggregateid", "type", "payload")
TEXT_OID = 25


def micros(now: float) -> int:
    """The simulated time as Postgres microseconds."""
    return 700_000_000_000_000 + int(now * 1_000_000)


def begin(commit_lsn: int, xid: int) -> bytes:
    return b"B" + struct.pack(">QqI", commit_lsn, 700_000_000_000_000 + xid, xid)


def commit(commit_lsn: int, end_lsn: int) -> bytes:
    return b"C" + struct.pack(">BQQq", 0, commit_lsn, end_lsn, 700_000_000_000_000)


def relation(oid: int = OUTBOX, name: str = "outbox", columns: Sequence[str] = COLUMNS) -> bytes:
    head = b"R" + struct.pack(">I", oid) + b"public\0" + name.encode() + b"\0d"
    body = b"".join(b"\0" + column.encode() + b"\0" + struct.pack(">Ii", TEXT_OID, -1) for column in columns)
    return head + struct.pack(">H", len(columns)) + body


def insert(row: str, oid: int = OUTBOX) -> bytes:
    """A row of the outbox; the part of its id before the dash is the key of the event."""
    values = (row, "order", row.partition("-")[0], "OrderPlaced", f'{{"id":"{row}"}}')
    cells = b"".join(b"t" + struct.pack(">I", len(value)) + value.encode() for value in values)
    return b"I" + struct.pack(">I", oid) + b"N" + struct.pack(">H", len(values)) + cells


def xlog_data(start: int, end: int, clock: int, message: bytes) -> bytes:
    return b"w" + struct.pack(">QQq", start, end, clock) + message


def keepalive(end: int, clock: int, *, reply: bool) -> bytes:
    return b"k" + struct.pack(">QqB", end, clock, reply)
