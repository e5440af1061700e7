"""Keys and values of the store's own records, in the family `tailrace`.

A key is a letter for its kind, the projection's name with its length, and the rest. Numbers in keys are big-endian with
the sign bit flipped, so that the keys are in the order of the numbers. Values are MessagePack.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tailrace.projections.core.store import EntityState, EventOutcome, Marker, Partition, WaitingEvent

NEVER_PRUNED = (EventOutcome.DEAD, EventOutcome.WAITING)


FORMAT = b"f"
"""The key of the folder's format, one per folder."""
VERSION = 1


class FolderFormat(NamedTuple):
    """The version of keys and values, and the column family of the undo log if there is one."""

    version: int
    undo_family: str | None


class OffsetRecord(NamedTuple):
    """The next offset of a partition (None after a reset), and the highest one that it ever had."""

    next: int | None
    furthest: int


class MarkerRecord(NamedTuple):
    """A marker with its outcome."""

    entity: str | None
    version: int | None
    time_ms: int
    outcome: EventOutcome


encode = msgspec.msgpack.Encoder().encode
decode_format = msgspec.msgpack.Decoder(FolderFormat).decode
decode_number = msgspec.msgpack.Decoder(int).decode
decode_offset = msgspec.msgpack.Decoder(OffsetRecord).decode
decode_marker = msgspec.msgpack.Decoder(MarkerRecord).decode
decode_entity = msgspec.msgpack.Decoder(EntityState).decode
decode_waiting = msgspec.msgpack.Decoder(WaitingEvent).decode
decode_names = msgspec.msgpack.Decoder(list[str]).decode


def number(value: int) -> bytes:
    return (value + (1 << 63)).to_bytes(8, "big")


def _sized(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(4, "big") + data


class ProjectionKeys:
    """The keys of one projection."""

    def __init__(self, projection: str) -> None:
        name = _sized(projection)
        self.offsets = b"o" + name
        self.horizon = b"h" + name
        self.marker_times = b"t" + name
        self._markers = b"m" + name
        self._entities = b"e" + name
        self._waiting = b"w" + name
        self._waiting_by_entity = b"x" + name
        self._waiting_since = b"s" + name

    def offset(self, partition: Partition) -> bytes:
        return self.offsets + number(partition.number) + partition.topic.encode()

    def partition(self, offset_key: bytes) -> Partition:
        rest = offset_key[len(self.offsets) :]
        return Partition(rest[8:].decode(), int.from_bytes(rest[:8], "big") - (1 << 63))

    def marker(self, event_id: str) -> bytes:
        return self._markers + event_id.encode()

    def marker_time(self, event_id: str, time_ms: int) -> bytes:
        """The index of markers that may be pruned."""
        return self.marker_times + number(time_ms) + event_id.encode()

    def pruned(self, marker_time_key: bytes) -> tuple[int, bytes]:
        """Returns the time and the marker's key of an index entry."""
        rest = marker_time_key[len(self.marker_times) :]
        return int.from_bytes(rest[:8], "big") - (1 << 63), self._markers + rest[8:]

    def entity(self, name: str) -> bytes:
        return self._entities + name.encode()

    def waiting(self, event_id: str) -> bytes:
        return self._waiting + event_id.encode()

    def waiting_by_entity(self, entity: str) -> bytes:
        """The ids of all events that wait for an entity: one record."""
        return self._waiting_by_entity + entity.encode()

    def waiting_since(self, partition: Partition) -> bytes:
        """The prefix of the index of a partition's waiting events by time."""
        return self._waiting_since + number(partition.number) + _sized(partition.topic)

    def waits_since(self, event: WaitingEvent) -> bytes:
        since = self.waiting_since(event.partition) + number(event.since_ms)
        return since + event.event_id.encode()


def marker_record(marker: Marker) -> MarkerRecord:
    return MarkerRecord(marker.entity, marker.version, marker.time_ms, EventOutcome.APPLIED)
