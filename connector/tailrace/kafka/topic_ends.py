"""Asks Kafka, within bounds, whether it answers and where topics end: a change shows that there is something to read.

Nothing here creates a topic, joins a group or reads a record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tailrace.errors import KafkaUnavailable
from tailrace.kafka.client import KafkaOptions, error_of, translate
from tailrace.kafka.tail import ClusterObserver

ASK_SECONDS = 3.0
TopicEnds = dict[tuple[str, int], int]
"""The end of each partition of each topic."""


class TopicEndsReader:
    """Keeps one client. For one thread."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._observer: ClusterObserver | None = None

    def read(self, topics: Iterable[str]) -> TopicEnds:
        """Returns the ends of those topics that exist; raises KafkaUnavailable if Kafka does not answer in time."""
        if self._observer is None:
            self._observer = ClusterObserver(self._options)
        admin = self._observer.admin
        try:
            asked = admin.describe_topics(TopicCollection(list(topics)), request_timeout=ASK_SECONDS)
            partitions: list[TopicPartition] = []
            for name, answer in asked.items():
                try:
                    found = answer.result(2 * ASK_SECONDS)
                    partitions += [TopicPartition(name, each.id) for each in found.partitions]
                except KafkaException as error:
                    if error_of(error).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
            if not partitions:
                return {}
            latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
            ends = admin.list_offsets(dict.fromkeys(partitions, latest), request_timeout=ASK_SECONDS)
            return {(part.topic, part.partition): end.result(2 * ASK_SECONDS).offset for part, end in ends.items()}
        except KafkaException as error:
            raise translate(error_of(error), "asking Kafka where topics end") from None
        except TimeoutError:
            raise KafkaUnavailable(
                f"Kafka has not answered within {2 * ASK_SECONDS:.0f} s",
                why="Kafka is unavailable or too slow.",
                remedy="Check the brokers. Tailrace asks again by itself.",
            ) from None
