"""Resolutions of dead letters: a compacted topic with one record for each that was redriven or discarded.

Dead letters are never changed or deleted; one is open as long as it has no resolution. A resolution also names the
position of the event: if the dead-letter topic is re-created, its offsets begin again, and an old resolution must not
hide a new dead letter. One that a consumer wrote twice is resolved once, by the fingerprint that its copies share. A
resolution that cannot be read counts as well, because publishing twice would be worse.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tailrace.dlq.dead_letter import DeadLetter, DeadLetterId
from tailrace.errors import ConfigError, PublishError
from tailrace.event import Record
from tailrace.kafka.client import KafkaOptions, error_of, translate
from tailrace.kafka.topics import create_topic, topic_config
from tailrace.positions.base import MALFORMED
from tailrace.routing.specs import TopicSpec

SUFFIX = ".marks"
Action = Literal["redriven", "replayed", "discarded"]
PUBLISHED = ("redriven", "replayed")
"""The actions after which the event is on its topic."""
_EVENT = b"event/"
UNREADABLE = "marked"
"""The action of a resolution that cannot be read."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """The action on a dead letter: which, when, by whom and why. `topic` is where it was published, or ""."""

    action: Action | str
    at_ms: int = 0
    by: str = ""
    why: str = ""
    topic: str = ""
    edited: bool = False
    position: str | None = None
    fingerprint: str | None = None
    """Resolves all copies of a consumer's dead letter."""
    new_id: str = ""
    """The id of the new outbox row that has the event; the dead letter's own event is not published."""

    def is_of(self, letter: DeadLetter) -> bool:
        return self.position is None or self.position == letter.position

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse(cls, value: bytes) -> Resolution:
        try:
            found = json.loads(value)
            return cls(
                action=str(found["action"]),
                at_ms=int(found.get("at_ms", 0)),
                by=str(found.get("by", "")),
                why=str(found.get("why", "")),
                topic=str(found.get("topic") or ""),
                edited=bool(found.get("edited", False)),
                position=None if found.get("position") is None else str(found["position"]),
                fingerprint=None if found.get("fingerprint") is None else str(found["fingerprint"]),
                new_id=str(found.get("new_id") or ""),
            )
        except MALFORMED:
            return cls(UNREADABLE)


class ResolvedIds:
    """The ids of resolved dead letters, with an offset and a hash or two for each."""

    def __init__(self) -> None:
        self._positions: dict[int, dict[int, int | None]] = {}
        self._fingerprints: dict[DeadLetterId, int] = {}
        self._copies: Counter[int] = Counter()

    def note(self, letter: DeadLetterId, resolution: Resolution | None) -> None:
        """`None` removes a resolution, as a tombstone does."""
        known = self._positions.setdefault(letter.partition, {})
        if resolution is None:
            known.pop(letter.offset, None)
        else:
            known[letter.offset] = None if resolution.position is None else hash(resolution.position)
        if letter in self._fingerprints:
            self._copies[self._fingerprints.pop(letter)] -= 1
        if resolution is not None and resolution.fingerprint is not None:
            self._fingerprints[letter] = hash(resolution.fingerprint)
            self._copies[hash(resolution.fingerprint)] += 1

    def __contains__(self, letter: DeadLetter) -> bool:
        if letter.fingerprint is not None and self._copies[hash(letter.fingerprint)]:
            return True
        known = self._positions.get(letter.id.partition, {})
        return letter.id.offset in known and known[letter.id.offset] in (None, hash(letter.position))


def resolutions_topic(options: KafkaOptions) -> str:
    return options.dead_letter_topic + SUFFIX


def record(options: KafkaOptions, letter: DeadLetterId, resolution: Resolution) -> Record:
    return Record(
        topic=resolutions_topic(options),
        value=json.dumps(resolution.to_json()).encode(),
        key=str(letter).encode(),
        headers=[],
        timestamp=resolution.at_ms,
    )


def given_up(options: KafkaOptions, event: str, resolution: Resolution) -> Record:
    """The resolution of the first event of a parked key whose dead letter is gone, under the event's id."""
    return Record(
        resolutions_topic(options),
        json.dumps(resolution.to_json()).encode(),
        _EVENT + event.encode(),
        [],
        resolution.at_ms,
    )


def event_of(key: bytes | None) -> str | None:
    """The event that was discarded without its dead letter; None for any other resolution."""
    name = key or b""
    return name[len(_EVENT) :].decode(errors="replace") if name.startswith(_EVENT) else None


def dead_letter_id_of(key: bytes | None) -> DeadLetterId | None:
    """The dead letter whose resolution has this key; None for other keys."""
    try:
        return DeadLetterId.parse((key or b"").decode())
    except (UnicodeDecodeError, ConfigError):
        return None


def ensure(options: KafkaOptions, admin: AdminClient) -> None:
    """Creates the topic if it is missing; raises PublishError if it could lose resolutions."""
    name = resolutions_topic(options)
    try:
        found = admin.list_topics(timeout=10).topics.get(name)
    except KafkaException as error:
        raise translate(error_of(error), "asking Kafka for its topics") from None
    if found is None or found.error is not None:
        create_topic(admin, TopicSpec(name, 1, options.internal_replication, {"cleanup.policy": "compact"}))
        return
    policy = topic_config(admin, name).get("cleanup.policy", "")
    if policy != "compact":
        raise PublishError(
            f"the topic {name}, which stores the resolutions of dead letters, has cleanup.policy={policy}",
            why="Kafka would delete resolutions by age or size, and redriven events could be published again.",
            remedy="kafka-configs --alter --entity-type topics "
            f"--entity-name {name} --add-config cleanup.policy=compact",
        )
    if len(found.partitions) != 1:
        raise PublishError(
            f"the topic {name}, which stores the resolutions of dead letters, has {len(found.partitions)} partitions",
            why="Resolutions must be in one order, which needs exactly one partition.",
            remedy="Delete it if it is empty. Tailrace creates it again.",
        )
