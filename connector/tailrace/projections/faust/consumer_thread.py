"""The consumer's Kafka thread, which has its own event loop.

Faust passes a record to the app's event loop some time after it was fetched, and a seek may happen in between. So each
seek starts a new numbered *epoch* of its partitions, and each fetched record carries its epoch: a record from before
the seek cannot be taken for one after it. A fetch that was requested in an older epoch takes nothing of a newer one,
since the app would drop it.

A fetch also returns which range of the log it has read. The ranges of an epoch follow each other without a gap, so the
app notices if one was lost.
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
from tailrace.projections.faust.delivery import FetchedRange
from tailrace.projections.faust.offset_coordinator import PartitionBounds, start_offset

COMMIT_SECONDS = 5.0
"""For an offset commit to Kafka. It only follows the store, so nothing waits for it longer."""
FETCH_WAIT_MS = 500
"""How long a broker may delay an empty answer. A seek has to wait for that answer."""

log = logging.getLogger("tailrace.projections")


class FetchResult(dict[TP, list[Any]]):
    """Records by partition and, for partitions of projections, the range of the log that was read."""

    def __init__(self, records: Mapping[TP, list[Any]], ranges: Mapping[TP, FetchedRange]) -> None:
        super().__init__(records)
        self.ranges = ranges
        self.previous_ends = {
            tp: each.previous_ends([record.offset for record in records[tp]])
            for tp, each in ranges.items()
            if tp in records
        }


@dataclass(slots=True)
class FetchCursor:
    """How far an epoch has read: the end of its last range, and the offset after its last record.

    `state` is aiokafka's object of the assignment. A new assignment has another one, whose position is not ours.
    """

    state: Any
    epoch: int
    end: int
    previous_end: int


class ConsumerThread(AIOKafkaConsumerThread):
    """Methods without an underscore are called from the app's event loop; the others run in this thread."""

    logger = logging.getLogger("faust.projections")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.owned: Set[TP] = frozenset()
        """The partitions of projections; set by the consumer, read by this thread."""
        self._cursors: dict[TP, FetchCursor] = {}

    def _create_worker_consumer(self, transport: KafkaTransport) -> aiokafka.AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        # Faust has no setting for it. `check_settings` verifies that it took effect.
        consumer._isolation_level = "read_committed"
        # With any other value aiokafka silently continues elsewhere when the log no longer has the offset.
        consumer._auto_offset_reset = "none"
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS
        return consumer

    def check_settings(self) -> None:
        """Raises unless the running consumer has the settings that the guarantees need."""
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

    # Offsets and seeks.

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
        """Returns the ends of partitions, without the queue of calls: a missing answer would delay fetches."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._ends(tps), self.thread_loop))

    async def _ends(self, tps: Collection[TP]) -> Mapping[TP, int]:
        ends: Mapping[TP, int] = {}
        if tps:
            ends = await self._ensure_consumer().end_offsets([ensure_aiokafka_TP(tp) for tp in tps])
        return ends

    async def partitions(self, topics: Iterable[str]) -> Collection[TP]:
        """Returns the current partitions of topics; aiokafka's metadata may be half a minute old."""
        tps: Collection[TP] = await self.call_thread(self._partitions, topics)
        return tps

    async def _partitions(self, topics: Iterable[str]) -> Collection[TP]:
        consumer = self._ensure_consumer()
        if not await consumer._client.force_metadata_update():
            raise KafkaConnectionError("no broker returned the metadata of the topics")
        return [TP(topic, number) for topic in topics for number in consumer.partitions_for_topic(topic) or ()]

    async def begin(self, starts: Mapping[TP, int], epoch: int) -> None:
        """Seeks, and starts an epoch."""
        await self.call_thread(self._begin, starts, epoch)

    async def _begin(self, starts: Mapping[TP, int], epoch: int) -> None:
        consumer = self._ensure_consumer()
        for tp, offset in starts.items():
            known = self._cursors.get(tp)
            if known is not None and known.epoch > epoch:
                continue  # a newer call came first
            consumer.seek(ensure_aiokafka_TP(tp), offset)
            self._cursors[tp] = FetchCursor(self._state(tp), epoch, offset, offset)

    async def seek_to_committed_offsets(self, tps: Collection[TP]) -> Mapping[TP, int]:
        """Seeks to Kafka's committed offsets, or where the app's settings say; for topics without a projection."""
        committed: Mapping[TP, int] = await self.call_thread(self._seek_to_committed_offsets, tps)
        return committed

    async def _seek_to_committed_offsets(self, tps: Collection[TP]) -> Mapping[TP, int]:
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

    # Records.

    async def fetch(self, asked: Set[TP] | None, epochs: Mapping[TP, int], timeout: float) -> FetchResult:
        """Fetches records of the asked partitions; of those with an epoch only if it is still current."""
        fetched: FetchResult = await self.call_thread(self._fetch, asked, epochs, timeout)
        return fetched

    async def _fetch(self, asked: Set[TP] | None, epochs: Mapping[TP, int], timeout: float) -> FetchResult:
        consumer = self._ensure_consumer()
        self._return_to_cursors(epochs)
        records: dict[TP, list[Any]] = {}
        try:
            # An empty set would mean all partitions.
            if asked is None or asked:
                limit = consumer._max_poll_records
                records = dict(await self._fetch_records(consumer, asked, timeout, limit))  # type: ignore[arg-type]
        except OffsetOutOfRangeError as error:
            await self._out_of_range(error.args[0])
        except NoOffsetForPartitionError as error:
            await self._reset(tp for tp in error.args if tp not in self.owned)
        # Nothing else ran in this thread since the records were taken: a seek comes before or after them.
        ranges = {}
        for tp in self.owned | self._cursors.keys():
            log_range = self._range(tp, epochs, records)
            if log_range is None:
                records.pop(tp, None)
            else:
                ranges[tp] = log_range
        return FetchResult(records, ranges)

    def _return_to_cursors(self, epochs: Mapping[TP, int]) -> None:
        """Seeks back over the records of a fetch that failed, for example because of another partition."""
        for tp, cursor in self._cursors.items():
            position = self._position(tp, cursor)
            if epochs.get(tp) == cursor.epoch and position is not None and position != cursor.end:
                log.warning("%s: fetched up to offset %s, and not returned", Partition(*tp), position)
                self._ensure_consumer().seek(ensure_aiokafka_TP(tp), cursor.end)

    def _range(self, tp: TP, epochs: Mapping[TP, int], records: Mapping[TP, list[Any]]) -> FetchedRange | None:
        """Returns the range that this fetch has read of a partition; None if its records must not be delivered."""
        cursor = self._cursors.get(tp)
        position = self._position(tp, cursor) if cursor is not None else None
        if cursor is None or position is None:
            return None  # no seek in this assignment yet
        if epochs.get(tp) != cursor.epoch:
            if position != cursor.end:
                log.debug("%s: fetched for an older epoch, offset %s is next", Partition(*tp), cursor.end)
                self._ensure_consumer().seek(ensure_aiokafka_TP(tp), cursor.end)
            return None
        log_range = FetchedRange(cursor.epoch, cursor.end, cursor.previous_end, position)
        cursor.end = position
        if tp in records:
            cursor.previous_end = records[tp][-1].offset + 1
        return log_range

    def _position(self, tp: TP, cursor: FetchCursor) -> int | None:
        """Returns the consumer's position in a partition; None if there was no seek since the assignment."""
        state = cursor.state
        position: int | None = state.position if state is self._state(tp) and state.has_valid_position else None
        return position

    def _state(self, tp: TP) -> Any:  # noqa: ANN401 - aiokafka has no types
        subscription = self._ensure_consumer()._subscription.subscription
        assignment = subscription.assignment if subscription is not None else None
        return assignment.state_value(ensure_aiokafka_TP(tp)) if assignment is not None else None

    async def _out_of_range(self, offsets: Mapping[TopicPartition, int]) -> None:
        for tp, offset in offsets.items():
            if tp not in self.owned:
                await self._reset([tp])
                continue
            bounds = (await self._bounds([TP(*tp)]))[TP(*tp)]
            start_offset(Partition(*tp), offset, bounds, "earliest")
            log.warning("%s: offset %s was out of range, and is not any more", Partition(*tp), offset)

    # Commits and the group.

    async def commit_offsets(self, offsets: Mapping[TP, int]) -> bool:
        """Commits offsets to Kafka, for tools that show the lag; returns whether Kafka took them."""
        if self.should_stop:
            return False  # after a crash this thread does not answer
        try:
            async with asyncio.timeout(COMMIT_SECONDS + 1):
                took: bool = await self.call_thread(self._commit_offsets, offsets)
        except TimeoutError:
            return False
        return took

    async def _commit_offsets(self, offsets: Mapping[TP, int]) -> bool:
        commits = {ensure_aiokafka_TP(tp): OffsetAndMetadata(offset, "") for tp, offset in offsets.items()}
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                await self._ensure_consumer().commit(commits)
        except (CommitFailedError, IllegalStateError):
            return False  # a new assignment is on its way
        except (KafkaError, TimeoutError) as error:
            log.warning("offsets were not committed to Kafka: %s", type(error).__name__)
            return False
        return True

    async def check_group(self) -> None:
        """Keeps the group membership alive, and raises errors of the group, which Faust never checks."""
        await self.call_thread(self._check_group)

    async def _check_group(self) -> None:
        consumer = self._ensure_consumer()
        # Counts as a fetch: while all partitions are held there is none, and the group would drop this member.
        with consumer._subscription.fetch_context():
            pass
        consumer._coordinator.check_errors()
