"""What became of dead letters: a compacted topic beside theirs, one record a letter that was redriven or discarded.

Letters themselves are never changed or deleted; a letter is open as long as it has no mark. A mark also names the
position of its letter's event: if the dead-letter topic is deleted and made anew, its offsets begin again, and an old
mark must not hide a new letter. A letter that a consumer wrote twice is marked once, by what its copies have in common:
the fingerprint of the record that was read. A mark that cannot be read counts all the same: to publish twice would be
worse.
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
from tailrace.routing.specs import TopicSpec

SUFFIX = ".marks"
Action = Literal["redriven", "replayed", "discarded"]
PUBLISHED = ("redriven", "replayed")
"""The actions after which the event is on its topic."""
_EVENT = b"event/"
UNREADABLE = "marked"
"""The action of a mark that something else wrote."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What was done with a letter, when, by whom and why. `topic` is where it went; "" if nowhere."""

    action: Action | str
    at_ms: int = 0
    by: str = ""
    why: str = ""
    topic: str = ""
    edited: bool = False
    position: str | None = None
    fingerprint: str | None = None
    """Of a consumer's letter, which may be there twice: the mark counts for its copies, too."""

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
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls(UNREADABLE)


class ResolvedIds:
    """Which letters have a mark, in little memory: of each only its offset and a hash or two."""

    def __init__(self) -> None:
        self._positions: dict[int, dict[int, int | None]] = {}
        self._fingerprints: dict[DeadLetterId, int] = {}
        self._copies: Counter[int] = Counter()

    def note(self, letter: DeadLetterId, mark: Resolution | None) -> None:
        """`None` takes a mark away, as a tombstone does."""
        known = self._positions.setdefault(letter.partition, {})
        if mark is None:
            known.pop(letter.offset, None)
        else:
            known[letter.offset] = None if mark.position is None else hash(mark.position)
        if letter in self._fingerprints:
            self._copies[self._fingerprints.pop(letter)] -= 1
        if mark is not None and mark.fingerprint is not None:
            self._fingerprints[letter] = hash(mark.fingerprint)
            self._copies[hash(mark.fingerprint)] += 1

    def __contains__(self, letter: DeadLetter) -> bool:
        if letter.fingerprint is not None and self._copies[hash(letter.fingerprint)]:
            return True
        known = self._positions.get(letter.id.partition, {})
        return letter.id.offset in known and known[letter.id.offset] in (None, hash(letter.position))


def resolutions_topic(options: KafkaOptions) -> str:
    return options.dead_letter_topic + SUFFIX


def record(options: KafkaOptions, letter: DeadLetterId, mark: Resolution) -> Record:
    return Record(
        topic=resolutions_topic(options),
        value=json.dumps(mark.to_json()).encode(),
        key=str(letter).encode(),
        headers=[],
        timestamp=mark.at_ms,
    )


def given_up(options: KafkaOptions, event: str, mark: Resolution) -> Record:
    """What became of an event in front of a parked key whose letter is gone: kept under the event's id."""
    return Record(
        resolutions_topic(options), json.dumps(mark.to_json()).encode(), _EVENT + event.encode(), [], mark.at_ms
    )


def event_of(key: bytes | None) -> str | None:
    """The event that was given up without its letter; None for any other mark."""
    name = key or b""
    return name[len(_EVENT) :].decode(errors="replace") if name.startswith(_EVENT) else None


def dead_letter_id_of(key: bytes | None) -> DeadLetterId | None:
    """The letter whose mark has this key; None for what is no mark of ours."""
    try:
        return DeadLetterId.parse((key or b"").decode())
    except (UnicodeDecodeError, ConfigError):
        return None


def ensure(options: KafkaOptions, admin: AdminClient) -> None:
    """Creates the topic if it is missing; refuses one that would forget marks."""
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
            f"the topic {name}, which keeps what became of dead letters, has cleanup.policy={policy}",
            why="Kafka would delete marks by age or size, and redriven letters would be published again.",
            remedy="kafka-configs --alter --entity-type topics "
            f"--entity-name {name} --add-config cleanup.policy=compact",
        )
    if len(found.partitions) != 1:
        raise PublishError(
            f"the topic {name}, which keeps what became of dead letters, has {len(found.partitions)} partitions",
            why="Marks must be in one order, so it has exactly one.",
            remedy="Delete it, if it holds no marks yet: Tailrace creates it as it should be.",
        )
