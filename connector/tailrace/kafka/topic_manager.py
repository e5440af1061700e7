"""Decides which topics may be written to: creates them as declared, and notices changes of their partitions.

A producer chooses the partition by the key's hash and the number of partitions. When that number grows, later events of
a key may land on another partition than earlier ones, and nothing orders the two. This cannot be undone, so it is a
warning and no error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tailrace.errors import TailraceError, TopicMissing, TopicRefused
from tailrace.kafka.client import error_of
from tailrace.kafka.topic_limits import TopicLimits
from tailrace.kafka.topics import absent, create_topic, partition_counts, send_create
from tailrace.routing.specs import BROKER_DEFAULT, TopicSpec

SHORT_TIMEOUT = 3.0
RECOUNT_SECONDS = 30.0
"""How often partitions are counted again while events flow."""

_log = logging.getLogger("tailrace.kafka")


class PartitionWatch:
    """The partitions of each topic since this process first saw it. One serves all attempts of a pipeline."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._counts: dict[str, int] = {}

    def note(self, live: Mapping[str, int], topics: Iterable[str]) -> None:
        """Compares the present numbers of partitions with those before; warns once of each change."""
        for topic in topics:
            now = live.get(topic)
            if now is None:
                continue
            before = self._counts.setdefault(topic, now)
            if now != before:
                self._counts[topic] = now
                self._warn(topic, before, now)

    def _warn(self, topic: str, before: int, now: int) -> None:
        fields = {
            "pipeline": self._pipeline,
            "topic": topic,
            "before": before,
            "now": now,
            "why": "Keys may go to other partitions than before: the order of a key is not kept across the change.",
            "remedy": f"Let consumers finish the old events first if order matters, and write partitions: {now} "
            "in the topic's spec.",
        }
        _log.warning("partitions changed", extra={"fields": fields})


class TopicManager:
    """Checks once per topic that it exists; creates it if that is allowed."""

    def __init__(
        self,
        admin: AdminClient,
        specs: dict[str, TopicSpec],
        default: TopicSpec,
        watch: PartitionWatch,
        limits: TopicLimits,
        *,
        create: bool,
    ) -> None:
        """`default` gives partitions, replication and config of topics without a spec."""
        self.limits = limits
        self._admin = admin
        self._specs = specs
        self._default = default
        self._watch = watch
        self._create = create
        self._known: set[str] = set()
        self._recount_at = 0.0

    @property
    def known(self) -> frozenset[str]:
        """The topics that were written to."""
        return frozenset(self._known)

    def require(self, topics: list[str], alive: Callable[[], None] = lambda: None) -> None:
        """Makes sure that all of them exist. Called once per batch. `alive` is called before each that is created."""
        missing = [topic for topic in topics if topic not in self._known]
        if missing:
            existing = partition_counts(self._admin)
            for topic in missing:
                alive()
                if topic not in existing and (made := self._create_topic(topic)) != BROKER_DEFAULT:
                    existing[topic] = made
                self._known.add(topic)
            self.learn(missing)
            self._watch.note(existing, self._known)
            self._recount_at = time.monotonic() + RECOUNT_SECONDS
        elif time.monotonic() > self._recount_at:
            self._recount()

    def learn(self, topics: Iterable[str]) -> None:
        """Reads the limits of these topics. Limits that we may not read become known by a rejection."""
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        try:
            answers = self._admin.describe_configs(resources, request_timeout=SHORT_TIMEOUT)
        except KafkaException:
            return
        for resource, answer in answers.items():
            try:
                entries = answer.result(2 * SHORT_TIMEOUT)
            except (KafkaException, TimeoutError):
                continue
            self.limits.note(resource.name, {name: entry.value for name, entry in entries.items()})

    def vanished(self, topics: list[str]) -> list[str]:
        """Which of these topics existed before and no longer do."""
        # Called after a failure, perhaps because Kafka is unavailable: that is not worth a long wait.
        return absent(self._admin, [topic for topic in topics if topic in self._known], timeout=SHORT_TIMEOUT)

    def _recount(self) -> None:
        try:
            self._watch.note(partition_counts(self._admin, timeout=SHORT_TIMEOUT), self._known)
        except TailraceError:
            pass  # publishing reports the problem
        self._recount_at = time.monotonic() + RECOUNT_SECONDS

    def _create_topic(self, topic: str) -> int:
        """Creates the topic; returns the number of partitions that was asked for."""
        if not self._create:
            raise TopicMissing(
                f"there is no topic {topic}",
                why="topics.create is false, so Tailrace does not create it.",
                remedy=f"Create it: kafka-topics --create --topic {topic}. No event was skipped.",
            )
        spec = self._specs.get(topic)
        if spec is not None:
            create_topic(self._admin, spec)
            return spec.partitions
        spec = TopicSpec(topic, self._default.partitions, self._default.replication, self._default.config)
        try:
            send_create(self._admin, spec, spec.config, validate_only=True)
        except KafkaException as error:
            if error_of(error).code() == KafkaError.TOPIC_EXCEPTION:
                raise NameRefused(topic, error_of(error).str()) from None
        create_topic(self._admin, spec)
        return spec.partitions


class NameRefused(TopicRefused):
    """Kafka does not accept the topic name that an event gave: it is reserved, or collides with another."""

    def __init__(self, topic: str, why: str) -> None:
        super().__init__(
            f"Kafka does not take the name {topic} for a topic",
            why=why,
            remedy="Have the service use another name, or add a topic spec that covers the event.",
        )
        self.topic = topic
