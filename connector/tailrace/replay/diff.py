"""Compares shadow topics with the original ones, event by event, to show what a replay would have changed.

Both are read once, committed records only, and only hashes are stored, so memory stays flat. Of the original topics,
the records that the plan covers count, by their headers; of the shadow topics, the records of this plan.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tailrace.errors import ConfigError
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import read_topic
from tailrace.kafka.tail import ClusterObserver
from tailrace.replay.original_records import MARGIN_MS
from tailrace.replay.plan import ReplayPlan
from tailrace.replay.source_log import topics_of
from tailrace.state import position_history
from tailrace.state.rewind_marker import HEADER
from tailrace.verify.spill import SpillFile
from tailrace.worker.wiring import Wiring

SHADOW, REAL, DEAD_LETTERS = range(3)
EXAMPLES = 20
SAME = "same"
SET_ASIDE = "set_aside"
ONLY_SHADOW, ONLY_REAL = "only_in_shadow", "only_in_original"
VALUE, KEY, PARTITION, TOPIC = "value_changed", "key_changed", "partition_changed", "topic_changed"
NOT_PUBLISHED = "not_published_either_time"
"""In the shadow's dead letters and never on the original topics: not a difference."""
KINDS = (ONLY_REAL, ONLY_SHADOW, SET_ASIDE, VALUE, KEY, PARTITION, TOPIC)
"""The kinds of differences."""


class DiffRecord(NamedTuple):
    """A record with hashes of key and value. `topic` is the number of the original topic, also for a shadow
    record.
    """

    id: str
    topic: int
    partition: int
    offset: int
    key: int
    value: int


@dataclass(slots=True)
class Differences:
    events: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    examples: defaultdict[str, list[DiffRecord]] = field(default_factory=lambda: defaultdict(list))
    topics: list[str] = field(default_factory=list)
    """Topics by the number they have in examples."""

    @property
    def total(self) -> int:
        return sum(self.counts[kind] for kind in KINDS)

    def note(self, kind: str, record: DiffRecord) -> None:
        self.counts[kind] += 1
        if kind != SAME and len(self.examples[kind]) < EXAMPLES:
            self.examples[kind].append(record)


def compare_records(
    shadow: Iterable[Any], real: Iterable[Any], letters: Iterable[Any], found: Differences, *, is_whole: bool = True
) -> None:
    """Adds the differences of one bucket. Pure. Unless `is_whole`, original records without a copy are ignored."""
    copies = {each[0]: DiffRecord(*each) for each in shadow}
    aside = {each[0] for each in letters}
    firsts: dict[str, DiffRecord] = {}
    for each in real:
        record = DiffRecord(*each)
        copy = copies.get(record.id)
        # Of several records of an event, use the last one, preferably on the topic of its copy.
        if record.id not in firsts or copy is None or record.topic == copy.topic:
            firsts[record.id] = record
    if not is_whole:
        firsts = {event: first for event, first in firsts.items() if event in copies or event in aside}
    found.events += len(firsts.keys() | copies.keys() | aside)
    for event, copy in copies.items():
        first = firsts.get(event)
        if first is None:
            found.note(ONLY_SHADOW, copy)
            continue
        kinds = [
            kind
            for kind, differs in (
                (VALUE, first.value != copy.value),
                (KEY, first.key != copy.key),
                (TOPIC, first.topic != copy.topic),
                (PARTITION, first.topic == copy.topic and first.partition != copy.partition),
            )
            if differs
        ]
        for kind in kinds or [SAME]:
            found.note(kind, first)
    for event, first in firsts.items():
        if event not in copies:
            found.note(SET_ASIDE if event in aside else ONLY_REAL, first)
    found.counts[NOT_PUBLISHED] += len(aside - firsts.keys() - copies.keys())


def compare(wiring: Wiring, plan: ReplayPlan) -> Differences:
    if plan.target != "shadow":
        raise ConfigError(
            f"the plan {plan.id} has no shadow topics: it publishes to the original topics",
            remedy="Make a plan with shadow topics: tailrace replay plan … --shadow .shadow",
        )
    kafka = wiring.kafka
    real = topics_of(wiring, position_history.read(kafka))
    real = [topic for topic in real if not topic.endswith(plan.suffix)]
    there = ClusterObserver(kafka).look().topics
    if not any(topic + plan.suffix in there for topic in (*real, kafka.dead_letter_topic)):
        raise ConfigError(
            f"there are no topics that end in {plan.suffix}",
            why="The plan was not applied, or the topics were deleted.",
            remedy="Run `tailrace replay apply` first.",
        )
    found = Differences(topics=real)
    with SpillFile(3) as spill:
        for number, topic in enumerate(real):
            _spill_topic(spill, REAL, kafka, topic, number, plan)
            if topic + plan.suffix in there:
                _spill_topic(spill, SHADOW, kafka, topic + plan.suffix, number, plan)
        if kafka.dead_letter_topic + plan.suffix in there:
            _spill_topic(spill, DEAD_LETTERS, kafka, kafka.dead_letter_topic + plan.suffix, -1, plan)
        for shadow, firsts, letters in spill.buckets(SHADOW, REAL, DEAD_LETTERS):
            # A table may have lost rows or changed their time, so missing copies prove nothing.
            compare_records(shadow, firsts, letters, found, is_whole=plan.origin == "log")
    return found


def _spill_topic(spill: SpillFile, stream: int, kafka: KafkaOptions, topic: str, number: int, plan: ReplayPlan) -> None:
    first = plan.estimate.first_ms
    since_ms = None if first is None or stream != REAL else first - MARGIN_MS
    with closing(read_topic(kafka, topic, since_ms=since_ms)) as messages:
        for message in messages:
            given: Any = message
            headers = given.headers() or []
            values = {name: (value or b"").decode(errors="replace") for name, value in headers}
            event = values.get("id")
            is_meant = (
                is_original(values, given.key(), topic, plan) if stream == REAL else values.get(HEADER) == plan.id
            )
            if event is not None and is_meant:
                places = (number, given.partition(), given.offset())
                spill.add(stream, event, (event, *places, hash(given.key()), hash(given.value())))


def is_original(values: dict[str, str], key: bytes | None, topic: str, plan: ReplayPlan) -> bool:
    """Returns whether the plan covers this record of an original topic. Pure.

    Records of other replays do not count, nor those outside of the plan's range. For rows read from a table, positions
    and times say nothing.
    """
    selection = plan.selection
    stamp = values.get("timestamp", "")
    if HEADER in values or "id" not in values or "position" not in values or not stamp.isdigit():
        return False
    if plan.origin == "table":
        return True
    if not selection.is_within(int(stamp)) or not selection.takes(values["id"], values.get("type", ""), key, topic):
        return False
    try:
        return plan.end.covers(values["position"]) and not plan.start.covers(values["position"])
    except ValueError:
        return False
