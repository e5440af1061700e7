"""Faust's Kafka consumer, changed so that it reads from the offsets that the projections have stored.

For topics of projections, Faust's own bookkeeping (acks, gaps, read offsets) is switched off. A partition is read only
after a seek to its stored offset, and the offset committed to Kafka follows the store's. Other topics of the app are
read as Faust does it.

Faust silently drops records in several places between fetch and projection. So each record carries the end of the
record before it, and one that does not follow the last delivered record is not delivered: the partition is read again
from where its projections are (`delivery.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Set
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from aiokafka.errors import IllegalStateError, KafkaError
from faust.transport.consumer import RecordMap
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage, Message
from faust.types.transports import TPorTopicSet
from mode import Service

from tailrace.projections.core.store import Partition
from tailrace.projections.faust.consumer_thread import ConsumerThread, FetchResult
from tailrace.projections.faust.delivery import DeliveryTracker
from tailrace.projections.faust.offset_coordinator import OffsetCoordinator, PartitionBounds, start_offset

if TYPE_CHECKING:
    from tailrace.projections.faust.app import ProjectionApp

POLL_SECONDS = 0.2
"""How long a fetch waits for records. A resumed partition is part of the next fetch, not of the current one."""
RECORDS_AT_ONCE = 200
"""After so many records the event loop runs other tasks: commits, heartbeats."""
IDLE_SECONDS = 1.0
LOOK_SECONDS = 1.0
REREAD_SECONDS = 0.1
AHEAD_TRIES = 3
"""A new leader may briefly know less than the old one: a stored offset beyond the end is checked again."""

log = logging.getLogger("tailrace.projections")


class ReadOffsets(defaultdict[TP, int | None]):
    """Faust's read offsets, by which it drops records that look old. Ignores the partitions of projections."""

    def __init__(self, owns: Callable[[TP], bool]) -> None:
        super().__init__(lambda: None)
        self._owns = owns

    def __setitem__(self, tp: TP, offset: int | None) -> None:
        if not self._owns(tp):
            super().__setitem__(tp, offset)


