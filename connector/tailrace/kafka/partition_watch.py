"""Notices when a topic has another number of partitions than before: keys may then go elsewhere.

A producer chooses the partition by the key's hash and the number of partitions. When that grows, later events of a key
may land on another partition than earlier ones, and nothing orders the two. It cannot be undone, so it is not an error
to stop for; but whoever relies on the order must learn of it. One watch serves all attempts of a pipeline: topics also
grow during an outage.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

_log = logging.getLogger("tailrace")


class PartitionWatch:
    """Remembers the partitions of each topic since this process first saw it."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._counts: dict[str, int] = {}

    def note(self, live: Mapping[str, int], topics: Iterable[str]) -> None:
        """Compares what Kafka says now of these topics; every change is told once."""
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
            "why": "Keys may go to other partitions than before: order of a key across the change is not kept.",
            "remedy": f"Let consumers finish the old events first if order matters, and write partitions: {now} "
            "in the topic's spec.",
        }
        _log.warning("partitions changed", extra={"fields": fields})
