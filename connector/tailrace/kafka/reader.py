"""Reads topics up to the end they have now: the one place that knows where a topic ends and how long to wait for it.

Ends: the end of a partition is asked for before reading, and later records are not read. For a reader of committed
records it is either the last stable offset, where the first open transaction begins, or the high watermark
(`include_open`): then reading waits until every transaction below it is committed or aborted. A partition is done when
a record or an end-of-partition event shows that the end is reached. The event counts control records, aborted records
and the holes of compaction, which no message shows. Records that were deleted from the front are skipped. Partitions
that appear later are not read; a topic that does not exist has none.

Deadlines: reading may take any time while it advances. It fails with KafkaUnavailable if no unfinished partition
advances for `stall_seconds`, not counting the time that the caller spends between two calls.

Nothing here commits, joins a group or creates a topic.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tailrace.errors import KafkaUnavailable, TopicMissing
from tailrace.kafka.client import KafkaOptions, consumer_config, error_of, require_token, translate, unusable

ASK_TIMEOUT = 10.0
"""Timeout of a request for topics or offsets."""
STALL_SECONDS = 90.0
"""Longer than a transaction's timeout: the transaction of a killed producer hides everything behind it until then."""
POLL_SECONDS = 0.05
MISSING_SECONDS = 5.0
"""A topic counts as missing only after this long: brokers may not know it yet after it was created, or they started."""
MISSING_PAUSE = 0.2
BATCH_RECORDS = 100
QUEUE_KBYTES = 16_384
"""How much the client fetches ahead. It bounds memory: a dead letter may have 8 MB."""
_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
_TRANSIENT = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)
"""A broker is away for a moment. The deadline decides how long that may take."""


class OffsetRange(NamedTuple):
    """Offsets from `start` to before `end`."""

    start: int
    end: int


Ranges = dict[int, OffsetRange]
"""By partition."""
Partition = tuple[str, int]


def read_topic(
    options: KafkaOptions, topic: str, purpose: str = "dlq", *, since_ms: int | None = None, include_open: bool = False
) -> Generator[Message, None, None]:
    """Every committed record that a topic holds now, from the first one of `since_ms` on; see `RangeReader.ranges`."""
    with RangeReader(options, purpose) as reader:
        yield from reader.records(topic, reader.ranges(topic, since_ms=since_ms, include_open=include_open))


