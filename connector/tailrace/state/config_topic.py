"""The topic of pipeline configurations that were created over HTTP: compacted, key = name of the pipeline.

All workers with the same topic follow it, so each of them has the same pipelines. A tombstone deletes a pipeline. The
values are written as they were given, with unresolved references. Whoever can write to this topic decides what the
workers publish: protect it.
"""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import KafkaException

from tailrace.errors import ConfigTopicUnfit, TailraceError, TopicMissing
from tailrace.kafka.client import KafkaOptions, error_of, translate, write_record
from tailrace.kafka.reader import TopicFollower
from tailrace.kafka.topics import create_topic, partition_counts, topic_config
from tailrace.routing.specs import TopicSpec
from tailrace.state import offsets

WRITE_TIMEOUT = 10.0
LOOK_TIMEOUT = 15.0


class ConfigTopic:
    """Reads and writes configurations. Blocking; belongs to one thread at a time, except for `write`."""

    def __init__(self, options: KafkaOptions, topic: str) -> None:
        self.options = options
        self.topic = topic
        self._follower: TopicFollower | None = None

    def ensure(self) -> None:
        """Creates the topic if it is missing; raises ConfigTopicUnfit if it could lose configurations."""
        admin = offsets.admin_client(self.options)
        partitions = partition_counts(admin).get(self.topic)
        if partitions is None:
            spec = TopicSpec(self.topic, 1, self.options.internal_replication, {"cleanup.policy": "compact"})
            create_topic(admin, spec)
            return
        policy = topic_config(admin, self.topic).get("cleanup.policy", "")
        if policy != "compact":
            raise ConfigTopicUnfit(
                f"the topic {self.topic} has cleanup.policy={policy}",
                why="Kafka would delete configurations by age or size.",
                remedy="kafka-configs --alter --entity-type topics "
                f"--entity-name {self.topic} --add-config cleanup.policy=compact",
            )
        if partitions != 1:
            raise ConfigTopicUnfit(
                f"the topic {self.topic} has {partitions} partitions",
                why="Configurations must be in one order, which needs exactly one partition.",
                remedy="Name another topic with --config-topic.",
            )

    def read(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Yields key and value of what was written since the last call, up to the end that the topic has now."""
        if self._follower is None:
            self._follower = TopicFollower(self.options, self.topic, "configs", committed=True)
        try:
            for message in self._follower.read(LOOK_TIMEOUT):
                yield message.key(), message.value()
        except TailraceError as error:
            self.close()
            if isinstance(error, TopicMissing):
                raise ConfigTopicUnfit(
                    f"the topic {self.topic} is missing",
                    why="It was deleted. The pipelines that it described go on.",
                    remedy="Create it again with cleanup.policy=compact, or restart the worker, which creates it.",
                ) from None
            raise

    def write(self, name: str, value: bytes | None) -> None:
        """Stores a configuration; None deletes it."""
        try:
            write_record(self.options, self.topic, name.encode(), value, WRITE_TIMEOUT)
        except KafkaException as error:
            raise translate(error_of(error), "storing the configuration", self.topic) from None

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None
