"""The side of the consumer that talks to Kafka: a thread with an event loop of its own.

Faust gives each record to the event loop of the app some time after it was fetched, and a seek may come between. So
each seek begins a new *reading* of its partitions, by number, and whatever is fetched says of which reading it is: no
record of an older one can be taken for one that comes behind the seek. A fetch that was asked for in an older reading
takes nothing of a newer one: the app would drop it, for it asked for something else.

What a fetch returns also says which stretch of the log it has read. The stretches of a reading follow each other
without a gap, so whoever gets them can tell if one was lost on its way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import aiokafka
from aiokafka.consumer.fetcher import READ_COMMITTED, OffsetResetStrategy
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, ensure_aiokafka_TP
from faust.transport.drivers.aiokafka import Transport as KafkaTransport
from faust.types import TP

from tailrace.errors import ConfigError
from tailrace.projections.core.store import Partition
from tailrace.projections.faust.start_offsets import FetchedRange, PartitionBounds, start_offset

COMMIT_SECONDS = 5.0
"""For telling Kafka how far we are. It only follows the store, so it never holds anything up for long."""
FETCH_WAIT_MS = 500
"""How long a broker may hold an empty answer back. A partition that was just sought waits for that answer."""

log = logging.getLogger("tailrace.projections")


class FetchResult(dict[TP, list[Any]]):
    """Records by partition, and of the partitions of projections which stretch of the log was read."""

    def __init__(self, records: Mapping[TP, list[Any]], stretches: Mapping[TP, FetchedRange]) -> None:
        super().__init__(records)
        self.stretches = stretches
        self.chains = {
            tp: stretch.chain([record.offset for record in records[tp]])
            for tp, stretch in stretches.items()
            if tp in records
        }


@dataclass(slots=True)
class FetchCursor:
    """How far a reading has come: the end of its last stretch, and the offset behind its last record.

    `state` is aiokafka's, made with each assignment: another one stands at a position that is not ours.
    """

    state: Any
    reading: int
    end: int
    follows: int


class ConsumerThread(AIOKafkaConsumerThread):
    """Methods without an underscore are called from the app's event loop, all others run in this thread."""

    logger = logging.getLogger("faust.projections")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.owned: Set[TP] = frozenset()
        """The partitions of projections; set by the consumer, looked at by this thread."""
        self._cursors: dict[TP, FetchCursor] = {}

    def _create_worker_consumer(self, transport: KafkaTransport) -> aiokafka.AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        # Faust has no setting for it. `check_reader` looks whether it took effect.
        consumer._isolation_level = "read_committed"
        # With any other, aiokafka goes on elsewhere, without a word, when the log no longer has what it asks for.
        consumer._auto_offset_reset = "none"
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS
        return consumer

    def check_reader(self) -> None:
        """Raises unless the real consumer reads as the guarantees need it."""
        consumer = self._ensure_consumer()
        fetcher = getattr(consumer, "_fetcher", None)
        found = {
            "isolation level": getattr(fetcher, "_isolation_level", None) == READ_COMMITTED,
            "offset reset": getattr(fetcher, "_default_reset_strategy", None) == OffsetResetStrategy.NONE,
            "auto-commit": getattr(consumer, "_enable_auto_commit", None) is False,
        }
        wrong = [name for name, right in found.items() if not right]
        if wrong:
            raise ConfigError(
                f"the Kafka consumer is not set up as projections need it: {', '.join(wrong)}",
                why="Aborted events would be applied, or events skipped.",
                remedy="Use the versions of faust-streaming and aiokafka that Tailrace was tested with.",
            )

    # Where it reads.

    async def bounds(self, tps: Collection[TP]) -> Mapping[TP, PartitionBounds]:
        bounds: Mapping[TP, PartitionBounds] = await self.call_thread(self._bounds, tps)
        return bounds

    async def _bounds(self, tps: Collection[TP]) -> Mapping[TP, PartitionBounds]:
        consumer = self._ensure_consumer()
        asked = [ensure_aiokafka_TP(tp) for tp in tps]
        first = await consumer.beginning_offsets(asked)
        end = await consumer.end_offsets(asked)
        return {tp: PartitionBounds(first[tp], end[tp]) for tp in tps}

    async def ends(self, tps: Collection[TP]) -> Mapping[TP, int]:
        """Where partitions end. Not through the queue of calls: without an answer it would hold up fetches."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._ends(tps), self.thread_loop))

    async def _ends(self, tps: Collection[TP]) -> Mapping[TP, int]:
        ends: Mapping[TP, int] = {}
        if tps:
            ends = await self._ensure_consumer().end_offsets([ensure_aiokafka_TP(tp) for tp in tps])
        return ends

    async def partitions(self, topics: Iterable[str]) -> Collection[TP]:
        """Those that the topics have now: aiokafka's own knowledge may be half a minute old."""
        tps: Collection[TP] = await self.call_thread(self._partitions, topics)
        return tps

    async def _partitions(self, topics: Iterable[str]) -> Collection[TP]:
        consumer = self._ensure_consumer()
        if not await consumer._client.force_metadata_update():
            raise KafkaConnectionError("no broker told which topics there are")
        return [TP(topic, number) for topic in topics for number in consumer.partitions_for_topic(topic) or ()]

    async def begin(self, starts: Mapping[TP, int], reading: int) -> None:
        """Seeks; what is asked for from now on is of this reading."""
        await self.call_thread(self._begin, starts, reading)

    async def _begin(self, starts: Mapping[TP, int], reading: int) -> None:
        consumer = self._ensure_consumer()
        for tp, offset in starts.items():
            known = self._cursors.get(tp)
            if known is not None and known.reading > reading:
                continue  # this call was overtaken by a newer one
            consumer.seek(ensure_aiokafka_TP(tp), offset)
            self._cursors[tp] = FetchCursor(self._state(tp), reading, offset, offset)

    async def seek_to_own(self, tps: Collection[TP]) -> Mapping[TP, int]:
        """Seeks to what Kafka has as committed, or where the app's settings say: Faust's way, for topics of others."""
        committed: Mapping[TP, int] = await self.call_thread(self._seek_to_own, tps)
        return committed

    async def _seek_to_own(self, tps: Collection[TP]) -> Mapping[TP, int]:
        consumer = self._ensure_consumer()
        committed = await consumer.seek_to_committed(*map(ensure_aiokafka_TP, tps))
        await self._reset(tp for tp, offset in committed.items() if offset is None)
        return {TP(*tp): offset for tp, offset in committed.items()}

    async def _reset(self, tps: Iterable[TopicPartition]) -> None:
        lost = list(tps)
        consumer = self._ensure_consumer()
        if lost and self.app.conf.consumer_auto_offset_reset == "latest":
            await consumer.seek_to_end(*lost)
        elif lost:
            await consumer.seek_to_beginning(*lost)

    # What it reads.

    async def fetch(self, asked: Set[TP] | None, readings: Mapping[TP, int], timeout: float) -> FetchResult:
        """Records of the partitions that are asked for; of those with a reading only if it is still the same."""
        fetched: FetchResult = await self.call_thread(self._fetch, asked, readings, timeout)
        return fetched

    async def _fetch(self, asked: Set[TP] | None, readings: Mapping[TP, int], timeout: float) -> FetchResult:
        consumer = self._ensure_consumer()
        self._return_to_cursors(readings)
        records: dict[TP, list[Any]] = {}
        try:
            # An empty set of partitions would mean all of them.
            if asked is None or asked:
                limit = consumer._max_poll_records
                records = dict(await self._fetch_records(consumer, asked, timeout, limit))  # type: ignore[arg-type]
        except OffsetOutOfRangeError as error:
            await self._out_of_range(error.args[0])
        except NoOffsetForPartitionError as error:
            await self._reset(tp for tp in error.args if tp not in self.owned)
        # Nothing else has run in this thread since the records were taken: a seek comes before or behind them.
        stretches = {}
        for tp in self.owned | self._cursors.keys():
            stretch = self._stretch(tp, readings, records)
            if stretch is None:
                records.pop(tp, None)
            else:
                stretches[tp] = stretch
        return FetchResult(records, stretches)

    def _return_to_cursors(self, readings: Mapping[TP, int]) -> None:
        """Takes back what a fetch has passed that then failed, for example because of another partition's records."""
        for tp, cursor in self._cursors.items():
            position = self._position(tp, cursor)
            if readings.get(tp) == cursor.reading and position is not None and position != cursor.end:
                log.warning("%s: fetched up to offset %s, and not returned", Partition(*tp), position)
                self._ensure_consumer().seek(ensure_aiokafka_TP(tp), cursor.end)

    def _stretch(self, tp: TP, readings: Mapping[TP, int], records: Mapping[TP, list[Any]]) -> FetchedRange | None:
        """What this fetch has read of a partition; None if it must not be handed over."""
        cursor = self._cursors.get(tp)
        position = self._position(tp, cursor) if cursor is not None else None
        if cursor is None or position is None:
            return None  # not sought in this assignment: it is before it is read
        if readings.get(tp) != cursor.reading:
            if position != cursor.end:
                log.debug("%s: fetched for an older reading, offset %s is next", Partition(*tp), cursor.end)
                self._ensure_consumer().seek(ensure_aiokafka_TP(tp), cursor.end)
            return None
        stretch = FetchedRange(cursor.reading, cursor.end, cursor.follows, position)
        cursor.end = position
        if tp in records:
            cursor.follows = records[tp][-1].offset + 1
        return stretch

    def _position(self, tp: TP, cursor: FetchCursor) -> int | None:
        """Where the consumer stands in a partition; None if it was not sought there since it was assigned."""
        state = cursor.state
        position: int | None = state.position if state is self._state(tp) and state.has_valid_position else None
        return position

    def _state(self, tp: TP) -> Any:  # noqa: ANN401 - aiokafka has no types
        subscription = self._ensure_consumer()._subscription.subscription
        assignment = subscription.assignment if subscription is not None else None
        return assignment.state_value(ensure_aiokafka_TP(tp)) if assignment is not None else None

    async def _out_of_range(self, places: Mapping[TopicPartition, int]) -> None:
        for tp, offset in places.items():
            if tp not in self.owned:
                await self._reset([tp])
                continue
            bounds = (await self._bounds([TP(*tp)]))[TP(*tp)]
            start_offset(Partition(*tp), offset, bounds, "earliest")
            log.warning("%s: offset %s was out of range, and is not any more", Partition(*tp), offset)

    # What Kafka is told.

    async def follow(self, offsets: Mapping[TP, int]) -> bool:
        """Commits offsets for those who watch the lag; whether Kafka took them."""
        if self.should_stop:
            return False  # after a crash this thread answers no more
        try:
            async with asyncio.timeout(COMMIT_SECONDS + 1):
                took: bool = await self.call_thread(self._follow, offsets)
        except TimeoutError:
            return False
        return took

    async def _follow(self, offsets: Mapping[TP, int]) -> bool:
        told = {ensure_aiokafka_TP(tp): OffsetAndMetadata(offset, "") for tp, offset in offsets.items()}
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                await self._ensure_consumer().commit(told)
        except (CommitFailedError, IllegalStateError):
            return False  # a new assignment is on its way
        except (KafkaError, TimeoutError) as error:
            log.warning("Kafka was not told how far the projections are: %s", type(error).__name__)
            return False
        return True

    async def look(self) -> None:
        """Says that the app is alive, and raises what went wrong in the group: Faust itself never asks."""
        await self.call_thread(self._look)

    async def _look(self) -> None:
        consumer = self._ensure_consumer()
        # Counts as a fetch: while all partitions are held there is none, and the group would give us up.
        with consumer._subscription.fetch_context():
            pass
        consumer._coordinator.check_errors()
