"""Decodes pgoutput, the messages of Postgres logical replication, protocol version 1.

`decode` takes one whole message and returns it, or raises ProtocolError: for truncated input, trailing bytes, an
unknown tag, or a name without terminator or not in UTF-8. It never allocates memory by a size that the input only
claims. Error texts contain tags and offsets, never row values.

LSNs, OIDs and transaction ids are unsigned; times are signed microseconds since 2000-01-01. Names and text are in the
session's client_encoding, which must be UTF8. Layouts: "Logical Replication Message Formats" in the Postgres
documentation.
"""

import struct
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from tailrace.errors import ProtocolError


class Unchanged(Enum):
    """The type of UNCHANGED_TOAST; an enum so that ``is UNCHANGED_TOAST`` narrows for type checkers."""

    TOAST = "u"


# An out-of-line value that an UPDATE did not change: the server does not send it, which is not the same as NULL.
UNCHANGED_TOAST: Final = Unchanged.TOAST

# Text values stay bytes: most are passed on unchanged or parsed as JSON.
Value: TypeAlias = bytes | Unchanged | None
PgTuple: TypeAlias = tuple[Value, ...]


class Begin(NamedTuple):
    """The start of a transaction. Only committed ones are sent, so LSN and time of the commit are known."""

    final_lsn: int
    commit_time: int
    xid: int


class Commit(NamedTuple):
    """The end of a transaction. Confirm `end_lsn`: after confirming `commit_lsn` it would be sent again."""

    flags: int
    commit_lsn: int
    end_lsn: int
    commit_time: int


class OriginMessage(NamedTuple):
    """The replication origin from which the transaction came to this server."""

    commit_lsn: int
    name: str


class LogicalMessage(NamedTuple):
    """A message written with pg_logical_emit_message()."""

    flags: int
    lsn: int
    prefix: str
    content: bytes

    @property
    def transactional(self) -> bool:
        """False if it was sent at once, even if its transaction was rolled back."""
        return bool(self.flags & 1)


class RelationColumn(NamedTuple):
    flags: int
    name: str
    type_oid: int
    type_modifier: int


class Relation(NamedTuple):
    """The columns of a table, sent before its first row and again after each change.

    `namespace` is empty for pg_catalog. `replica_identity` is d(efault), n(othing), f(ull) or i(ndex).
    """

    relation_id: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]


class TypeMessage(NamedTuple):
    """The name of a type that is not built in; `namespace` is empty for pg_catalog."""

    type_oid: int
    namespace: str
    name: str


class Insert(NamedTuple):
    relation_id: int
    row: PgTuple


class Update(NamedTuple):
    """`key` is set if key columns changed, `old` with replica identity full; at most one of the two."""

    relation_id: int
    key: PgTuple | None
    old: PgTuple | None
    row: PgTuple


class Delete(NamedTuple):
    """Exactly one is set: `key` (NULL in all other columns) or `old` (replica identity full)."""

    relation_id: int
    key: PgTuple | None
    old: PgTuple | None


class Truncate(NamedTuple):
    cascade: bool
    restart_identity: bool
    relation_ids: tuple[int, ...]


Message: TypeAlias = (
    Begin | Commit | OriginMessage | LogicalMessage | Relation | TypeMessage | Insert | Update | Delete | Truncate
)

INSERT: Final = ord("I")
_KEY, _OLD, _NEW = b"KON"
_TEXT, _NULL, _TOAST, _BINARY = b"tnub"

# Bound methods of compiled structs, named after what they read. "x" skips a tag that is known already.
_insert_head = struct.Struct(">xIBH").unpack_from
_begin = struct.Struct(">xQqI").unpack_from
_commit = struct.Struct(">xBQQq").unpack_from
_message_head = struct.Struct(">xBQ").unpack_from
_relation_tail = struct.Struct(">BH").unpack_from
_column_tail = struct.Struct(">Ii").unpack_from
_row_head = struct.Struct(">IB").unpack_from
_truncate_head = struct.Struct(">xIB").unpack_from
_u64 = struct.Struct(">Q").unpack_from
_u32 = struct.Struct(">I").unpack_from
_u16 = struct.Struct(">H").unpack_from

# The generated __new__ of a NamedTuple is a Python function; avoiding it saves a tenth of the time of an Insert.
_new_tuple = tuple.__new__


def decode(buf: bytes, at: int = 0) -> Message:
    """Decodes the message in `buf` from offset `at` (not negative) to the end.

    The offset avoids a copy of a message inside a CopyData frame. `buf` must be bytes, not a memoryview: values are
    slices of it and outlive the driver's buffer. Raises only ProtocolError, with offsets from the start of `buf`.
    """
    # Fields are read without bounds checks: an index or struct past the end raises, and a slice past the end is short
    # but moves the offset beyond the end, which the comparison below catches. So one check and one handler replace a
    # check per field.
    message: Message
    try:
        tag = buf[at]
        if tag == INSERT:
            return _new_tuple(Insert, decode_insert(buf, at))
        reader = _READERS.get(tag)
        if reader is None:
            raise _unexpected(tag, at, "message in protocol version 1")
        message, end = reader(buf, at)
    except (IndexError, struct.error):
        raise _truncated(buf) from None
    if end != len(buf):
        raise _misfit(buf, end)
    return message


def decode_insert(buf: bytes, at: int) -> tuple[int, PgTuple]:
    """Decodes an Insert, recognised by its tag, without building a message object: nearly every message is one."""
    try:
        relation_id, part, count = _insert_head(buf, at)
        if part != _NEW:
            raise _unexpected(part, at + 5, "part of an Insert")
        row, end = _read_row(buf, at + 8, count)
    except (IndexError, struct.error):
        raise _truncated(buf) from None
    if end != len(buf):
        raise _misfit(buf, end)
    return relation_id, row


