"""The ledger: where a pipeline was and when, and what its topics held by then. A compacted topic, one entry a minute.

An entry is read like this: every event up to `position` lies before `offsets`. Entries are news of the past, made
beside the pipeline by a producer of their own: none is worth stopping for, and one that is missing makes a point in
time less exact, nothing else. Whoever rewinds a pipeline or looks for a gap begins here.
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
from tailrace.positions.base import Position, from_stored, to_stored
from tailrace.routing.specs import TopicSpec

SUFFIX = "-ledger"
KEPT_MS = 90 * 24 * 3600 * 1000
"""How long entries are kept: longer than logs, and than most topics."""
BUCKET_MS = 60_000
"""Of the entries of one minute the last one is kept."""
STALL_SECONDS = 30.0

Offsets = dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class PositionEntry:
    """`sampled_ms` is the connector's clock. `offsets` are the ends of the topics that it had written to by then.

    `passed` is a Postgres snapshot that was taken before the log reached `position`; empty if none is known. What it
    shows is passed; but it does not list the parts of running transactions that have numbers of their own
    (savepoints), so only what is older than its `xmin` is certain.
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
        """ValueError, KeyError, TypeError or AttributeError if it is not one."""
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
    """All pipelines of an offsets topic share one."""
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
    """The entries of this pipeline since then in the order they were made; none where there is no ledger. What is no
    entry is not among them: it says nothing, and nothing depends on it.
    """
    return _read(options, since_ms, lambda _, __: None)


def read_all(options: KafkaOptions) -> tuple[list[PositionEntry], dict[str, frozenset[str]]]:
    """The entries of this pipeline, and of every other one the topics that it has written to."""
    others: dict[str, set[str]] = {}

    def note(name: bytes, value: bytes) -> None:
        try:
            topics = orjson.loads(value)["offsets"]
            others.setdefault(name.partition(b"/")[0].decode(), set()).update(topics)
        except (ValueError, KeyError, TypeError):
            pass  # no entry

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
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def before(entries: Sequence[PositionEntry], at_ms: int) -> PositionEntry | None:
    """The last entry whose position the source's clock had reached by then.

    After a rewind times go back: the first entry beyond the moment ends the search, so that nothing is passed over.
    """
    found: PositionEntry | None = None
    for entry in entries:
        if entry.position.at_ms > at_ms:
            break
        found = entry
    return found


def offsets_at(entries: Sequence[PositionEntry], entry: PositionEntry) -> Offsets:
    """The ends of all topics at an entry: an entry names those only that its own process had written to.

    Not of a topic that was made anew later: the one of that name now begins at 0.
    """
    found: Offsets = {}
    latest: Offsets = {}
    for each in entries:
        for topic, ends in each.offsets.items():
            if _is_another(latest.get(topic, {}), ends):
                del latest[topic]
                found.pop(topic, None)
            latest[topic] = {**latest.get(topic, {}), **ends}
            if each.sampled_ms <= entry.sampled_ms:
                found[topic] = latest[topic]
    return found


@dataclass(frozen=True, slots=True)
class TopicEnds:
    """How far a topic was written. `since_ms`: by then it had been deleted and made anew; 0 if it never was."""

    ends: dict[int, int]
    since_ms: int = 0


def topic_ends(entries: Sequence[PositionEntry]) -> dict[str, TopicEnds]:
    """Of every topic that the pipeline has written to, as far as the ledger knows."""
    found: dict[str, TopicEnds] = {}
    for entry in entries:
        for topic, ends in entry.offsets.items():
            known = found.get(topic, TopicEnds({}))
            if _is_another(known.ends, ends):
                found[topic] = TopicEnds(ends, entry.sampled_ms)
            else:
                found[topic] = TopicEnds({**known.ends, **ends}, known.since_ms)
    return found


def _is_another(before: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    """Whether the ends are of another topic than those noted before under its name: the end of one never goes back."""
    return any(end < before.get(number, 0) for number, end in ends.items())
