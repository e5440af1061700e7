"""Tests of pgoutput.py: messages that are whole, truncated, too long, round-tripped, or arbitrary bytes.

The encoder below is written from the Postgres documentation, independently of the decoder; the literal
bytes in WHOLE check both.
"""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ProtocolError
from tailrace.sources.postgres.pgoutput import (
    UNCHANGED_TOAST,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OriginMessage,
    PgTuple,
    Relation,
    RelationColumn,
    Truncate,
    TypeMessage,
    Unchanged,
    Update,
    decode,
)


def name(text: str) -> bytes:
    return text.encode() + b"\0"


def row_data(row: PgTuple) -> bytes:
    out = struct.pack(">H", len(row))
    for value in row:
        if value is None:
            out += b"n"
        elif isinstance(value, Unchanged):
            out += b"u"
        else:
            out += b"t" + struct.pack(">I", len(value)) + value
    return out


def old_data(key: PgTuple | None, old: PgTuple | None) -> bytes:
    return (b"" if key is None else b"K" + row_data(key)) + (b"" if old is None else b"O" + row_data(old))


def encode(message: Message) -> bytes:
    match message:
        case Begin(lsn, time, xid):
            return b"B" + struct.pack(">QqI", lsn, time, xid)
        case Commit(flags, lsn, end, time):
            return b"C" + struct.pack(">BQQq", flags, lsn, end, time)
        case OriginMessage(lsn, text):
            return b"O" + struct.pack(">Q", lsn) + name(text)
        case LogicalMessage(flags, lsn, prefix, content):
            head = b"M" + struct.pack(">BQ", flags, lsn) + name(prefix)
            return head + struct.pack(">I", len(content)) + content
        case Relation(oid, namespace, text, identity, columns):
            out = b"R" + struct.pack(">I", oid) + name(namespace) + name(text)
            out += identity.encode() + struct.pack(">H", len(columns))
            for column in columns:
                out += bytes((column.flags,)) + name(column.name)
                out += struct.pack(">Ii", column.type_oid, column.type_modifier)
            return out
        case TypeMessage(oid, namespace, text):
            return b"Y" + struct.pack(">I", oid) + name(namespace) + name(text)
        case Insert(oid, row):
            return b"I" + struct.pack(">I", oid) + b"N" + row_data(row)
        case Update(oid, key, old, row):
            return b"U" + struct.pack(">I", oid) + old_data(key, old) + b"N" + row_data(row)
        case Delete(oid, key, old):
            return b"D" + struct.pack(">I", oid) + old_data(key, old)
        case Truncate(cascade, restart, oids):
            return b"T" + struct.pack(f">IB{len(oids)}I", len(oids), cascade | restart << 1, *oids)


