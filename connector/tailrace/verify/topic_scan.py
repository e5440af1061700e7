"""Parts of topics, read as fast as Kafka gives them: committed records only, in batches, up to an end that is known.

What is told of a record is what comparing needs, as a tuple (`Taken`); its headers are looked at once. Nothing here
commits, joins a group or creates a topic.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tailrace.dlq.reader import SILENCE_SECONDS, Span
from tailrace.errors import KafkaUnavailable
from tailrace.event import Headers
from tailrace.kafka.client import KafkaOptions, consumer_config, error_of, translate, unusable
from tailrace.records.plain import PIPELINE_HEADER
from tailrace.state.rewind_marker import SHADOW
from tailrace.verify.backend import Window
from tailrace.verify.compare import AGAIN, EDITED, OTHERS, OUTSIDE, SECOND

AT_ONCE = 2000
"""Messages taken at a time: enough to make each of them cheap."""
WAIT_SECONDS = 0.05
QUEUE_KBYTES = 8192
"""How much the client fetches ahead; with it memory is bounded also where records are large."""
KEYS = 32
"""Of so many records it is looked at where their keys lie."""
REPLAY = "tailrace.replay"
_PUBLISHED_AGAIN = {
    "tailrace.redriven": AGAIN,
    "tailrace.redriven.for": AGAIN | SECOND,
    REPLAY: AGAIN | SECOND,
    "tailrace.edited": EDITED,
}
_PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)
"""A broker that is away for a moment: how long is for the deadline to say."""

Taken = tuple[bytes, bytes | None, Headers, int, int, int, bytes | None, bytes | None, bytes | None]
"""A record of a pipeline: id, value, headers, flags, place, offset, key, and the headers `position` and `type`."""


class PartitionScan(NamedTuple):
    """What is to be read of a partition, which has the number `place`.

    `is_first`: records before it were deleted; when its first record was published tells up to when. `partitions`:
    how many the topic has.
    """

    topic: str
    partition: int
    span: Span
    place: int
    is_first: bool = False
    partitions: int = 0


class ScanResult(NamedTuple):
    """What was seen beside records of pipelines: how many others; and of parts that are first, by place, when the first
    record was published, and the keys of some."""

    foreign: int
    firsts: dict[int, int]
    keys: dict[int, list[bytes]]


class Scan:
    """One reading of some parts."""

    def __init__(
        self, kafka: KafkaOptions, window: Window, parts: Sequence[PartitionScan], *, patience: float = SILENCE_SECONDS
    ) -> None:
        """`patience`: for how many seconds it may come no nearer to the ends."""
        self.foreign = 0
        """Records that no pipeline wrote: they have no event's id."""
        self.firsts: dict[int, int] = {}
        self.keys: dict[int, list[bytes]] = {}
        self._kafka = kafka
        self._own = kafka.pipeline.encode()
        self._patience = patience
        self._window = window
        self._bounded = window != (None, None)
        self._parts = parts
        self._numbers = {(part.topic, part.partition): number for number, part in enumerate(parts)}
        self._places = [part.place for part in parts]
        self._ends = [part.span.end for part in parts]
        self._next = [part.span.start for part in parts]
        self._looked_at = {part.place: KEYS for part in parts if part.is_first}

    @property
    def told(self) -> ScanResult:
        return ScanResult(self.foreign, self.firsts, self.keys)

    def batches(self) -> Iterator[list[Taken]]:
        """The records of pipelines, in the order of their partitions."""
        waiting = dict(enumerate(self._ends))
        if not waiting:
            return
        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(part.topic, part.partition, part.span.start) for part in self._parts])
            deadline = time.monotonic() + self._patience
            while waiting:
                messages = consumer.consume(num_messages=AT_ONCE, timeout=WAIT_SECONDS)
                good = [message for message in messages if message.error() is None]
                reached = sum(self._next[number] for number in waiting)
                if good:
                    before = time.monotonic()
                    yield self._take(good)
                    # However long the caller took with them: that was not Kafka's silence.
                    deadline += time.monotonic() - before
                if len(good) < len(messages):
                    self._judge([message for message in messages if message.error() is not None])
                # What comes from partitions that have been read says nothing of the others.
                if sum(self._next[number] for number in waiting) > reached:
                    deadline = time.monotonic() + self._patience
                self._leave(consumer, [number for number, end in waiting.items() if self._next[number] >= end], waiting)
                if waiting and time.monotonic() > deadline:
                    topic = self._parts[min(waiting)].topic
                    raise KafkaUnavailable(
                        f"the end of {topic} could not be read within {self._patience:.0f} s",
                        why="A hanging transaction holds it back, or Kafka is too slow.",
                        remedy="Try again; `kafka-transactions find-hanging` names the culprit.",
                    )
        except KafkaException as error:
            raise translate(error_of(error), "reading topics") from None
        finally:
            consumer.close()

    def _leave(self, consumer: Consumer, ended: list[int], waiting: dict[int, int]) -> None:
        """Fetches nothing more of partitions that have been read: what is written there meanwhile is not asked for."""
        for number in ended:
            del waiting[number]
        if ended and waiting:
            consumer.pause([TopicPartition(self._parts[each].topic, self._parts[each].partition) for each in ended])

    def _take(self, messages: list[Any]) -> list[Taken]:
        taken: list[Taken] = []
        take = taken.append
        numbers, places, ends, following = self._numbers, self._places, self._ends, self._next
        bounded, looked_at, own = self._bounded, self._looked_at, self._own
        for message in messages:
            number = numbers[message.topic(), message.partition()]
            offset = message.offset()
            following[number] = offset + 1
            if offset >= ends[number]:
                continue
            headers = message.headers()
            try:
                (name, event), (_, kind), (where, position), (when, stamp), *further = headers
                if not event.isascii():
                    event.decode()
            except (TypeError, ValueError, AttributeError):
                name = ""
            # The first, third and fourth header of every record of a pipeline.
            if name != "id" or where != "position" or when != "timestamp":
                self.foreign += 1
                continue
            flags = 0
            for name, said in further:
                if name == PIPELINE_HEADER:
                    if said != own:
                        flags |= OTHERS
                elif name in _PUBLISHED_AGAIN:
                    flags |= _PUBLISHED_AGAIN[name]
                elif name == SHADOW:
                    break  # it stands for nothing that was published
            else:
                place = places[number]
                if bounded or place in looked_at:
                    flags |= self._times(place, stamp, message, flags)
                take((event, message.value(), headers, flags, place, offset, message.key(), position, kind))
        return taken

    def _times(self, place: int, stamp: bytes | None, message: Any, flags: int) -> int:  # noqa: ANN401 - typed loosely by the driver
        """OUTSIDE, if it is; notes when the first record of a partition was published at the earliest."""
        published_ms = message.timestamp()[1]
        at_ms = int(stamp) if stamp and stamp.isdigit() else published_ms
        if place in self._looked_at:
            # What was published late (replayed, redriven, recovered) has a commit of long ago, and a time of its own.
            self.firsts.setdefault(place, max(at_ms, published_ms))
            self._note_key(place, message.key(), flags)
        return OUTSIDE if self._bounded and at_ms not in self._window else 0

    def _note_key(self, place: int, key: bytes | None, flags: int) -> None:
        keys = self.keys.setdefault(place, [])
        # A redrive may have been given another partitioner.
        if key is not None and not flags & AGAIN:
            keys.append(key)
        self._looked_at[place] -= 1
        if not self._looked_at[place]:
            del self._looked_at[place]

    def _judge(self, messages: list[Message]) -> None:
        for message in messages:
            error: Any = message.error()
            topic = message.topic()
            if error.code() == KafkaError._PARTITION_EOF:
                # Its offset counts control records too, which no message shows.
                number = self._numbers[topic or "", int(message.partition() or 0)]
                self._next[number] = max(self._next[number], int(message.offset() or 0))
            elif error.code() not in _PASSING:
                raise translate(error, f"reading {topic}", topic)

    def _consumer(self) -> Consumer:
        try:
            return Consumer(
                {
                    **consumer_config(self._kafka, f"tailrace-dlq-{self._kafka.pipeline}"),
                    "queued.max.messages.kbytes": QUEUE_KBYTES,
                }
            )
        except KafkaException as error:
            raise unusable(error) from None
