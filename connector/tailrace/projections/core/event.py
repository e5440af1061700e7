"""A record of a topic as a handler sees it: the event, who it is about, and where it came from.

Pure. What the connector publishes says all this in headers (`id`, `type`, `position`, `timestamp`); records of others
are taken as they are: without an `id` the place in the topic names the event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.projections.core.store import Partition, WaitingEvent

REPLAY = "tailrace.replay"
"""The header that names the replay by which a record was published again."""

REDRIVEN_FOR = "tailrace.redriven.for"
"""The header that names the projection whose dead letter it was, if it was a projection's."""

LONGEST_NAME = 500
"""Of an event or an entity: Postgres takes 2,700 bytes into an index, MongoDB as much as one likes."""
MOST_DIGITS = 15
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
    """Whether its projection is being made anew."""
    said: dict[str, bytes | None] = field(default_factory=dict, repr=False, compare=False)
    """The headers by name; of several of one name, the last."""

    def header(self, name: str) -> str | None:
        value = self.said.get(name)
        return None if value is None else text(value)

    @property
    def is_replay(self) -> bool:
        """Whether history is being told again: ask before doing what cannot be undone, such as sending a mail."""
        return self.is_rebuild or REPLAY in self.said

    @property
    def replay_id(self) -> str | None:
        return self.header(REPLAY)

    @property
    def redriven_for(self) -> str | None:
        """The projection whose dead letter this record was, if it was one."""
        return self.header(REDRIVEN_FOR)

    @property
    def is_tombstone(self) -> bool:
        return self.value is None

    @property
    def position(self) -> str | None:
        """Where the row stands in the log of the database it came from."""
        return self.header("position")

    @property
    def traceparent(self) -> str | None:
        return self.header("traceparent")

    @property
    def place(self) -> str:
        """Topic, partition and offset, for people."""
        return f"{self.partition}@{self.offset}"

    def waiting(self, since_ms: int) -> WaitingEvent:
        """The event as a store keeps it while it waits for an earlier version."""
        return WaitingEvent(
            self.id, self.entity or "", self.version or 0, self.partition, self.offset, self.key, self.value,
            [(name, said or b"") for name, said in self.headers], self.time_ms, since_ms,
        )  # fmt: skip


def text(value: bytes) -> str:
    """As text that any database takes, and different for different bytes: what is no text is told in hex."""
    try:
        found = value.decode()
    except UnicodeDecodeError:
        return f"\ufffdhex:{value.hex()}"
    # Postgres has no place for U+0000.
    return f"\ufffdhex:{value.hex()}" if "\0" in found else found


def name(value: str) -> str:
    """An id as any index takes it: what is longer than LONGEST_NAME is named by its hash."""
    sound = value.encode(errors="replace").decode().replace("\0", "\ufffd")
    if len(sound) <= LONGEST_NAME:
        return sound
    return f"{sound[:64]}… sha256:{hashlib.sha256(sound.encode()).hexdigest()}"


def read(
    partition: Partition,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    time_ms: int,
) -> Event:
    """The event of one record, its payload not yet looked at."""
    said = dict(headers)
    told = said.get("id") or said.get("ce_id")
    kind = said.get("type") or said.get("ce_type")
    stamp = said.get("timestamp")
    return Event(
        # With its time: a topic that was made anew has the same places again.
        id=name(text(told)) if told else f"{partition}@{offset}/{time_ms}",
        type=text(kind) if kind else "",
        key=key,
        value=value,
        headers=headers,
        partition=partition,
        offset=offset,
        # The commit's own time: a topic may be set to stamp records itself.
        time_ms=int(stamp) if stamp and stamp.isdigit() and len(stamp) <= MOST_DIGITS else time_ms,
        said=said,
    )


def reread(waiting: WaitingEvent) -> Event:
    """The event that waited."""
    return read(
        waiting.partition, waiting.offset, waiting.key, waiting.value, waiting.headers, waiting.time_ms
    )  # fmt: skip


EventFunction = Callable[[Event], Any]
"""Tells something about an event, such as its entity or its version."""
