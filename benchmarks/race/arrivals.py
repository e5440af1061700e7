"""What a `read_committed` consumer sees of a contender's topics: how many events, which, and when Kafka stored them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

PARTITIONS = 3
TIMEOUT = 120.0
"""Seconds without any new event after which a contender has failed."""
STAMPED_BY_BROKER = {"message.timestamp.type": "LogAppendTime"}
"""So that a record's timestamp is the time at which Kafka stored it, whoever sent it."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The distinct events of a drain by the time of their arrival, in ms, and how many came again."""

    times: Sequence[int]
    duplicates: int

    def rate(self, began: float) -> float:
        """Returns the events a second from `began` to the last one."""
        return len(self.times) * 1000 / max(1.0, self.times[-1] - began)

    @property
    def warm_rate(self) -> float:
        """The events a second of the second half."""
        second = self.times[len(self.times) // 2 :]
        return len(second) * 1000 / max(1, second[-1] - second[0])


class Topics:
    """The topics of a contender, read from their present ends."""

    def __init__(self, bootstrap: str, topics: Sequence[str]) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "race",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "socket.nagle.disable": True,
            }
        )
        self._partitions = [TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)]
        self._begin = self._ends()
        self._consumer.assign(
            [
                TopicPartition(each.topic, each.partition, end)
                for each, end in zip(self._partitions, self._begin, strict=True)
            ]
        )
        # Nothing is fetched before the drain is over: reading would use the cores that are measured.
        self._consumer.pause(self._partitions)

    def __enter__(self) -> Topics:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def _ends(self) -> list[int]:
        return [self._consumer.get_watermark_offsets(each, timeout=30)[1] for each in self._partitions]

    def stored(self, records: int, check: Callable[[], None], timeout: float) -> bool:
        """Waits until that many records are stored, open transactions included, or none came for `timeout` seconds.

        `check` raises if a process has ended.
        """
        deadline, last = time.monotonic() + timeout, 0
        while (found := sum(self._ends()) - sum(self._begin)) < records:
            check()
            if found > last:
                deadline, last = time.monotonic() + timeout, found
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def wait_for(self, records: int, check: Callable[[], None]) -> None:
        if not self.stored(records, check, TIMEOUT):
            raise TimeoutError(f"fewer than {records:,} records, and no more within {TIMEOUT:.0f} s")

    def resume(self) -> None:
        self._consumer.resume(self._partitions)

    def poll(self) -> Message | None:
        """Returns the next record, if one arrives within a tenth of a second."""
        message = self._consumer.poll(0.1)
        return message if message is not None and message.error() is None else None

    def read(self, events: int, ignored: Collection[str]) -> Arrivals:
        """Reads until that many distinct events have come, and then to the end."""
        self.resume()
        times: dict[str, int] = {}
        duplicates = 0
        deadline = time.monotonic() + 60
        while True:
            messages: list[Message] = self._consumer.consume(5000, 0.5)
            for message in messages:
                if message.error() is not None or (event := event_id(message)) in ignored:
                    continue
                duplicates += event in times
                times.setdefault(event, message.timestamp()[1])
            if messages:
                deadline = time.monotonic() + 60
            elif len(times) >= events:
                break
            elif time.monotonic() > deadline:
                raise SystemExit(f"{len(times):,} events arrived instead of {events:,}")
        if len(times) != events:
            raise SystemExit(f"{len(times):,} events arrived instead of {events:,}")
        return Arrivals(sorted(times.values()), duplicates)


def event_id(message: Message) -> str:
    headers: dict[str, Any] = dict(message.headers() or [])
    return bytes(headers["id"]).decode()
