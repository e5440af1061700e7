"""The sequence numbers of aggregates, kept on a compacted topic of the pipeline.

Each batch that changes numbers stores them in its own Kafka transaction (I5): after a crash at any moment they are
exactly those of the rows before the stored position. Aggregates that are no longer kept are removed, so the topic has
as many keys as `rules.sequence.aggregates` allows. A record under the key `reset` says that rows were published without
this check, so numbers that were stored before it mean nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tailrace.errors import KafkaUnavailable, OffsetsTopicUnfit, Rejected, TopicMissing
from tailrace.event import Record, Row
from tailrace.kafka.client import KafkaOptions, error_of, translate, write_record
from tailrace.kafka.reader import RangeReader
from tailrace.kafka.topics import create_topic, partition_counts, topic_config
from tailrace.routing.specs import TopicSpec
from tailrace.rules.sequence import SequenceCheck

RESET = b"reset"
_NAME = b"aggregate/"
TIMEOUT = 30.0


def sequences_topic(options: KafkaOptions) -> str:
    return f"{options.pipeline}.sequence-numbers"


class StoredSequences:
    """A sequence check whose numbers survive a restart. Created for each attempt; belongs to the pipeline's thread."""

    def __init__(self, options: KafkaOptions, admin: AdminClient, check: SequenceCheck) -> None:
        self._options = options
        self._admin = admin
        self._check = check

    def open(self, is_replayed: Callable[[str], bool] | None) -> None:
        """Reads the numbers. Call it after the older instance is fenced. `is_replayed`: see `SequenceCheck`."""
        topic = sequences_topic(self._options)
        self._ensure(topic)
        with RangeReader(self._options, "sequences") as reader:
            try:
                ranges = reader.ranges(topic, include_open=True, must_exist=True)
            except TopicMissing:
                raise KafkaUnavailable(f"the topic {topic} is not there yet, although it was created") from None
            for message in reader.records(topic, ranges):
                key, value = message.key(), message.value()
                if key == RESET:
                    self._check.forget()
                elif key is not None and key.startswith(_NAME) and (value is None or value.isdigit()):
                    self._check.load(key.removeprefix(_NAME), None if value is None else int(value))
        self._check.is_replayed = is_replayed

    def observe(self, rows: list[Row]) -> dict[str, Rejected]:
        """Returns the rejections of rows whose numbers are out of order, by position."""
        return self._check.observe(rows)

    def records(self) -> list[Record]:
        """Returns the records that store what has changed since the last call; they are part of the batch."""
        now, topic = time.time_ns() // 1_000_000, sequences_topic(self._options)
        return [
            Record(topic, None if number is None else b"%d" % number, _NAME + aggregate, [], now)
            for aggregate, number in self._check.changes().items()
        ]

    def _ensure(self, topic: str) -> None:
        spec = TopicSpec(
            topic,
            1,
            self._options.internal_replication,
            {"cleanup.policy": "compact", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1"},
        )
        partitions = partition_counts(self._admin).get(topic)
        if partitions is None:
            create_topic(self._admin, spec)
            return
        policy = topic_config(self._admin, topic).get("cleanup.policy", "")
        if partitions != 1 or policy != "compact":
            raise OffsetsTopicUnfit(
                f"the topic {topic} has {partitions} partitions and cleanup.policy={policy}",
                why="Sequence numbers must be in one order, and Kafka must not delete them by age.",
                remedy="Delete it: Tailrace creates it again. Then the next event of each aggregate sets its number.",
            )


def reset(options: KafkaOptions, admin: AdminClient) -> None:
    """Makes stored numbers invalid, if there are any, because rows are published without the check."""
    topic = sequences_topic(options)
    if partition_counts(admin).get(topic) != 1 or topic_config(admin, topic).get("cleanup.policy") != "compact":
        return  # there is none, or it is not ours
    try:
        write_record(options, topic, RESET, b"%d" % (time.time_ns() // 1_000_000), TIMEOUT)
    except KafkaException as error:
        raise translate(error_of(error), "resetting the sequence numbers", topic) from None