class Consumer(driver.Consumer):
    """The app's consumer. An assigned partition is first located (sought to its start), then read, then revoked."""

    logger = logging.getLogger("faust.projections")
    _thread: ConsumerThread

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - Faust's own
        self.records = 0
        """How many records were delivered to projections."""
        self.unsettled_since: float | None = None
        """Since when partitions, or the offsets to start from, are awaited; None while partitions are read."""
        self._owned: Set[TP] = frozenset()
        self._located: set[TP] = set()
        self._held: dict[TP, set[object]] = {}
        self._delivery = DeliveryTracker()
        self._committed: dict[TP, int] = {}
        self._epoch_numbers = count(1)
        self._locating: asyncio.Future[Any] | None = None
        self._fetched = FetchResult({}, {})
        self._resumed = asyncio.Event()
        super().__init__(*args, **kwargs)
        self._read_offset = ReadOffsets(lambda tp: tp in self._owned)

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def coordinator(self) -> OffsetCoordinator:
        return cast("ProjectionApp", self.app).coordinator

    async def on_started(self) -> None:
        await super().on_started()
        self.unsettled_since = time.monotonic()
        if not self.app.client_only:
            self._thread.check_settings()

    @Service.task
    async def _check_group(self) -> None:
        while not self.should_stop and not self.app.client_only:
            await self.sleep(LOOK_SECONDS)
            await self._thread.check_group()

    # Called by partition workers.

    def hold(self, partition: Partition, holder: object) -> None:
        """Stops fetching a partition. Fetched records still arrive, which Faust's `pause_partitions` would lose."""
        tp = TP(*partition)
        if tp in self._located:
            self._held.setdefault(tp, set()).add(holder)
            self._get_active_partitions().discard(tp)
            self._buffered_partitions.add(tp)

    def release(self, partition: Partition, holder: object) -> None:
        """Fetches a partition again once all holders have released it. Holds end with their assignment."""
        tp = TP(*partition)
        holders = self._held.get(tp)
        if holders is not None:
            holders.discard(holder)
            if not holders:
                del self._held[tp]
                self.on_buffer_drop(tp)

    def missed(self, partition: Partition) -> None:
        """Has a partition read again, because a worker got a record without its predecessor."""
        self._delivery.missed(partition)

    # Assignments.

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        self.unsettled_since = time.monotonic()
        await super().on_partitions_revoked(revoked)
        try:
            await self._end_reading()
        except Exception as error:  # noqa: BLE001 - aiokafka would only log it
            await self.crash(error)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        self._owned = frozenset(tp for tp in assigned if self.coordinator.owns(tp.topic))
        self._thread.owned = self._owned
        self._buffered_partitions.clear()
        await super().on_partitions_assigned(assigned, generation_id)
        if self._owned and not self.app.should_stop:
            self._locating = self.add_future(self._locate(self._owned))
        else:
            self.unsettled_since = None

    async def on_stop(self) -> None:
        await self._end_reading()
        await super().on_stop()

    async def _end_reading(self) -> None:
        """Stops the workers, and commits their progress to Kafka."""
        if self._locating is not None:
            self._locating.cancel()
            await asyncio.wait([self._locating])
            self._locating = None
        if not self._owned:
            return
        self._delivery.end()
        self._held.clear()
        progress = dict(self.coordinator.progress())
        await self.coordinator.revoked()
        # Workers may have committed something while they stopped, or be gone by now.
        progress |= self.coordinator.progress()
        await self._commit_progress(progress)
        self._located.clear()
        self._delivery.forget()
        self._committed.clear()
        self._owned = frozenset()

    async def _locate(self, tps: Set[TP]) -> None:
        """Seeks assigned partitions to their projections' offsets, and starts to read them."""
        by_partition = {Partition(*tp): tp for tp in tps}
        offsets = await self.coordinator.positions(by_partition.keys())
        highest = {
            tp: max((each.stored for each in offsets[partition] if each.stored is not None), default=None)
            for partition, tp in by_partition.items()
        }
        bounds = await self._bounds(highest)
        # For each projection by itself: a new one must not hide that another has lost events.
        starts = {
            partition: [start_offset(partition, each.stored, bounds[tp], each.start) for each in offsets[partition]]
            for partition, tp in by_partition.items()
        }
        # Before the seek: every record read after it must find its worker.
        await self.coordinator.assigned(starts)
        try:
            await self._begin({by_partition[partition]: min(each) for partition, each in starts.items()})
        except IllegalStateError:
            return  # revoked already: the next assignment starts again
        self._located |= tps
        self.resume_partitions(tps)
        self.unsettled_since = None
        log.info("reading", extra={"fields": {"partitions": len(tps), "topics": len({tp.topic for tp in tps})}})

    async def _bounds(self, stored: Mapping[TP, int | None]) -> Mapping[TP, PartitionBounds]:
        tries = 0
        while True:
            try:
                bounds = await self._thread.bounds(stored.keys())
            except KafkaError as error:
                if not error.retriable:
                    raise
                log.warning("waiting for Kafka to return the offsets of the topics: %s", type(error).__name__)
            else:
                if all(offset is None or offset <= bounds[tp].end for tp, offset in stored.items()):
                    return bounds
                tries += 1
                if tries == AHEAD_TRIES:
                    return bounds
            await asyncio.sleep(1)

    async def _begin(self, starts: Mapping[TP, int]) -> None:
        epoch = next(self._epoch_numbers)
        # Before the seek: from here on nothing that was fetched earlier is current.
        self._delivery.begin(starts, epoch)
        await self._thread.begin(starts, epoch)

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Seeks in topics without a projection, as Faust does."""
        others = self.assignment() - self._owned
        return await self._thread.seek_to_committed_offsets(others) if others else {}

    # Which partitions are fetched: of owned ones only those that are located and not held.

    def _set_active_tps(self, tps: set[TP]) -> set[TP]:
        active = super()._set_active_tps(tps)
        active -= self._owned - self._located
        return active

    def resume_partitions(self, tps: Iterable[TP]) -> None:
        super().resume_partitions({tp for tp in tps if tp not in self._owned or tp in self._located})
        self._resumed.set()

    def on_buffer_drop(self, tp: TP) -> None:
        """Called when a stream's queue has room again, perhaps long after its partition was revoked."""
        if tp in self._paused_partitions or tp in self._held or tp not in self.assignment():
            return
        super().on_buffer_drop(tp)
        self._resumed.set()

    # Records.

    async def _wait_next_records(self, timeout: float) -> tuple[RecordMap | None, set[TP] | None]:
        if self.flow_active and not self.app.client_only and not self._get_active_partitions():
            # Faust would sleep for a whole second.
            self._resumed.clear()
            await self.wait_first(self._resumed.wait(), self.suspend_flow.wait(), timeout=IDLE_SECONDS)
            if not self._get_active_partitions():
                return None, None
        return await super()._wait_next_records(timeout)

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> RecordMap:
        await self._reread_dropped()
        # A copy: Faust changes its set while the thread reads it.
        asked = None if active_partitions is None else set(active_partitions)
        epochs = self._delivery.epochs(self._owned)
        self._fetched = fetched = await self._thread.fetch(asked, epochs, min(timeout, POLL_SECONDS))
        for tp, log_range in fetched.ranges.items():
            self._delivery.fetched(tp, log_range, fetched[tp][-1].offset if tp in fetched else None)
        return fetched

    async def _reread_dropped(self) -> None:
        """Seeks back to records that were fetched and not delivered."""
        # No record is on its way now: Faust asks for more when it has handled the last result.
        dropped = self._delivery.dropped(self._located)
        if not dropped:
            return
        epochs, progress = self._delivery.epochs(dropped), self.coordinator.progress()
        starts = {tp: self._delivery.reread_from(tp, progress.get(Partition(*tp), 0)) for tp in dropped}
        for tp, offset in starts.items():
            fields = {"partition": str(Partition(*tp)), "offset": offset}
            log.warning("records were dropped before a projection got them: reading again", extra={"fields": fields})
        await asyncio.sleep(REREAD_SECONDS)
        with contextlib.suppress(IllegalStateError):  # revoked already: the next assignment starts again
            await self._begin({tp: starts[tp] for tp in dropped if self._delivery.epoch(tp) == epochs[tp]})

    def _to_message(self, tp: TP, record: Any) -> ConsumerMessage:  # noqa: ANN401 - aiokafka has no types
        message = super()._to_message(tp, record)
        log_range = self._fetched.ranges.get(tp)
        if log_range is not None:
            message.epoch = log_range.epoch  # type: ignore[attr-defined]
            message.previous_end = self._fetched.previous_ends[tp].get(record.offset)  # type: ignore[attr-defined]
        return message

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Message]]:
        """Delivers records of projections itself: Faust's way through queue and stream costs seven times as much."""
        receivers = cast("ProjectionApp", self.app).receivers
        async for tp, message in super().getmany(timeout):
            if tp not in self._owned:
                yield tp, message
                continue
            previous_end: int = getattr(message, "previous_end", -1)
            if self._delivery.deliver(tp, getattr(message, "epoch", None), previous_end, message.offset):
                self.records += 1
                if tp.topic not in receivers:
                    yield tp, message
                    continue
                for receive in receivers[tp.topic]:
                    if not receive(message.topic, message.partition, message.offset, previous_end, message):
                        self._delivery.missed(tp)
                if self.records % RECORDS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    # Progress, and what is committed to Kafka.

    def reached(self) -> Mapping[Partition, int]:
        """Returns for each partition the offset below which nothing is left to apply."""
        return self._committable(self.coordinator.progress())

    def _committable(self, progress: Mapping[Partition, int]) -> dict[Partition, int]:
        known = {Partition(*tp): self._delivery.progress(tp) for tp in self._located & self.assignment()}
        return {each: read.committable(progress.get(each)) for each, read in known.items() if read is not None}

    async def ends(self, topics: Iterable[str]) -> Mapping[Partition, int]:
        """Returns the ends of all partitions of these topics, assigned to this consumer or not."""
        tps = await self._thread.partitions(topics)
        return await self.ends_of(Partition(*tp) for tp in tps)

    async def ends_of(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        """Returns the offsets after the last stable record of these partitions."""
        found = await self._thread.ends([TP(*each) for each in partitions])
        return {Partition(*tp): end for tp, end in found.items()}

    async def force_commit(self, topics: TPorTopicSet | None = None, start_new_transaction: bool = True) -> bool:
        did_commit = await super().force_commit(topics, start_new_transaction)
        if self._located:
            await self._commit_progress(self.coordinator.progress())
        return bool(did_commit)

    async def _commit_progress(self, progress: Mapping[Partition, int]) -> None:
        reached = {TP(*partition): offset for partition, offset in self._committable(progress).items()}
        changed = {tp: offset for tp, offset in reached.items() if offset > self._committed.get(tp, -1)}
        if changed and await self._thread.commit_offsets(changed):
            self._committed |= changed

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Faust's check for stalled streams, which would misjudge held partitions. `stall_detector.py` checks ours."""
        if tp not in self._owned:
            super().verify_event_path(now, tp)
