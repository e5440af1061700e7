"""A rewind: the note beside a position that was set back, on which stretch everything comes for a second time.

It is written in the Kafka transaction that sets the position back, and read after the older instances are fenced, as
the position itself. Up to `until`, records bear the rewind's id in a header, so that consumers and `tailrace verify`
can tell them from first ones. It stays when that is passed: it is then true of nothing any more.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, Producer

from tailrace.errors import OffsetRecordCorrupt
from tailrace.event import Record
from tailrace.kafka.client import KafkaOptions, admin_config
from tailrace.positions.base import Position, from_stored, to_stored
from tailrace.state.offsets import read_keys

SUFFIX = "/rewind"
HEADER = "tailrace.replay"
"""Of every record that is published again; its value is the id of the replay."""
FORGET_TIMEOUT = 5.0
SHADOW = "tailrace.shadow"
"""Of one that stands in a shadow of its topic; its value is what the shadow's name ends in."""


@dataclass(frozen=True, slots=True)
class Rewind:
    """From `start` on, everything up to `until` was published before."""

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
    """After a recovery places of the old log say nothing any more; that a stretch of it was to come again, neither.

    If Kafka does not hear it, what comes is marked as a replay at worst.
    """
    try:
        producer = Producer({**admin_config(options), "message.timeout.ms": int(FORGET_TIMEOUT * 1000)})
        producer.produce(options.offsets_topic, None, key(options))
        producer.flush(FORGET_TIMEOUT)
    except (KafkaException, BufferError):
        pass


def read(options: KafkaOptions) -> Rewind | None:
    """The last one of this pipeline, whether it is passed or not."""
    value = read_keys(options, {key(options)}).get(key(options))
    return None if value is None else parse(options, value)


def parse(options: KafkaOptions, value: bytes) -> Rewind:
    try:
        found = json.loads(value)
        start, until = from_stored(found["start"]), from_stored(found["until"])
        return Rewind(str(found["id"]), start, until, int(found["at_ms"]), str(found.get("by", "")))
    except (ValueError, KeyError, TypeError) as error:
        raise OffsetRecordCorrupt(
            f"the record under key {key(options).decode()!r} on {options.offsets_topic} is not a rewind: {error!r}",
            why="Something else wrote it, or a newer version of Tailrace did.",
            remedy="Write a tombstone under that key: records that come again are then not marked as such.",
        ) from None