# Bytes by hand -> message. Numbers with the top bit set show which fields are unsigned.
LSN_BYTES = b"\xf0\0\0\0\0\0\0\x10"
LSN = 0xF000_0000_0000_0010
OID_BYTES = b"\xff\0\0\x01"
OID = 0xFF00_0001
WHOLE: list[tuple[bytes, Message]] = [
    (b"B" + LSN_BYTES + b"\xff" * 8 + b"\xff\xff\xff\xfe", Begin(LSN, -1, 0xFFFF_FFFE)),
    (b"C\0" + LSN_BYTES + b"\xf0\0\0\0\0\0\0\x40" + b"\0" * 7 + b"\x07", Commit(0, LSN, LSN + 0x30, 7)),
    (b"O" + LSN_BYTES + b"upstream\0", OriginMessage(LSN, "upstream")),
    (b"M\x01" + LSN_BYTES + b"audit\0\0\0\0\x03a\0b", LogicalMessage(1, LSN, "audit", b"a\0b")),
    (b"M\0" + LSN_BYTES + b"\0\0\0\0\0", LogicalMessage(0, LSN, "", b"")),
    (
        b"R" + OID_BYTES + b"public\0outbox\0d\0\x02"
        b"\x01id\0\0\0\x0b\x86\xff\xff\xff\xff"
        b"\0gr\xc3\xb6\xc3\x9fe\0\0\0\x04\x13\0\0\0\x44",
        Relation(
            OID, "public", "outbox", "d", (RelationColumn(1, "id", 2950, -1), RelationColumn(0, "größe", 1043, 68))
        ),
    ),
    (b"R" + OID_BYTES + b"\0pg_class\0n\0\0", Relation(OID, "", "pg_class", "n", ())),
    (b"Y" + OID_BYTES + b"public\0mood\0", TypeMessage(OID, "public", "mood")),
    (
        b"I" + OID_BYTES + b"N\0\x04t\0\0\0\x02{}nut\0\0\0\0",
        Insert(OID, (b"{}", None, UNCHANGED_TOAST, b"")),
    ),
    (b"I" + OID_BYTES + b"N\0\0", Insert(OID, ())),
    (b"U" + OID_BYTES + b"N\0\x02t\0\0\0\x011u", Update(OID, None, None, (b"1", UNCHANGED_TOAST))),
    (
        b"U" + OID_BYTES + b"K\0\x02t\0\0\0\x011n" + b"N\0\x02t\0\0\0\x012n",
        Update(OID, (b"1", None), None, (b"2", None)),
    ),
    (
        b"U" + OID_BYTES + b"O\0\x01t\0\0\0\x011" + b"N\0\x01t\0\0\0\x012",
        Update(OID, None, (b"1",), (b"2",)),
    ),
    (b"D" + OID_BYTES + b"K\0\x02t\0\0\0\x011n", Delete(OID, (b"1", None), None)),
    (b"D" + OID_BYTES + b"O\0\x01t\0\0\0\x011", Delete(OID, None, (b"1",))),
    (b"T\0\0\0\x02\x03" + OID_BYTES + b"\0\0\0\x02", Truncate(True, True, (OID, 2))),
    (b"T\0\0\0\x01\x02" + OID_BYTES, Truncate(False, True, (OID,))),
]
IDS = [f"{type(message).__name__}-{number}" for number, (_, message) in enumerate(WHOLE)]
each_message = pytest.mark.parametrize(("data", "message"), WHOLE, ids=IDS)


@each_message
def test_a_whole_message_is_decoded(data: bytes, message: Message) -> None:
    decoded = decode(data)
    assert decoded == message
    assert type(decoded) is type(message)
    assert encode(message) == data


@each_message
def test_a_message_is_decoded_at_an_offset(data: bytes, message: Message) -> None:
    assert decode(b"w" * 25 + data, 25) == message


@each_message
def test_a_message_truncated_at_any_offset_is_refused(data: bytes, message: Message) -> None:
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            decode(data[:size])
        with pytest.raises(ProtocolError):
            decode(bytes(25) + data[:size], 25)


@each_message
@pytest.mark.parametrize("extra", [b"\0", b"n", b"t\0\0\0\0", bytes(300)])
def test_trailing_bytes_are_refused(data: bytes, message: Message, extra: bytes) -> None:
    with pytest.raises(ProtocolError, match="left over"):
        decode(data + extra)


@pytest.mark.parametrize("at", [1, 25, 2**31])
def test_an_offset_beyond_the_end_is_refused(at: int) -> None:
    with pytest.raises(ProtocolError, match="truncated"):
        decode(b"I", at)


