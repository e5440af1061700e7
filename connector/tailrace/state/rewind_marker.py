"""The rewind marker: names the range of the log that is published again after a position was set back.

It is written in the Kafka transaction that sets the position back, and read after older instances are fenced, like the
position itself. Records up to `until` have the rewind's id in a header, so that consumers and `tailrace verify` can
distinguish them from the first ones. The marker stays when that position is passed, and then applies to nothing.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException

from tailrace.errors import OffsetRecordCorrupt
from tailrace.event import Record
from tailrace.kafka.client import KafkaOptions, write_record
from tailrace.positions.base import MALFORMED, Position, from_stored, to_stored
from tailrace.state.offsets import read_keys

SUFFIX = "/rewind"
HEADER = "tailrace.replay"
"""Header of every record that is published again; its value is the id of the replay."""
FORGET_TIMEOUT = 5.0
SHADOW = "tailrace.shadow"
"""Header of a record in a shadow topic; its value is the suffix of the topic's name."""


@dataclass(frozen=True, slots=True)
class Rewind:
    """Everything from `start` to `until` was published before."""

    id: str
    start: Position
    until: Position
    at_ms: int
    by: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "start": to_stored(self.start),
            "until": to_stored(self.until),
            "at_ms": self.at_ms,
            "by": self.by,
        }


def key(options: KafkaOptions) -> bytes:
    return (options.pipeline + SUFFIX).encode()


def record(options: KafkaOptions, rewind: Rewind) -> Record:
    return Record(
        topic=options.offsets_topic,
        key=key(options),
        value=json.dumps(rewind.to_json()).encode(),
        headers=[],
        timestamp=time.time_ns() // 1_000_000,
    )


def forget(options: KafkaOptions) -> None:
    """Removes the marker after a recovery, when positions of the old log have no meaning any more.

    If that fails, records are marked as a replay at worst.
    """
    with suppress(KafkaException):
        write_record(options, options.offsets_topic, key(options), None, FORGET_TIMEOUT)


def read(options: KafkaOptions) -> Rewind | None:
    """The last rewind of this pipeline, whether it is passed or not."""
    value = read_keys(options, {key(options)}).get(key(options))
    return None if value is None else parse(options, value)


def parse(options: KafkaOptions, value: bytes) -> Rewind:
    try:
        found = json.loads(value)
        start, until = from_stored(found["start"]), from_stored(found["until"])
        return Rewind(str(found["id"]), start, until, int(found["at_ms"]), str(found.get("by", "")))
    except MALFORMED as error:
        raise OffsetRecordCorrupt(
            f"the record under key {key(options).decode()!r} on {options.offsets_topic} is not a rewind: {error!r}",
            why="Something else wrote it, or a newer version of Tailrace did.",
            remedy="Write a tombstone under that key. Records that are published again then have no replay header.",
        ) from None
