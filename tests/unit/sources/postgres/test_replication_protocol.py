"""Tests of replication_protocol.py: frames written by hand, truncated, too long, and arbitrary bytes."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ProtocolError
from tailrace.sources.postgres import pgoutput, replication_protocol

START = bytes.fromhex("0000 0016 B374 D848")
END = bytes.fromhex("FFFF FFFF FFFF FFFE")
TIME = bytes.fromhex("0000 0000 0000 0102")
BEFORE_2000 = bytes.fromhex("FFFF FFFF FFFF FFFF")
COMMIT = b"C" + bytes(25)
XLOG = b"w" + START + END + TIME + COMMIT
ALIVE = b"k" + END + BEFORE_2000 + b"\x01"

U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


def test_xlog_data() -> None:
    assert replication_protocol.decode_frame(XLOG) == replication_protocol.XLogData(
        0x16_B374_D848, 2**64 - 2, 0x102, COMMIT
    )
    assert replication_protocol.decode_xlog_header(XLOG) == replication_protocol.XLogHeader(
        0x16_B374_D848, 2**64 - 2, 0x102
    )


def test_xlog_data_may_be_empty() -> None:
    assert replication_protocol.decode_frame(XLOG[:25]) == replication_protocol.XLogData(
        0x16_B374_D848, 2**64 - 2, 0x102, b""
    )


def test_a_message_is_decoded_in_place() -> None:
    assert XLOG[0] == replication_protocol.XLOG_DATA
    assert pgoutput.decode(XLOG, replication_protocol.XLOG_DATA_BODY) == pgoutput.Commit(0, 0, 0, 0)


@pytest.mark.parametrize("size", range(len(XLOG)))
def test_a_short_frame_is_refused_before_its_header_is_read(size: int) -> None:
    with pytest.raises(ProtocolError, match="truncated"):
        pgoutput.decode(XLOG[:size], replication_protocol.XLOG_DATA_BODY)


@pytest.mark.parametrize("size", range(25))
def test_truncated_xlog_header(size: int) -> None:
    with pytest.raises(ProtocolError):
        replication_protocol.decode_frame(XLOG[:size])
    with pytest.raises(ProtocolError):
        replication_protocol.decode_xlog_header(XLOG[:size])


@pytest.mark.parametrize(("flag", "requested"), [(b"\0", False), (b"\x01", True), (b"\xff", True)])
def test_keepalive(flag: bytes, requested: bool) -> None:
    assert replication_protocol.decode_frame(ALIVE[:-1] + flag) == replication_protocol.Keepalive(
        2**64 - 2, -1, requested
    )


@pytest.mark.parametrize("frame", [*(ALIVE[:size] for size in range(len(ALIVE))), ALIVE + b"\0"])
def test_keepalive_of_another_size(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        replication_protocol.decode_frame(frame)
    with pytest.raises(ProtocolError, match="instead of 18"):
        replication_protocol.decode_keepalive(frame)


@pytest.mark.parametrize("tag", sorted(set(range(256)) - set(b"wk")))
def test_unknown_frame(tag: int) -> None:
    with pytest.raises(ProtocolError, match="no such replication frame"):
        replication_protocol.decode_frame(bytes((tag,)) + ALIVE[1:])


@given(st.binary(max_size=60) | st.builds(bytes.__add__, st.sampled_from([b"w", b"k"]), st.binary(max_size=60)))
def test_arbitrary_bytes_are_a_frame_or_a_protocol_error(frame: bytes) -> None:
    try:
        decoded = replication_protocol.decode_frame(frame)
    except ProtocolError:
        return
    assert isinstance(decoded, replication_protocol.XLogData | replication_protocol.Keepalive)


def test_status_update() -> None:
    encoded = replication_protocol.encode_status_update(0x16_B374_D848, 2**64 - 2, 1, -1, reply=True)
    assert encoded == b"r" + START + END + bytes(7) + b"\x01" + BEFORE_2000 + b"\x01"


@given(U64, U64, U64, I64, st.booleans())
def test_status_update_holds_what_it_was_given(write: int, flush: int, apply: int, clock: int, reply: bool) -> None:
    encoded = replication_protocol.encode_status_update(write, flush, apply, clock, reply=reply)
    assert len(encoded) == 34
    assert encoded[0] == replication_protocol.STATUS_UPDATE
    assert [int.from_bytes(encoded[at : at + 8]) for at in (1, 9, 17)] == [write, flush, apply]
    assert int.from_bytes(encoded[25:33], signed=True) == clock
    assert encoded[33] == reply


@pytest.mark.parametrize("bad", [-1, 2**64])
@pytest.mark.parametrize("place", range(3))
def test_status_update_refuses_an_invalid_lsn(place: int, bad: int) -> None:
    positions = [1, 1, 1, 0]
    positions[place] = bad
    with pytest.raises(ValueError, match="status update out of range") as refused:
        replication_protocol.encode_status_update(*positions)
    assert not isinstance(refused.value, ProtocolError)


def test_epoch() -> None:
    epoch = datetime(2000, 1, 1, tzinfo=UTC)
    assert replication_protocol.unix_ms(0) == epoch.timestamp() * 1000
    assert replication_protocol.postgres_micros(int(epoch.timestamp() * 1000)) == 0


@pytest.mark.parametrize(("micros", "ms"), [(999, 0), (1000, 1), (-1, -1), (-1000, -1), (-1001, -2)])
def test_milliseconds_are_rounded_down(micros: int, ms: int) -> None:
    assert replication_protocol.unix_ms(micros) == replication_protocol.POSTGRES_EPOCH_MS + ms


@given(st.integers(-(2**53), 2**53))
def test_time_round_trip(ms: int) -> None:
    assert replication_protocol.unix_ms(replication_protocol.postgres_micros(ms)) == ms
