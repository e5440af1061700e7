"""Reads the topics of an app's projections from the offsets that the projections have stored.

Runs in the app's event loop; the consumer has its own thread (`consumer_thread.py`). The offset committed to Kafka only
follows the stored ones, for tools that show the lag.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Coroutine, Mapping
from concurrent.futures import Future as ThreadFuture
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from tailrace.errors import ConfigError, KafkaUnavailable, RecordDamaged
from tailrace.kafka.client import error_of
from tailrace.projections.core.store import Partition
from tailrace.projections.reader.connection import client_config, consumer_config, group_of
from tailrace.projections.reader.consumer_thread import ConsumerThread, Records
from tailrace.projections.reader.offset_coordinator import OffsetCoordinator, PartitionBounds, start_offset
from tailrace.projections.reader.offset_queries import OffsetQueries
from tailrace.projections.reader.progress import ReadProgress
from tailrace.projections.reader.read_errors import DAMAGED, MISSING, REFUSALS, read_error

if TYPE_CHECKING:
    from tailrace.projections.faust.app import ProjectionApp

RETRY_SECONDS = 1.0
COMMIT_SECONDS = 1.0
AHEAD_TRIES = 3
"""A new leader may briefly know less than the old one: a stored offset beyond the end is checked again."""

log = logging.getLogger("tailrace.projections")


class EventReader:
    """Reads for all projections of an app. A partition is first located (its start is found), then read, then revoked.

    The methods `assigned`, `revoked`, `deliver`, `failed` and `report` are called by the consumer's thread; all others
    in the event loop.
    """

    def __init__(self, app: ProjectionApp, loop: asyncio.AbstractEventLoop) -> None:
        self._app = app
        self.records = 0
        """How many records were delivered to projections."""
        self.unsettled_since: float | None = time.monotonic()
        """Since when partitions, or the offsets to start from, are awaited; None while partitions are read."""
        self._loop = loop
        self._generation = 0
        self._progress: dict[Partition, ReadProgress] = {}
        self._holders: dict[Partition, set[object]] = {}
        self._committed: dict[Partition, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._locating: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        """Held while workers are started or stopped."""
        self._committing: asyncio.Task[None] | None = None
        self._stopping = False
        topics = {topic for projection in app.projections for topic in projection.topics}
        try:
            self.offsets = OffsetQueries(client_config(app), group_of(str(app.conf.id)))
            self._thread = ConsumerThread(consumer_config(app), topics, self)
        except KafkaException as error:
            raise ConfigError(
                f"{app.conf.id}: the Kafka client rejects its settings: {error_of(error).str()}",
                remedy="Correct `kafka_settings` and the broker settings of the app.",
            ) from None

    @classmethod
    async def started(cls, app: ProjectionApp) -> EventReader:
        """Returns a reader that has begun to join the group.

        It is created in another thread: its clients may ask for a token, which the event loop has to fetch.
        """
        reader = await asyncio.to_thread(cls, app, asyncio.get_running_loop())
        reader.start()
        return reader

    @property
    def coordinator(self) -> OffsetCoordinator:
        return self._app.coordinator

    def start(self) -> None:
        self._thread.start()
        self._committing = self._loop.create_task(self._commit_regularly(), name="commit")

    async def stop(self) -> None:
        """Stops the workers, commits their progress to Kafka, and leaves the group."""
        self._stopping = True
        if self._committing is not None:
            self._committing.cancel()
        self._thread.stop()
        await asyncio.to_thread(self._thread.join)
        self._invalidate()
        await self._stop_workers()  # if the group has never assigned anything

    # Called by projections.

    def hold(self, partition: Partition, holder: object) -> None:
        """Stops the delivery of a partition. Records that are on their way still arrive."""
        if partition in self._progress:
            holders = self._holders.setdefault(partition, set())
            if not holders:
                self._thread.hold(self._generation, partition)
            holders.add(holder)

    def release(self, partition: Partition, holder: object) -> None:
        """Delivers a partition again once all holders have released it. Holds end with their assignment."""
        holders = self._holders.get(partition)
        if holders is not None:
            holders.discard(holder)
            if not holders:
                del self._holders[partition]
                self._thread.release(self._generation, partition)

    # Called by the consumer's thread.

    def assigned(self, generation: int, partitions: Collection[Partition]) -> None:
        self._loop.call_soon_threadsafe(self._assigned, generation, partitions)

    def revoked(self) -> ThreadFuture[Mapping[Partition, int]]:
        # Its first step must run before that of a later assignment, though the event loop may be slow.
        self._loop.call_soon_threadsafe(self._invalidate)
        return asyncio.run_coroutine_threadsafe(self._stop_workers(), self._loop)

    def deliver(self, generation: int, records: Records, passed: Mapping[Partition, int]) -> None:
        self._loop.call_soon_threadsafe(self._deliver, generation, records, passed)

    def failed(self, error: Exception) -> None:
        if isinstance(error, KafkaException):
            error = read_error(error_of(error), "reading topics", group_of(self._app.conf.id))
        self._loop.call_soon_threadsafe(self._fail, error)

    def report(self, error: KafkaError, partition: Partition | None) -> None:
        self._loop.call_soon_threadsafe(self._report, error, partition)

    # Assignments.

    def _assigned(self, generation: int, partitions: Collection[Partition]) -> None:
        self._generation = generation
        if self._stopping:
            return
        if partitions:
            self._locating = self._run(self._locate(generation, partitions), "locate")
        else:
            self.unsettled_since = None

    def _invalidate(self) -> None:
        """Ends the assignment: nothing of it is delivered from here on."""
        self.unsettled_since = time.monotonic()
        self._generation = -1
        if self._locating is not None:
            self._locating.cancel()

    async def _stop_workers(self) -> Mapping[Partition, int]:
        """Stops the workers; returns the offsets to commit to Kafka."""
        async with self._changing:
            self._holders.clear()
            reached = self._committable(self.coordinator.progress())
            await self.coordinator.revoked()
            self._progress.clear()
            self._committed.clear()
        return reached

    async def _locate(self, generation: int, partitions: Collection[Partition]) -> None:
        """Finds where to start, starts the workers, and has the partitions read."""
        async with self._changing:
            await self.coordinator.store_latest(self._ends)
            offsets = await self.coordinator.positions(partitions)
            highest = {
                partition: max((each.stored for each in found if each.stored is not None), default=None)
                for partition, found in offsets.items()
            }
            bounds = await self._bounds(highest)
            # For each projection by itself: a new one must not hide that another has lost events.
            starts = {
                partition: [start_offset(partition, each.stored, bounds[partition], each.start) for each in found]
                for partition, found in offsets.items()
            }
            # Before the assignment: every record that is read must find its worker.
            await self.coordinator.assigned(starts)
            firsts = {partition: min(each) for partition, each in starts.items()}
            self._progress = {partition: ReadProgress(first, first, first) for partition, first in firsts.items()}
            self._thread.assign(generation, firsts)
            self.unsettled_since = None
        topics = {partition.topic for partition in partitions}
        log.info("reading", extra={"fields": {"partitions": len(partitions), "topics": len(topics)}})

    async def _ends(self, topics: Collection[str]) -> Mapping[Partition, int]:
        """Returns the ends of all partitions of topics, as soon as Kafka answers."""
        while topics:
            try:
                return await self.offsets.ends(topics)
            except KafkaUnavailable as error:
                log.warning("waiting for Kafka to return the ends of the topics: %s", error.what)
            await asyncio.sleep(RETRY_SECONDS)
        return {}

    async def _bounds(self, stored: Mapping[Partition, int | None]) -> Mapping[Partition, PartitionBounds]:
        tries = 0
        while True:
            try:
                bounds = await self.offsets.bounds(stored)
            except KafkaUnavailable as error:
                log.warning("waiting for Kafka to return the offsets of the topics: %s", error.what)
            else:
                if all(offset is None or offset <= bounds[each].end for each, offset in stored.items()):
                    return bounds
                tries += 1
                if tries == AHEAD_TRIES:
                    return bounds
            await asyncio.sleep(RETRY_SECONDS)

    # Records.

    def _deliver(self, generation: int, records: Records, passed: Mapping[Partition, int]) -> None:
        try:
            if generation != self._generation:
                return  # of an assignment that has ended: its next owner reads them again
            for partition, messages in records.items():
                progress = self._progress[partition]
                for projection in self._app.projections:
                    if partition.topic in projection.topics:
                        projection.receive(partition, messages)
                progress.deliver(messages[-1].offset() or 0)
                self.records += len(messages)
            for partition, end in passed.items():
                self._progress[partition].passed = max(self._progress[partition].passed, end)
        except Exception as error:  # noqa: BLE001 - ends the worker
            self._fail(error)
        finally:
            self._thread.delivered()

    # Errors.

    def _fail(self, error: BaseException) -> None:
        """Ends the worker. Nothing more is delivered until then: it could follow a gap."""
        self._generation = -1
        self._app.fail(error)

    def _report(self, error: KafkaError, partition: Partition | None) -> None:
        code = error.code()
        if code == KafkaError._AUTO_OFFSET_RESET and partition in self._progress:
            self._run(self._check_range(partition), "check range")
        elif code in DAMAGED:
            where = (
                f"{partition} from offset {self._progress[partition].passed} on"
                if partition in self._progress
                else "a record"
            )
            self._fail(
                RecordDamaged(
                    f"{where} cannot be read: {error.name()}",
                    why=error.str(),
                    remedy="Check the disk of the broker; another replica may have the record. If none has, replay the"
                    " events from the outbox after `tailrace project APP --reset TIME` behind them.",
                )
            )
        elif code in REFUSALS or error.fatal():
            self._fail(read_error(error, "reading topics", group_of(self._app.conf.id)))
        elif code not in MISSING:  # topics that do not exist yet were reported at the start
            log.debug("Kafka: %s", error.str())

    async def _check_range(self, partition: Partition) -> None:
        """Raises if the log no longer has the offset that is next to read."""
        at = self._progress[partition].passed
        bounds = await self._bounds({partition: None})
        start_offset(partition, at, bounds[partition], "earliest")
        raise KafkaUnavailable(
            f"{partition}: offset {at} was out of range, and is not any more",
            remedy="Restart the worker: it continues from its stored offset.",
        )

    # Progress, and what is committed to Kafka.

    def assignment(self) -> Collection[Partition]:
        """Returns the partitions that are read."""
        return self._progress.keys()

    def reached(self) -> Mapping[Partition, int]:
        """Returns for each partition the offset below which nothing is left to apply."""
        return self._committable(self.coordinator.progress())

    def reached_of(self, partition: Partition, applied: int) -> int:
        """Returns the same for one partition that is applied up to `applied`."""
        read = self._progress.get(partition)
        return applied if read is None else read.committable(applied)

    def _committable(self, applied: Mapping[Partition, int]) -> dict[Partition, int]:
        return {each: read.committable(applied.get(each)) for each, read in self._progress.items()}

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_SECONDS)
            reached = self.reached()
            changed = {each: offset for each, offset in reached.items() if offset > self._committed.get(each, -1)}
            if changed:
                self._thread.commit(self._generation, changed)
                self._committed |= changed

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs a task; its error ends the worker."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._stopping:
            self._fail(error)
