"""Limits of the topics of a pipeline: the size of a record batch, and the age of a record's timestamp. Pure.

Kafka applies `max.message.bytes` to a whole record batch, so the producer's batches must not be larger than the
smallest limit of the topics it writes to. A topic may also reject records with an old timestamp. Both limits are read
from the topics' settings; where we may not read those, or they have changed, a rejection lowers the limit.

A record's timestamp is the time of its commit, unless that is long ago or in the future. Kafka deletes by timestamp: a
row from before the first start, a backlog after a long outage or a dead letter redriven after weeks would be older than
its topic keeps records, and deleted before any consumer has read it. A timestamp ahead of the broker's clock keeps a
record from being deleted, and Kafka rejects it by default if it is more than an hour ahead
(`message.timestamp.after.max.ms`). The header `timestamp` holds the commit time in any case.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

OLD_MS = 3_600_000
"""Shorter than the retention of any topic that has consumers."""
BATCH_BYTES = 1_000_000
"""The producer's `batch.size` unless a user sets another: librdkafka's own default."""
SHRINK = 4
"""A rejected batch is made smaller by this factor if the limit is not known."""


def publish_time(committed_ms: int, now_ms: int) -> int:
    """The timestamp of a record that is published now. All in Unix milliseconds."""
    return committed_ms if now_ms - OLD_MS < committed_ms <= now_ms else now_ms


class TopicLimits:
    """The known limits of the topics that are written to. One object serves all attempts of a pipeline."""

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}
        self._age_ms: dict[str, int] = {}
        self._tried_bytes = sys.maxsize
        self._tried_age_ms = OLD_MS

    def note(self, topic: str, config: Mapping[str, str | None]) -> None:
        """Remembers the settings of a topic, defaults included."""
        self._bytes[topic] = min(_number(config, "max.message.bytes"), _number(config, "segment.bytes"))
        stamped_by_broker = config.get("message.timestamp.type") == "LogAppendTime"
        # Brokers before 3.6 have one bound for both directions.
        oldest = min(
            _number(config, "message.timestamp.before.max.ms"), _number(config, "message.timestamp.difference.max.ms")
        )
        # Half of it: a record is older when it arrives than when it is sent, and clocks differ.
        self._age_ms[topic] = OLD_MS if stamped_by_broker else oldest // 2

    @property
    def batch_bytes(self) -> int:
        """The largest size of a record batch; huge if no limit is known."""
        return min(self._tried_bytes, *self._bytes.values(), sys.maxsize)

    @property
    def age_ms(self) -> int:
        """How old the timestamp of a record may be."""
        return min(self._tried_age_ms, *self._age_ms.values(), OLD_MS)

    def record_bytes(self, topic: str, batch_bytes: int) -> int:
        """Records up to this size are accepted alone, if a batch of `batch_bytes` was rejected."""
        return self._bytes.get(topic, batch_bytes // 2)

    def shrink(self, batch_bytes: int) -> bool:
        """Lowers the limit after a batch of this size was rejected, but no record alone. False if it cannot."""
        self._tried_bytes = max(1, batch_bytes // SHRINK)
        return batch_bytes > 1

    def distrust_times(self) -> bool:
        """Uses the time of publishing from now on, after a timestamp was rejected. False if it did so already."""
        trusted = self.age_ms > 0
        self._tried_age_ms = 0
        return trusted


def _number(config: Mapping[str, str | None], name: str) -> int:
    try:
        return int(config.get(name) or sys.maxsize)
    except ValueError:
        return sys.maxsize
