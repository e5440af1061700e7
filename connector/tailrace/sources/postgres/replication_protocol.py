"""The streaming replication sub-protocol: what the frames inside CopyData mean. Pure: bytes in, values out.

The server sends XLogData (a piece of the log: here one pgoutput message) and keepalives; we send standby
status updates, which are the only way a position goes back. Same contract as pgoutput.py: a decoder returns a
value or raises ProtocolError. No clock here: whoever sends a status update brings the time.

The hot path needs no frame object: ``frame[0] == XLOG_DATA``, then
``pgoutput.decode(frame, XLOG_DATA_BODY)``, which also refuses a frame that ends inside the header. Layouts:
"Streaming Replication Protocol" in the Postgres documentation.
"""

import struct
from typing import Final, NamedTuple, TypeAlias

from tailrace.errors import ProtocolError

XLOG_DATA: Final = ord("w")
KEEPALIVE: Final = ord("k")
STATUS_UPDATE: Final = ord("r")

# Where the payload of an XLogData frame starts: tag, two LSNs, time.
XLOG_DATA_BODY: Final = 25

# Postgres counts microseconds from 2000-01-01 UTC; Kafka and the rest of the world count from 1970.
POSTGRES_EPOCH_MS: Final = 946_684_800_000

_XLOG_HEADER: Final = struct.Struct(">xQQq")
_KEEPALIVE: Final = struct.Struct(">xQqB")
_STATUS_UPDATE: Final = struct.Struct(">BQQQqB")


class XLogHeader(NamedTuple):
    """`start` is the payload's place in the log, `wal_end` the server's end of log, `send_time` its clock."""

    start: int
    wal_end: int
    send_time: int


class XLogData(NamedTuple):
    """A whole XLogData frame, for callers off the hot path: the payload is a copy."""

    start: int
    wal_end: int
    send_time: int
    payload: bytes


class Keepalive(NamedTuple):
    """A sign of life. `reply_requested` means: send a status update soon or be disconnected."""

    wal_end: int
    send_time: int
    reply_requested: bool


Frame: TypeAlias = XLogData | Keepalive


def decode_frame(frame: bytes) -> Frame:
    """Decode either frame that a server sends; raises ProtocolError and nothing else."""
    if not frame:
        raise ProtocolError("replication frame is empty")
    if frame[0] == XLOG_DATA:
        return XLogData(*decode_xlog_header(frame), frame[XLOG_DATA_BODY:])
    if frame[0] == KEEPALIVE:
        return decode_keepalive(frame)
    raise ProtocolError(f"no such replication frame: tag {frame[:1]!r}")


def decode_xlog_header(frame: bytes) -> XLogHeader:
    """Decode the header of a frame whose tag is XLOG_DATA; the payload is left where it is."""
    try:
        return XLogHeader._make(_XLOG_HEADER.unpack_from(frame))
    except struct.error:
        raise ProtocolError(f"XLogData is truncated ({len(frame)} of {XLOG_DATA_BODY} header bytes)") from None


def decode_keepalive(frame: bytes) -> Keepalive:
    """Decode a frame whose tag is KEEPALIVE."""
    if len(frame) != _KEEPALIVE.size:
        raise ProtocolError(f"keepalive has {len(frame)} bytes instead of {_KEEPALIVE.size}")
    wal_end, send_time, reply = _KEEPALIVE.unpack(frame)
    return Keepalive(wal_end, send_time, reply != 0)


def encode_status_update(write: int, flush: int, apply: int, clock: int, *, reply: bool = False) -> bytes:
    """Encode a standby status update; ValueError when a position is not an LSN.

    `flush` is the one that matters: the server lets go of the log behind it, for good. `clock` is our time in
    Postgres microseconds. `reply` asks the server for a keepalive at once.
    """
    try:
        return _STATUS_UPDATE.pack(STATUS_UPDATE, write, flush, apply, clock, reply)
    except struct.error:
        # Our own mistake and not the peer's, hence no ProtocolError.
        raise ValueError(
            f"status update out of range: {write=}, {flush=}, {apply=}, {clock=} must fit 64 bits"
        ) from None


def unix_ms(micros: int) -> int:
    """Postgres microseconds to Unix milliseconds, rounded down also before 2000."""
    return POSTGRES_EPOCH_MS + micros // 1000


def postgres_micros(ms: int) -> int:
    """Unix milliseconds to Postgres microseconds."""
    return (ms - POSTGRES_EPOCH_MS) * 1000
