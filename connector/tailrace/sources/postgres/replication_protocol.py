"""The streaming replication sub-protocol: decodes and encodes the frames inside CopyData.

The server sends XLogData (here always one pgoutput message) and keepalives; we send standby status updates. A decoder
returns a value or raises ProtocolError.

The hot path builds no frame object: it tests ``frame[0] == XLOG_DATA`` and calls
``pgoutput.decode(frame, XLOG_DATA_BODY)``, which also rejects a frame that ends inside the header. Layouts:
"Streaming Replication Protocol" in the Postgres documentation.
"""

import struct
from typing import Final, NamedTuple, TypeAlias

from tailrace.errors import ProtocolError

XLOG_DATA: Final = ord("w")
KEEPALIVE: Final = ord("k")
STATUS_UPDATE: Final = ord("r")

# The offset of the payload of an XLogData frame, behind tag, two LSNs and time.
XLOG_DATA_BODY: Final = 25

# Postgres counts microseconds from 2000-01-01 UTC, Unix from 1970.
POSTGRES_EPOCH_MS: Final = 946_684_800_000

_XLOG_HEADER: Final = struct.Struct(">xQQq")
_KEEPALIVE: Final = struct.Struct(">xQqB")
_STATUS_UPDATE: Final = struct.Struct(">BQQQqB")


class XLogHeader(NamedTuple):
    """`start` is the LSN of the payload, `wal_end` the end of the server's log, `send_time` the server's clock."""

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
    """A keepalive. `reply_requested`: the server disconnects unless it gets a status update soon."""

    wal_end: int
    send_time: int
    reply_requested: bool


Frame: TypeAlias = XLogData | Keepalive


def decode_frame(frame: bytes) -> Frame:
    """Decodes a frame of either kind; raises only ProtocolError."""
    if not frame:
        raise ProtocolError("replication frame is empty")
    if frame[0] == XLOG_DATA:
        return XLogData(*decode_xlog_header(frame), frame[XLOG_DATA_BODY:])
    if frame[0] == KEEPALIVE:
        return decode_keepalive(frame)
    raise ProtocolError(f"no such replication frame: tag {frame[:1]!r}")


def decode_xlog_header(frame: bytes) -> XLogHeader:
    """Decodes the header of an XLogData frame without copying the payload."""
    try:
        return XLogHeader._make(_XLOG_HEADER.unpack_from(frame))
    except struct.error:
        raise ProtocolError(f"XLogData is truncated ({len(frame)} of {XLOG_DATA_BODY} header bytes)") from None


def decode_keepalive(frame: bytes) -> Keepalive:
    """Decodes a keepalive frame."""
    if len(frame) != _KEEPALIVE.size:
        raise ProtocolError(f"keepalive has {len(frame)} bytes instead of {_KEEPALIVE.size}")
    wal_end, send_time, reply = _KEEPALIVE.unpack(frame)
    return Keepalive(wal_end, send_time, reply != 0)


def encode_status_update(write: int, flush: int, apply: int, clock: int, *, reply: bool = False) -> bytes:
    """Encodes a standby status update; raises ValueError if a position is not an LSN.

    The server removes the log before `flush`. `clock` is our time in Postgres microseconds. `reply` asks for a
    keepalive at once.
    """
    try:
        return _STATUS_UPDATE.pack(STATUS_UPDATE, write, flush, apply, clock, reply)
    except struct.error:
        # A bug of ours, not of the server: no ProtocolError.
        raise ValueError(
            f"status update out of range: {write=}, {flush=}, {apply=}, {clock=} must fit 64 bits"
        ) from None


def unix_ms(micros: int) -> int:
    """Converts Postgres microseconds to Unix milliseconds, rounding down."""
    return POSTGRES_EPOCH_MS + micros // 1000


def postgres_micros(ms: int) -> int:
    """Converts Unix milliseconds to Postgres microseconds."""
    return (ms - POSTGRES_EPOCH_MS) * 1000