class RangeReader:
    """Reads ranges of offsets. Belongs to one thread; one reading at a time."""

    def __init__(
        self,
        options: KafkaOptions,
        purpose: str,
        *,
        committed: bool = True,
        stall_seconds: float = STALL_SECONDS,
        batch_records: int = BATCH_RECORDS,
        queue_kbytes: int = QUEUE_KBYTES,
    ) -> None:
        """`purpose` is part of the group id. Without `committed`, records of open transactions are read, too."""
        self.stall_seconds = stall_seconds
        self.waiting: dict[Partition, int] = {}
        """The ends of the partitions that are not read to their end yet."""
        self._options = options
        self._purpose = purpose
        self._committed = committed
        self._batch_records = batch_records
        self._queue_kbytes = queue_kbytes
        self._positions: dict[Partition, int] = {}
        self._paused: set[Partition] = set()
        self._stalled = 0.0
        self._closed = False
        self._uncommitted: Consumer | None = None
        self._consumer = self._connect(committed=committed)

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._consumer.close()
            if self._uncommitted is not None:
                self._uncommitted.close()

    def ranges(
        self, topic: str, *, since_ms: int | None = None, include_open: bool = False, must_exist: bool = False
    ) -> Ranges:
        """Returns what the topic holds now, without empty partitions; from the first record of `since_ms` on."""
        found = self.bounds(topic, since_ms=since_ms, include_open=include_open, must_exist=must_exist)
        return {number: range_ for number, range_ in found.items() if range_.start < range_.end}

    def bounds(
        self, topic: str, *, since_ms: int | None = None, include_open: bool = False, must_exist: bool = False
    ) -> Ranges:
        """The same with empty partitions. `must_exist` raises TopicMissing if there is no such topic."""
        deadline = time.monotonic() + MISSING_SECONDS
        while True:
            try:
                return self._bounds(topic, since_ms, include_open=include_open, must_exist=must_exist)
            except TopicMissing:
                if not must_exist or time.monotonic() > deadline:
                    raise
                time.sleep(MISSING_PAUSE)

    def _bounds(self, topic: str, since_ms: int | None, *, include_open: bool, must_exist: bool) -> Ranges:
        consumer = self._consumer
        if include_open and self._committed:
            # To a reader of committed records Kafka names the last stable offset as the end.
            consumer = self._uncommitted = self._uncommitted or self._connect(committed=False)
        try:
            found = consumer.list_topics(topic, timeout=ASK_TIMEOUT).topics.get(topic)
            if found is None or found.error is not None:
                if found is not None and found.error.code() not in _MISSING:
                    raise translate(found.error, f"asking for {topic}", topic)
                if must_exist:
                    raise TopicMissing(
                        f"there is no topic {topic}",
                        why="It was deleted, or never created.",
                        remedy="Create it, or let Tailrace create it on its next start (topics.create: true).",
                    )
                return {}
            bounds: Ranges = {}
            for number in found.partitions:
                asked = TopicPartition(topic, number)
                low, high = consumer.get_watermark_offsets(asked, timeout=ASK_TIMEOUT, cached=False)
                if since_ms is not None:
                    # All records before the first one of that time are older, in any order of timestamps.
                    (first,) = consumer.offsets_for_times([TopicPartition(topic, number, since_ms)], ASK_TIMEOUT)
                    low = max(low, first.offset) if first.offset >= 0 else high
                bounds[number] = OffsetRange(low, high)
        except KafkaException as error:
            raise translate(error_of(error), f"asking for the end of {topic}", topic) from None
        return bounds

    def records(self, topic: str, ranges: Mapping[int, OffsetRange]) -> Generator[Message, None, None]:
        """Every record of a topic within `ranges`, in the order of each partition."""
        with closing(self.batches({(topic, number): range_ for number, range_ in ranges.items()})) as batches:
            for batch in batches:
                yield from batch

    def batches(self, ranges: Mapping[Partition, OffsetRange]) -> Generator[list[Message], None, None]:
        """The records within `ranges`, in the order of each partition, as many at a time as the client has ready."""
        try:
            self.assign(ranges)
            while self.waiting:
                if batch := self.poll():
                    yield batch
        finally:
            self.pause()

    def assign(self, ranges: Mapping[Partition, OffsetRange]) -> None:
        """Starts to fetch these ranges; `poll` returns their records."""
        self.waiting = {partition: range_.end for partition, range_ in ranges.items() if range_.start < range_.end}
        self._positions = {partition: ranges[partition].start for partition in ranges}
        self._stalled = 0.0
        try:
            if self.waiting:
                self._consumer.assign([TopicPartition(*each, self._positions[each]) for each in self.waiting])
                self._resume()
        except KafkaException as error:
            raise translate(error_of(error), "reading topics") from None

    def _resume(self) -> None:
        """Resumes what an earlier reading paused: the client remembers that beyond an assignment."""
        paused = [TopicPartition(*each) for each in self._paused & self.waiting.keys()]
        if paused:
            self._consumer.resume(paused)
            self._paused -= self.waiting.keys()

    def position(self, topic: str, partition: int) -> int:
        """Everything below this offset was read."""
        return self._positions.get((topic, partition), 0)

    def poll(self) -> list[Message]:
        """The next records within the assigned ranges; none if none came for a moment."""
        began = time.monotonic()
        try:
            messages: list[Any] = self._consumer.consume(num_messages=self._batch_records, timeout=POLL_SECONDS)
        except KafkaException as error:
            raise translate(error_of(error), "reading topics") from None
        good = [message for message in messages if message.error() is None]
        reached = {(message.topic(), message.partition()): message.offset() + 1 for message in good}
        if len(good) < len(messages):
            for message in messages:
                if message.error() is not None:
                    _handle(message, reached)
        if any(offset > self.waiting.get(partition, 0) for partition, offset in reached.items()):
            ends = self.waiting
            good = [each for each in good if each.offset() < ends.get((each.topic(), each.partition()), 0)]
        advanced = self._advance(reached)
        self._stalled = 0.0 if advanced else self._stalled + time.monotonic() - began
        if self.waiting and self._stalled > self.stall_seconds:
            raise KafkaUnavailable(
                f"the end of {min(self.waiting)[0]} could not be read within {self.stall_seconds:.0f} s",
                why="A hanging transaction of another producer hides it, or Kafka is too slow.",
                remedy="A pipeline retries by itself; run a command again. `kafka-transactions find-hanging` names the "
                "producer.",
            )
        return good

    def _advance(self, reached: Mapping[Partition, int]) -> bool:
        """Notes how far the unfinished partitions were read; returns whether any of them advanced."""
        advanced = False
        finished: list[Partition] = []
        for partition, offset in reached.items():
            end = self.waiting.get(partition)
            if end is None:
                continue
            if offset > self._positions[partition]:
                self._positions[partition] = offset
                advanced = True
            if self._positions[partition] >= end:
                finished.append(partition)
                del self.waiting[partition]
        if finished and self.waiting:
            # Later records of these partitions are not wanted.
            self._consumer.pause([TopicPartition(*each) for each in finished])
            self._paused.update(finished)
        return advanced

    def pause(self) -> None:
        """Fetches nothing in the background until the next `assign`."""
        self.waiting = {}
        if not self._closed:
            self._consumer.unassign()

    def _connect(self, *, committed: bool) -> Consumer:
        require_token(self._options)
        config = consumer_config(self._options, f"tailrace-{self._purpose}-{self._options.pipeline}")
        config["queued.max.messages.kbytes"] = self._queue_kbytes
        if not committed:
            config["isolation.level"] = "read_uncommitted"
        try:
            return Consumer(config)
        except KafkaException as error:
            raise unusable(error) from None