@pytest.mark.parametrize("tag", sorted(set(range(256)) - set(b"BCOMRYIUDT")))
def test_an_unknown_message_is_refused(tag: int) -> None:
    with pytest.raises(ProtocolError, match="no such message in protocol version 1"):
        decode(bytes((tag,)) + bytes(40))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"I" + OID_BYTES + b"K\0\0", "no such part of an Insert: tag b'K' at offset 5"),
        (b"U" + OID_BYTES + b"X\0\0", "no such part of an Update"),
        (b"U" + OID_BYTES + b"K\0\0K\0\0", "no such part of an Update: tag b'K' at offset 8"),
        (b"D" + OID_BYTES + b"N\0\0", "no such part of a Delete"),
        (b"I" + OID_BYTES + b"N\0\x01x", "no such column kind"),
        (b"I" + OID_BYTES + b"N\0\x01b\0\0\0\x01\x01", "binary column value at offset 8"),
        (b"R" + OID_BYTES + b"s\0t\0x\0\0", "no such replica identity"),
        (b"O" + LSN_BYTES + b"upstream", "name at offset 9 has no terminator"),
        (b"Y" + OID_BYTES + b"public\0mood", "name at offset 12 has no terminator"),
    ],
)
def test_malformed_messages_are_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        decode(data)


@pytest.mark.parametrize(
    "data",
    [
        b"I" + OID_BYTES + b"N\xff\xff",
        b"I" + OID_BYTES + b"N\0\x01t\xff\xff\xff\xff1",
        b"I" + OID_BYTES + b"N\0\x02t\xff\xff\xff\xff1n",
        b"M\0" + LSN_BYTES + b"p\0\xff\xff\xff\xffx",
        b"R" + OID_BYTES + b"s\0t\0d\xff\xff",
        b"T\xff\xff\xff\xff\0" + OID_BYTES,
    ],
)
def test_wrong_sizes_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="truncated"):
        decode(data)


def test_row_values_stay_out_of_errors() -> None:
    with pytest.raises(ProtocolError) as refused:
        decode(encode(Insert(1, (b"secret", b"secret"))) + b"secret")
    assert "secret" not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_flags_are_decoded() -> None:
    assert LogicalMessage(1, 0, "", b"").transactional
    assert not LogicalMessage(0, 0, "", b"").transactional


U8 = st.integers(0, 2**8 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
VALUES = st.binary(max_size=300) | st.none() | st.just(UNCHANGED_TOAST)
ROWS = st.lists(VALUES, max_size=8).map(tuple)
COLUMNS = st.lists(st.builds(RelationColumn, U8, NAMES, U32, I32), max_size=6).map(tuple)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Begin, U64, I64, U32),
    st.builds(Commit, U8, U64, U64, I64),
    st.builds(OriginMessage, U64, NAMES),
    st.builds(LogicalMessage, U8, U64, NAMES, st.binary(max_size=50)),
    st.builds(Relation, U32, NAMES, NAMES, st.sampled_from("dnfi"), COLUMNS),
    st.builds(TypeMessage, U32, NAMES, NAMES),
    st.builds(Insert, U32, ROWS),
    st.builds(Update, U32, st.none(), st.none() | ROWS, ROWS),
    st.builds(Update, U32, ROWS, st.none(), ROWS),
    st.builds(Delete, U32, ROWS, st.none()),
    st.builds(Delete, U32, st.none(), ROWS),
    st.builds(Truncate, st.booleans(), st.booleans(), st.lists(U32, max_size=5).map(tuple)),
)


@given(MESSAGES, st.binary(max_size=30))
def test_round_trip(message: Message, before: bytes) -> None:
    decoded = decode(before + encode(message), len(before))
    assert decoded == message
    assert type(decoded) is type(message)


@given(MESSAGES, st.data())
def test_every_prefix_is_refused(message: Message, data: st.DataObject) -> None:
    encoded = encode(message)
    with pytest.raises(ProtocolError):
        decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


def decode_or_refuse(data: bytes) -> None:
    try:
        message = decode(data)
    except ProtocolError:
        return
    assert isinstance(message, Message)


@given(
    st.binary(max_size=80) | st.builds(bytes.__add__, st.sampled_from([b"%c" % c for c in b"BCOMRYIUDT"]), st.binary())
)
def test_arbitrary_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    decode_or_refuse(data)


@given(MESSAGES, st.data())
def test_one_byte_changed_is_a_message_or_a_protocol_error(message: Message, data: st.DataObject) -> None:
    encoded = bytearray(encode(message))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(U8)
    decode_or_refuse(bytes(encoded))