def _truncated(buf: bytes) -> ProtocolError:
    return ProtocolError(f"pgoutput message is truncated at offset {len(buf)}")


def _misfit(buf: bytes, end: int) -> ProtocolError:
    what = "is truncated" if end > len(buf) else "has bytes left over"
    return ProtocolError(f"pgoutput message {what} (end expected at {end}, found at {len(buf)})")


def _unexpected(tag: int, offset: int, where: str) -> ProtocolError:
    return ProtocolError(f"no such {where}: tag {bytes((tag,))!r} at offset {offset}")


def _read_row(buf: bytes, pos: int, count: int) -> tuple[PgTuple, int]:
    """Reads `count` column values; the hottest loop of the connector."""
    values: list[Value] = []
    for _ in range(count):
        kind = buf[pos]
        if kind == _TEXT:
            (size,) = _u32(buf, pos + 1)
            start = pos + 5
            pos = start + size
            values.append(buf[start:pos])
        elif kind == _NULL:
            values.append(None)
            pos += 1
        elif kind == _TOAST:
            values.append(UNCHANGED_TOAST)
            pos += 1
        elif kind == _BINARY:
            # Rejected: as bytes it could not be distinguished from text.
            raise ProtocolError(f"binary column value at offset {pos}: the binary option must stay off")
        else:
            raise _unexpected(kind, pos, "column kind")
    return tuple(values), pos


def _read_counted_row(buf: bytes, pos: int) -> tuple[PgTuple, int]:
    (count,) = _u16(buf, pos)
    return _read_row(buf, pos + 2, count)


def _read_name(buf: bytes, pos: int) -> tuple[str, int]:
    end = buf.find(0, pos)
    if end < 0:
        raise ProtocolError(f"name at offset {pos} has no terminator")
    # A name need not be UTF-8 if the text is converted here: see `encoding.ServerText.name`.
    return str(buf[pos:end], "utf-8", "surrogateescape"), end + 1


def _read_origin(buf: bytes, at: int) -> tuple[OriginMessage, int]:
    (lsn,) = _u64(buf, at + 1)
    name, end = _read_name(buf, at + 9)
    return OriginMessage(lsn, name), end


def _read_logical_message(buf: bytes, at: int) -> tuple[LogicalMessage, int]:
    flags, lsn = _message_head(buf, at)
    prefix, pos = _read_name(buf, at + 10)
    (size,) = _u32(buf, pos)
    end = pos + 4 + size
    return LogicalMessage(flags, lsn, prefix, buf[pos + 4 : end]), end


def _read_relation(buf: bytes, at: int) -> tuple[Relation, int]:
    (relation_id,) = _u32(buf, at + 1)
    namespace, pos = _read_name(buf, at + 5)
    name, pos = _read_name(buf, pos)
    identity, count = _relation_tail(buf, pos)
    if identity not in b"dnfi":
        raise _unexpected(identity, pos, "replica identity")
    pos += 3
    columns = []
    for _ in range(count):
        flags = buf[pos]
        column, pos = _read_name(buf, pos + 1)
        type_oid, type_modifier = _column_tail(buf, pos)
        columns.append(RelationColumn(flags, column, type_oid, type_modifier))
        pos += 8
    return Relation(relation_id, namespace, name, chr(identity), tuple(columns)), pos


def _read_type(buf: bytes, at: int) -> tuple[TypeMessage, int]:
    (type_oid,) = _u32(buf, at + 1)
    namespace, pos = _read_name(buf, at + 5)
    name, end = _read_name(buf, pos)
    return TypeMessage(type_oid, namespace, name), end


def _read_update(buf: bytes, at: int) -> tuple[Update, int]:
    relation_id, part = _row_head(buf, at + 1)
    pos = at + 5
    key = old = None
    if part == _KEY:
        key, pos = _read_counted_row(buf, pos + 1)
    elif part == _OLD:
        old, pos = _read_counted_row(buf, pos + 1)
    if buf[pos] != _NEW:
        raise _unexpected(buf[pos], pos, "part of an Update")
    row, end = _read_counted_row(buf, pos + 1)
    return Update(relation_id, key, old, row), end


def _read_delete(buf: bytes, at: int) -> tuple[Delete, int]:
    relation_id, part = _row_head(buf, at + 1)
    if part not in (_KEY, _OLD):
        raise _unexpected(part, at + 5, "part of a Delete")
    row, end = _read_counted_row(buf, at + 6)
    return (Delete(relation_id, row, None) if part == _KEY else Delete(relation_id, None, row)), end


def _read_truncate(buf: bytes, at: int) -> tuple[Truncate, int]:
    count, options = _truncate_head(buf, at)
    # unpack_from rejects a wrong count before anything of that size is allocated.
    relation_ids = struct.unpack_from(f">{count}I", buf, at + 6)
    return Truncate(bool(options & 1), bool(options & 2), relation_ids), at + 6 + 4 * count


_READERS: Final[dict[int, Callable[[bytes, int], tuple[Message, int]]]] = {
    ord("B"): lambda buf, at: (_new_tuple(Begin, _begin(buf, at)), at + 21),
    ord("C"): lambda buf, at: (_new_tuple(Commit, _commit(buf, at)), at + 26),
    ord("O"): _read_origin,
    ord("M"): _read_logical_message,
    ord("R"): _read_relation,
    ord("Y"): _read_type,
    ord("U"): _read_update,
    ord("D"): _read_delete,
    ord("T"): _read_truncate,
}
