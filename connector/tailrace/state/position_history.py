"""The position history: where a pipeline was at what time, and how far its topics reached. One entry a minute.

An entry means: every event up to `position` is published below `offsets`. The history is a compacted topic that a
separate producer writes while the pipeline runs. A missing entry does not stop the pipeline: it only makes a point in
time less exact. Rewinds and recoveries start from it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from confluent_kafka.admin import AdminClient

from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import RangeReader
from tailrace.kafka.topics import create_topic, partition_counts
from tailrace.positions.base import MALFORMED, Position, from_stored, to_stored
from tailrace.routing.specs import TopicSpec

SUFFIX = "-ledger"
KEPT_MS = 90 * 24 * 3600 * 1000
"""How long entries are kept: longer than the logs of databases and most topics."""
BUCKET_MS = 60_000
"""The last entry of each minute is kept."""
STALL_SECONDS = 30.0

Offsets = dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class PositionEntry:
    """One entry. `sampled_ms` is the connector's clock; `offsets` are the ends of the topics it had written to.

    `passed` is a Postgres snapshot that was taken before the log reached `position`; empty if none is known. Rows that
    it shows were passed. It does not list subtransactions of running transactions (savepoints), so only rows older than
    its `xmin` are certain.
    """

    position: Position
    sampled_ms: int
    offsets: Offsets = field(default_factory=dict)
    passed: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "position": to_stored(self.position),
            "sampled_ms": self.sampled_ms,
            "offsets": {
                topic: {str(number): end for number, end in ends.items()} for topic, ends in self.offsets.items()
            },
            "passed": self.passed,
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> PositionEntry:
        """Raises ValueError, KeyError, TypeError or AttributeError if it is no entry."""
        return cls(
            from_stored(found["position"]),
            int(found["sampled_ms"]),
            {
                str(topic): {int(number): int(end) for number, end in ends.items()}
                for topic, ends in found["offsets"].items()
            },
            str(found.get("passed", "")),
        )


def history_topic(options: KafkaOptions) -> str:
    """The history topic, which all pipelines of an offsets topic share."""
    return options.offsets_topic + SUFFIX


def spec(options: KafkaOptions) -> TopicSpec:
    config = {"cleanup.policy": "compact,delete", "retention.ms": str(KEPT_MS), "segment.bytes": "16777216"}
    return TopicSpec(history_topic(options), 1, options.internal_replication, config)


def ensure(options: KafkaOptions, admin: AdminClient) -> None:
    if history_topic(options) not in partition_counts(admin):
        create_topic(admin, spec(options))


def key(options: KafkaOptions, entry: PositionEntry) -> bytes:
    minute = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(entry.sampled_ms // BUCKET_MS * BUCKET_MS / 1000))
    return f"{options.pipeline}/{minute}Z".encode()


def read(options: KafkaOptions, since_ms: int = 0) -> list[PositionEntry]:
    """The entries of this pipeline since `since_ms` in order; none if there is no history. Skips unreadable records."""
    return _read(options, since_ms, lambda _, __: None)


def read_all(options: KafkaOptions) -> tuple[list[PositionEntry], dict[str, frozenset[str]]]:
    """The entries of this pipeline, and the topics that each other pipeline has written to."""
    others: dict[str, set[str]] = {}

    def note(name: bytes, value: bytes) -> None:
        try:
            topics = orjson.loads(value)["offsets"]
            others.setdefault(name.partition(b"/")[0].decode(), set()).update(topics)
        except MALFORMED:
            pass  # not an entry

    entries = _read(options, 0, note)
    return entries, {name: frozenset(topics) for name, topics in others.items()}


def _read(options: KafkaOptions, since_ms: int, other: Callable[[bytes, bytes], None]) -> list[PositionEntry]:
    """The entries of this pipeline; `other` is called with the keys and values of all others."""
    prefix = f"{options.pipeline}/".encode()
    found: dict[bytes, PositionEntry] = {}
    topic = history_topic(options)
    with RangeReader(options, "ledger", stall_seconds=STALL_SECONDS) as reader:
        for message in reader.records(topic, reader.ranges(topic, since_ms=since_ms)):
            name, value = message.key() or b"", message.value()
            if not name.startswith(prefix):
                other(name, value or b"")
            elif value is None:
                found.pop(name, None)
            elif (entry := _parse_entry(value)) is not None:
                found[name] = entry
    return sorted(found.values(), key=lambda entry: entry.sampled_ms)


def _parse_entry(value: bytes) -> PositionEntry | None:
    try:
        return PositionEntry.from_json(json.loads(value))
    except MALFORMED:
        return None


def before(entries: Sequence[PositionEntry], at_ms: int) -> PositionEntry | None:
    """The last entry whose position the source had reached at that time.

    After a rewind times go back; the first later entry ends the search, so that nothing is skipped.
    """
    found: PositionEntry | None = None
    for entry in entries:
        if entry.position.at_ms > at_ms:
            break
        found = entry
    return found


def offsets_at(entries: Sequence[PositionEntry], entry: PositionEntry) -> Offsets:
    """The ends of all topics at an entry; an entry itself names only those that its process had written to.

    Leaves out topics that were re-created later, because those begin at 0.
    """
    found: Offsets = {}
    latest: Offsets = {}
    for each in entries:
        for topic, ends in each.offsets.items():
            if _is_recreated(latest.get(topic, {}), ends):
                del latest[topic]
                found.pop(topic, None)
            latest[topic] = {**latest.get(topic, {}), **ends}
            if each.sampled_ms <= entry.sampled_ms:
                found[topic] = latest[topic]
    return found


@dataclass(frozen=True, slots=True)
class TopicEnds:
    """How far a topic was written. `since_ms`: when it was found re-created; 0 if it never was."""

    ends: dict[int, int]
    since_ms: int = 0


def topic_ends(entries: Sequence[PositionEntry]) -> dict[str, TopicEnds]:
    """How far each topic that the pipeline has written to reached, as far as the history knows."""
    found: dict[str, TopicEnds] = {}
    for entry in entries:
        for topic, ends in entry.offsets.items():
            known = found.get(topic, TopicEnds({}))
            if _is_recreated(known.ends, ends):
                found[topic] = TopicEnds(ends, entry.sampled_ms)
            else:
                found[topic] = TopicEnds({**known.ends, **ends}, known.since_ms)
    return found


def _is_recreated(before: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    """Whether the topic was re-created: the end of a topic never goes back."""
    return any(end < before.get(number, 0) for number, end in ends.items())
