"""The target state of a pipeline: whether a user wants it RUNNING, PAUSED or STOPPED.

It is stored on the pipeline's offsets topic, so that it survives a restart of the worker and is the same for all
workers. It is written before the process ends and gives the pipeline up: an instance that waits for that end reads it
first, and does not take over a pipeline that was paused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from confluent_kafka import KafkaException

from tailrace.errors import TopicMissing
from tailrace.kafka.client import KafkaOptions, error_of, translate, write_record
from tailrace.kafka.reader import TopicFollower
from tailrace.kafka.topics import partition_counts
from tailrace.state import offsets

TARGET_SUFFIX = "/target"
RUNNING, PAUSED, STOPPED = "RUNNING", "PAUSED", "STOPPED"
TARGETS = (RUNNING, PAUSED, STOPPED)
WRITE_TIMEOUT = 10.0
LOOK_TIMEOUT = 15.0


def target_key(pipeline: str) -> bytes:
    return (pipeline + TARGET_SUFFIX).encode()


def parse_target(value: bytes | None) -> str | None:
    """Returns the target state; None if there is none, or if something else wrote the record."""
    try:
        found = json.loads(value or b"null")
    except ValueError:
        return None
    target = found.get("target") if isinstance(found, dict) else None
    return target if target in TARGETS else None


def write_target(options: KafkaOptions, target: str) -> None:
    """Stores the target state; raises KafkaUnavailable or what Kafka refuses. Creates the offsets topic if needed."""
    offsets.ensure(options, offsets.admin_client(options))
    value = json.dumps({"target": target, "at_ms": time.time_ns() // 1_000_000}).encode()
    try:
        write_record(options, options.offsets_topic, target_key(options.pipeline), value, WRITE_TIMEOUT)
    except KafkaException as error:
        raise translate(error_of(error), "storing the target state", options.offsets_topic) from None


class TargetFollower:
    """Reads the target states of all pipelines that share an offsets topic. Belongs to one thread at a time."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._follower: TopicFollower | None = None

    def read(self) -> Iterator[tuple[str, str]]:
        """Yields what was written since the last call, as pipeline and target. None yet if there is no topic."""
        if self._follower is None:
            if self._options.offsets_topic not in partition_counts(offsets.admin_client(self._options)):
                return
            self._follower = TopicFollower(self._options, self._options.offsets_topic, "targets")
        try:
            for message in self._follower.read(LOOK_TIMEOUT):
                key, target = message.key() or b"", parse_target(message.value())
                if key.endswith(TARGET_SUFFIX.encode()) and target is not None:
                    yield key.decode("utf-8", "replace").removesuffix(TARGET_SUFFIX), target
        except TopicMissing:
            self.close()  # it was deleted; it is read again when it is there again

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None