def _handle(message: Any, reached: dict[Partition, int]) -> None:  # noqa: ANN401 - typed loosely by the driver
    """Notes an end-of-partition event, or raises an error that is not transient."""
    error: KafkaError = message.error()
    topic = message.topic()
    if error.code() == KafkaError._PARTITION_EOF:
        partition = topic, message.partition()
        reached[partition] = max(reached.get(partition, 0), message.offset())
    elif error.code() not in _TRANSIENT:
        raise translate(error, f"reading {topic}", topic)


class TopicFollower:
    """Reads a topic with one partition from its beginning and, each time it is asked again, what was written since."""

    def __init__(self, options: KafkaOptions, topic: str, purpose: str, *, committed: bool = False) -> None:
        """Without `committed`, an open transaction neither hides records nor holds the end back."""
        self._topic = topic
        self._reader = RangeReader(options, purpose, committed=committed)
        self._next = 0

    def read(self, stall_seconds: float = STALL_SECONDS) -> Iterator[Message]:
        """Everything up to the end that the topic has now, open transactions included, and not less."""
        self._reader.stall_seconds = stall_seconds
        deadline = time.monotonic() + MISSING_SECONDS
        while True:
            try:
                yield from self._read()
            except TopicMissing:
                if time.monotonic() > deadline:
                    raise
                time.sleep(MISSING_PAUSE)
            else:
                return

    def _read(self) -> Iterator[Message]:
        bounds = self._reader.bounds(self._topic, include_open=True, must_exist=True)
        end = bounds[0].end if bounds else 0
        if end < self._next:
            self._next = 0  # the topic was deleted and created again
        for message in self._reader.records(self._topic, {0: OffsetRange(self._next, end)}):
            self._next = (message.offset() or 0) + 1
            yield message
        self._next = max(self._next, end)

    def close(self) -> None:
        self._reader.close()
