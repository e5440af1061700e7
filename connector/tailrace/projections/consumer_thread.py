"""The side of the consumer that talks to Kafka: a thread with an event loop of its own.

Faust gives each record to the event loop of the app some time after it was fetched, and a seek may come between. So
each seek begins a new *reading* of its partitions, by number, and whatever is fetched says of which reading it is: no
record of an older one can be taken for one that comes behind the seek.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Set
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
from tailrace.projections.reading import Bounds, start_offset
from tailrace.projections.store import Partition

COMMIT_SECONDS = 5.0
"""For telling Kafka how far we are. It only follows the store, so it never holds anything up for long."""
FETCH_WAIT_MS = 500
"""How long a broker may hold an empty answer back. A partition that was just sought waits for that answer."""

log = logging.getLogger("tailrace.projections")


class Fetched(dict[TP, list[Any]]):
    """Records by partition, with the reading and the position of each partition at that moment."""

    def __init__(
        self, records: Mapping[TP, list[Any]], readings: Mapping[TP, int], positions: Mapping[TP, int]
    ) -> None:
        super().__init__(records)
        self.readings = readings
        self.positions = positions


class ConsumerThread(AIOKafkaConsumerThread):
    """Methods without an underscore are called from the app's event loop, all others run in this thread."""

    logger = logging.getLogger("faust.projections")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.owned: Set[TP] = frozenset()
        """The partitions of projections; set by the consumer, looked at by this thread."""
        self._readings: dict[TP, int] = {}

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

    async def bounds(self, tps: Collection[TP]) -> Mapping[TP, Bounds]:
        bounds: Mapping[TP, Bounds] = await self.call_thread(self._bounds, tps)
        return bounds

    async def _bounds(self, tps: Collection[TP]) -> Mapping[TP, Bounds]:
        consumer = self._ensure_consumer()
        asked = [ensure_aiokafka_TP(tp) for tp in tps]
        first = await consumer.beginning_offsets(asked)
        end = await consumer.end_offsets(asked)
        return {tp: Bounds(first[tp], end[tp]) for tp in tps}

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
        """Seeks; what is fetched from now on is of this reading."""
        await self.call_thread(self._begin, starts, reading)

    async def _begin(self, starts: Mapping[TP, int], reading: int) -> None:
        consumer = self._ensure_consumer()
        for tp, offset in starts.items():
            consumer.seek(ensure_aiokafka_TP(tp), offset)
            self._readings[tp] = reading

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

    async def _fetch_records(
        self,
        consumer: aiokafka.AIOKafkaConsumer,
        active_partitions: Set[TP],
        timeout: float | None = None,
        max_records: int | None = None,
    ) -> Fetched:
        records: Mapping[TP, list[Any]] = {}
        try:
            records = await super()._fetch_records(consumer, active_partitions, timeout, max_records)  # type: ignore[arg-type]
        except OffsetOutOfRangeError as error:
            await self._out_of_range(error.args[0])
        except NoOffsetForPartitionError as error:
            await self._reset(tp for tp in error.args if tp not in self.owned)
        # Nothing else has run in this thread since the records were taken: a seek comes before or behind them.
        return Fetched(records, dict(self._readings), self._positions())

    def _positions(self) -> dict[TP, int]:
        subscription = self._ensure_consumer()._subscription.subscription
        assignment = subscription.assignment if subscription is not None else None
        if assignment is None:
            return {}
        states = {tp: assignment.state_value(ensure_aiokafka_TP(tp)) for tp in self._readings}
        return {tp: state.position for tp, state in states.items() if state is not None and state.has_valid_position}

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
