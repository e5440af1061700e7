"""What the topics of a pipeline take: the bytes of a record batch, and how old a record may say it is. Pure.

Kafka applies `max.message.bytes` to a whole record batch, so the producer's batches must not be larger than the
smallest limit of the topics it writes. A topic may also refuse records whose time is too long ago. Both are read from
the topics' settings; where those are not shown to us, or have changed meanwhile, a refusal narrows what is sent. One
object serves all attempts of a pipeline.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from tailrace.kafka.timestamps import OLD_MS

BATCH_BYTES = 1_000_000
"""The producer's `batch.size` unless a user sets another: librdkafka's own default."""
SHRINK = 4
"""A batch that was refused is made smaller by this factor when the limit itself is not known."""


class TopicLimits:
    """The limits of the topics that are written to, as far as they are known."""

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
        """What a record batch may have at most; huge if nothing is known."""
        return min(self._tried_bytes, *self._bytes.values(), sys.maxsize)

    @property
    def age_ms(self) -> int:
        """How long ago the time of a record may be at most."""
        return min(self._tried_age_ms, *self._age_ms.values(), OLD_MS)

    def record_bytes(self, topic: str, batch_bytes: int) -> int:
        """Records up to this size are taken alone, if a batch of `batch_bytes` was refused."""
        return self._bytes.get(topic, batch_bytes // 2)

    def shrink(self, batch_bytes: int) -> bool:
        """A batch of this size was refused, and no record of it is too large alone. False if it cannot be smaller."""
        self._tried_bytes = max(1, batch_bytes // SHRINK)
        return batch_bytes > 1

    def distrust_times(self) -> bool:
        """A record's time was refused: from now on all bear that of their publishing. False if they did already."""
        trusted = self.age_ms > 0
        self._tried_age_ms = 0
        return trusted


def _number(config: Mapping[str, str | None], name: str) -> int:
    try:
        return int(config.get(name) or sys.maxsize)
    except ValueError:
        return sys.maxsize
