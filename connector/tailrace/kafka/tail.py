"""Observes a cluster: its topics, and new records as consumers see them.

Nothing here fences, commits, joins a group or creates a topic, so it may run at the same time as a pipeline.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace.errors import KafkaUnavailable, TailraceError, TopicMissing
from tailrace.kafka.client import (
    Config,
    KafkaOptions,
    admin_config,
    consumer_config,
    error_of,
    require_token,
    security_protocol,
    translate,
    unusable,
)

LOOK_TIMEOUT = 5.0
"""A broker that does not answer within this time counts as unavailable."""
PROBE_TIMEOUT = 2.0
DISCOVER_SECONDS = 2.0
"""How often new topics and partitions are discovered."""
POLL_SECONDS = 0.2
"""How soon a request to end is noticed."""


class Cluster(NamedTuple):
    """The number of brokers, and the number of partitions of each topic.

    `copies`: the fewest replicas of any partition of a topic. `leaderless`: how many of its partitions have no leader.
    """

    brokers: int
    topics: dict[str, int]
    copies: Mapping[str, int] = MappingProxyType({})
    leaderless: Mapping[str, int] = MappingProxyType({})


class TailedRecord(NamedTuple):
    """A committed record. Headers are text; of several with one name, the last."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, str]


class ClusterObserver:
    """An admin client that remembers why Kafka is unavailable: a refused login looks like a timeout otherwise."""

    def __init__(self, options: KafkaOptions) -> None:
        require_token(options)
        self._trouble: list[KafkaError] = []
        try:
            # A bound method would make a cycle, and the garbage collector may run in a thread of the client itself.
            config: Config = {**admin_config(options), "error_cb": partial(_remember, self._trouble)}
            self.admin = AdminClient(config)
        except KafkaException as error:
            raise unusable(error) from None

    def look(self) -> Cluster:
        """The brokers and topics of the cluster now."""
        try:
            found = self.admin.list_topics(timeout=LOOK_TIMEOUT)
        except KafkaException as error:
            self.admin.poll(0)  # delivers the client's errors
            raise translate([*self._trouble, error_of(error)][0], "asking Kafka for its topics") from None
        there = {name: topic.partitions.values() for name, topic in found.topics.items() if topic.error is None}
        return Cluster(
            len(found.brokers),
            {name: len(parts) for name, parts in there.items()},
            {name: min((len(part.replicas) for part in parts), default=0) for name, parts in there.items()},
            {name: sum(part.leader < 0 for part in parts) for name, parts in there.items()},
        )


def _remember(trouble: list[KafkaError], error: KafkaError) -> None:
    # That all brokers are down follows from the first error, which says why.
    if error.code() != KafkaError._ALL_BROKERS_DOWN:
        trouble[:] = [error]


def connection_trouble(options: KafkaOptions) -> TailraceError | None:
    """Connects once more to learn why Kafka is unavailable: clients do not always tell a refused login or certificate
    from a broker that is away. None if Kafka is unavailable, or available again.
    """
    if security_protocol(options) == "plaintext":
        return None
    try:
        ClusterObserver(options).look()
    except KafkaUnavailable:
        return None
    except TailraceError as error:
        return error
    return None


def answering(options: KafkaOptions) -> Callable[[], bool]:
    """Returns a cheap function that says whether any broker answers now."""
    clients: list[AdminClient] = []

    def answers() -> bool:
        try:
            if not clients:
                require_token(options)
                config: Config = {**admin_config(options), "reconnect.backoff.max.ms": 1000, "error_cb": lambda _: None}
                clients.append(AdminClient(config))
            clients[0].describe_cluster(request_timeout=PROBE_TIMEOUT).result(2 * PROBE_TIMEOUT)
        except (KafkaException, TimeoutError, TailraceError):
            return False
        return True

    return answers


class TopicTail:
    """Follows every topic that `wanted` accepts, old and new, until closed. Belongs to one thread."""

    def __init__(self, options: KafkaOptions, wanted: Callable[[str], bool], *, beginning: bool) -> None:
        """`beginning` also reads existing records; topics that appear later are always read from their beginning."""
        self._wanted = wanted
        self._assigned: set[tuple[str, int]] = set()
        self._looked = 0.0
        require_token(options)
        try:
            self._consumer = Consumer({**consumer_config(options, f"tailrace-tail-{options.pipeline}")})
        except KafkaException as error:
            raise unusable(error) from None
        try:
            self._discover(beginning=beginning)
        except BaseException:
            self._consumer.close()
            raise

    @property
    def topics(self) -> list[str]:
        """The topics that are followed now."""
        return sorted({topic for topic, _ in self._assigned})

    def __iter__(self) -> Iterator[TailedRecord]:
        while True:
            for message in self._consumer.consume(num_messages=500, timeout=POLL_SECONDS):
                if (error := message.error()) is None:
                    yield _tailed(message)
                else:
                    self._handle_error(error, message.topic())
            if time.monotonic() - self._looked > DISCOVER_SECONDS:
                try:
                    self._discover(beginning=True)
                except KafkaUnavailable:
                    pass  # the client goes on with known topics when Kafka is back

    def close(self) -> None:
        self._consumer.close()

    def _discover(self, *, beginning: bool) -> None:
        try:
            found = self._consumer.list_topics(timeout=LOOK_TIMEOUT).topics
            new = [
                TopicPartition(name, partition)
                for name, topic in found.items()
                if topic.error is None and self._wanted(name)
                for partition in topic.partitions
                if (name, partition) not in self._assigned
            ]
            for each in new:
                # Read the end now, not at the first fetch, so that everything written from here on is shown.
                each.offset = OFFSET_BEGINNING if beginning else self._end(each)
            if new:
                self._consumer.incremental_assign(new)
        except KafkaException as error:
            raise translate(error_of(error), "looking for topics") from None
        finally:
            self._looked = time.monotonic()
        self._assigned |= {(each.topic, each.partition) for each in new}

    def _end(self, partition: TopicPartition) -> int:
        """The last stable offset: records of open transactions are shown later."""
        return int(self._consumer.get_watermark_offsets(partition, timeout=LOOK_TIMEOUT, cached=False)[1])

    def _handle_error(self, error: Any, topic: str | None) -> None:  # noqa: ANN401 - typed loosely by the driver
        if error.code() == KafkaError._PARTITION_EOF:
            return
        trouble = translate(error, "reading", topic)
        # A broker or a deleted topic may come back.
        if not isinstance(trouble, KafkaUnavailable | TopicMissing):
            raise trouble


def topic_matcher(topics: set[str], template: str | None, never: set[str]) -> Callable[[str], bool]:
    """Whether a topic is one of `topics` or can have come from `template`; those in `never` only by name."""
    pattern = None
    if template is not None:
        fixed = [re.escape(part) for part in re.split(r"\{(?:aggregate|type|stream)\}", template)]
        pattern = re.compile("[a-zA-Z0-9._-]+".join(fixed))

    def wanted(topic: str) -> bool:
        if topic in topics:
            return True
        by_template = pattern is not None and pattern.fullmatch(topic) is not None
        return by_template and topic not in never and not topic.startswith("__")

    return wanted


def _tailed(message: Message) -> TailedRecord:
    found: Any = message  # the driver types its accessors wrongly
    headers = {name: (value or b"").decode(errors="backslashreplace") for name, value in found.headers() or []}
    return TailedRecord(
        found.topic(), found.partition(), found.offset(), found.timestamp()[1], found.key(), found.value(), headers
    )
