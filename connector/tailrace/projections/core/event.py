"""The event that a handler gets: one Kafka record with its id, type, entity, version and offset. Pure.

The connector publishes id, type, position and timestamp as headers. Records of other producers are accepted, too: one
without an `id` is identified by its partition, offset and time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tailrace.projections.core.store import Partition, WaitingEvent

REPLAY = "tailrace.replay"
"""Header with the id of the replay that published the record again."""
REDRIVEN_FOR = "tailrace.redriven.for"
"""Header with the name of the projection whose dead letter was redriven."""
MAX_ID_LENGTH = 500
"""Of an event or an entity, in characters: a Postgres index takes 2,700 bytes."""
MAX_TIME_DIGITS = 15
"""Of a time in milliseconds."""

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(slots=True)
class Event:
    """`data` is the payload: the model declared for its type, else the parsed JSON, else None for a tombstone."""

    id: str
    type: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: Partition
    offset: int
    time_ms: int
    data: Any = None
    entity: str | None = None
    version: int | None = None
    is_rebuild: bool = False
    """Whether its projection is being rebuilt."""
    unreadable: str | None = None
    """Why its headers are missing, if the record has some that cannot be decoded. Such an event is dead-lettered."""
    header_values: dict[str, bytes | None] = field(default_factory=dict, repr=False, compare=False)
    """The headers by name; if a name repeats, the last one."""

    def header(self, name: str) -> str | None:
        value = self.header_values.get(name)
        return None if value is None else to_text(value)

    @property
    def is_replay(self) -> bool:
        """Whether the event is published or read again: check it before irreversible actions such as sending mail."""
        return self.is_rebuild or REPLAY in self.header_values

    @property
    def replay_id(self) -> str | None:
        return self.header(REPLAY)

    @property
    def redriven_for(self) -> str | None:
        """The projection whose dead letter this record was, if it was redriven."""
        return self.header(REDRIVEN_FOR)

    @property
    def is_tombstone(self) -> bool:
        return self.value is None

    @property
    def position(self) -> str | None:
        """The row's position in the log of its source database."""
        return self.header("position")

    @property
    def traceparent(self) -> str | None:
        return self.header("traceparent")

    @property
    def location(self) -> str:
        """Topic, partition and offset as text."""
        return f"{self.partition}@{self.offset}"

    def waiting(self, since_ms: int) -> WaitingEvent:
        """Returns the event as a store keeps it while it waits for an earlier version."""
        return WaitingEvent(
            self.id, self.entity or "", self.version or 0, self.partition, self.offset, self.key, self.value,
            [(name, value or b"") for name, value in self.headers], self.time_ms, since_ms,
        )  # fmt: skip


EventFunction = Callable[[Event], Any]
"""Derives something from an event, such as its entity or its version."""


def to_text(value: bytes) -> str:
    """Decodes bytes to text that every database accepts. Invalid UTF-8 and NUL become hex, so results stay distinct."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"\ufffdhex:{value.hex()}"
    # Postgres text cannot hold U+0000.
    return f"\ufffdhex:{value.hex()}" if "\0" in text else text


_type_text = lru_cache(maxsize=256)(to_text)
"""There are few types."""


def index_key(value: str) -> str:
    """Returns an id that fits into every index: one longer than MAX_ID_LENGTH is cut and its hash appended."""
    clean = value
    if not value.isascii() or "\0" in value:
        clean = value.encode(errors="replace").decode().replace("\0", "\ufffd")
    if len(clean) <= MAX_ID_LENGTH:
        return clean
    return f"{clean[:64]}… sha256:{hashlib.sha256(clean.encode()).hexdigest()}"


def read_event(
    partition: Partition, offset: int, key: bytes | None, value: bytes | None, headers: Headers, time_ms: int
) -> Event:
    """Makes an event of a record; its payload is decoded later."""
    values = dict(headers)
    event_id = values.get("id") or values.get("ce_id")
    event_type = values.get("type") or values.get("ce_type")
    timestamp = values.get("timestamp")
    return Event(
        # With the time: a topic that was deleted and re-created has the same offsets again.
        index_key(to_text(event_id)) if event_id else f"{partition}@{offset}/{time_ms}",
        _type_text(event_type) if event_type else "",
        key,
        value,
        headers,
        partition,
        offset,
        # The header holds the commit time; the record's own time may be that of the broker.
        int(timestamp) if timestamp and timestamp.isdigit() and len(timestamp) <= MAX_TIME_DIGITS else time_ms,
        header_values=values,
    )


def restore_event(record: WaitingEvent) -> Event:
    """Makes the event again of what the store kept."""
    return read_event(record.partition, record.offset, record.key, record.value, record.headers, record.time_ms)
