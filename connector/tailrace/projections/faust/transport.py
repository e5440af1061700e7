"""How a projection app reads Kafka: Faust's own consumer, guided by what the projections have stored.

For the topics that projections own the coordinator is the truth; Faust's own bookkeeping is switched off: acks,
gaps and read offsets stay empty. A partition of theirs is read only once its stored position was asked for and sought;
Kafka's committed offset follows what the store has committed. Other topics of the same app are read as Faust does it.

Between the fetch and the projection Faust drops records in several places, without a word. So each record says which
one it follows, and a record that does not follow the last one that was handed over is not handed over: the partition is
read again from where its projections are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence, Set
from itertools import count
from typing import Any, ClassVar, Protocol, cast

from aiokafka.errors import IllegalStateError, KafkaError
from faust.transport import conductor
from faust.transport.consumer import RecordMap
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage, Message
from faust.types.transports import ConductorT, ConsumerT, TPorTopicSet
from mode import Service

from tailrace.projections.core.store import Partition
from tailrace.projections.faust.consumer_thread import ConsumerThread, FetchResult
from tailrace.projections.faust.delivery import DeliveryTracker
from tailrace.projections.faust.start_offsets import Guide, PartitionBounds, start_offset

POLL_SECONDS = 0.2
"""How long a fetch waits for records: a partition that is let go again is in the next fetch, not in this one."""
RECORDS_AT_ONCE = 200
"""After so many the event loop gets its turn: workers commit, heartbeats of others go out."""
IDLE_SECONDS = 1.0
LOOK_SECONDS = 1.0
READ_AGAIN_SECONDS = 0.1
AHEAD_TRIES = 3
"""A new leader may for a moment know less than the old one: a position beyond its end is looked at again."""

log = logging.getLogger("tailrace.projections")


Taker = Callable[[str, int, int, int, Message], bool]
"""Is given a record: topic, partition, offset, the offset behind the record before it, and Faust's message.

It queues it and returns; one that it must have and did not take (False) is read again.
"""


class Guided(Protocol):
    """An app with a coordinator. `takers` are given the records of their topic themselves: no stream reads it.

    The way through conductor, queue and stream costs Faust seven times the work of all the rest.
    """

    coordinator: Guide

    @property
    def takers(self) -> Mapping[str, Sequence[Taker]]: ...


class ReadOffsets(defaultdict[TP, int | None]):
    """Faust's account of what it has read, by which it drops what looks old. Not for partitions that we seek in."""

    def __init__(self, owns: Callable[[TP], bool]) -> None:
        super().__init__(lambda: None)
        self._owns = owns

    def __setitem__(self, tp: TP, offset: int | None) -> None:
        if not self._owns(tp):
            super().__setitem__(tp, offset)


class Consumer(driver.Consumer):
    """One for the app. Each (re)assignment goes through: not placed, placed (sought and announced), taken away."""

    logger = logging.getLogger("faust.projections")
    _thread: ConsumerThread

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - Faust's own
        self.records = 0
        """How many records of projections were handed over."""
        self.unsettled_since: float | None = None
        """Since when the group owes us an answer which partitions we get, or Kafka or a store where to begin in them.

        None while they are read, be it none.
        """
        self._owned: Set[TP] = frozenset()
        self._placed: set[TP] = set()
        self._held: dict[TP, set[object]] = {}
        self._delivery = DeliveryTracker()
        self._followed: dict[TP, int] = {}
        self._reading_numbers = count(1)
        self._placing: asyncio.Future[Any] | None = None
        self._fetched = FetchResult({}, {})
        self._let_go = asyncio.Event()
        super().__init__(*args, **kwargs)
        self._read_offset = ReadOffsets(lambda tp: tp in self._owned)

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def coordinator(self) -> Guide:
        return cast(Guided, self.app).coordinator

    async def on_started(self) -> None:
        await super().on_started()
        self.unsettled_since = time.monotonic()
        if not self.app.client_only:
            self._thread.check_reader()

    @Service.task
    async def _look_at_group(self) -> None:
        while not self.should_stop and not self.app.client_only:
            await self.sleep(LOOK_SECONDS)
            await self._thread.look()

    # What workers call.

    def is_current(self, message: Message) -> bool:
        """Whether a record is of the reading that began at the last `assigned`. Others are to be dropped."""
        reading = self._delivery.number(message.tp)
        return reading is not None and getattr(message, "reading", None) == reading

    def hold(self, partition: Partition, holder: object) -> None:
        """Fetches no more of it for now; what is already fetched still comes. Faust's `pause_partitions` loses that."""
        tp = TP(*partition)
        if tp in self._placed:
            self._held.setdefault(tp, set()).add(holder)
            self._get_active_partitions().discard(tp)
            self._buffered_partitions.add(tp)

    def release(self, partition: Partition, holder: object) -> None:
        """Takes `hold` back; the last holder's word counts. Holds end with the assignment they were made in."""
        tp = TP(*partition)
        holders = self._held.get(tp)
        if holders is not None:
            holders.discard(holder)
            if not holders:
                del self._held[tp]
                self.on_buffer_drop(tp)

    def missed(self, partition: Partition) -> None:
        """A worker was given a record, but not the one before it: both are read again."""
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
            self._placing = self.add_future(self._place(self._owned))
        else:
            self.unsettled_since = None

    async def on_stop(self) -> None:
        await self._end_reading()
        await super().on_stop()

    async def _end_reading(self) -> None:
        """Takes the partitions away from the workers, and tells Kafka how far they came."""
        if self._placing is not None:
            self._placing.cancel()
            await asyncio.wait([self._placing])
            self._placing = None
        if not self._owned:
            return
        self._delivery.end()
        self._held.clear()
        progress = dict(self.coordinator.progress())
        await self.coordinator.revoked()
        # Lanes may have committed something while they ended, or be gone by now.
        progress |= self.coordinator.progress()
        await self._follow(progress)
        self._placed.clear()
        self._delivery.forget()
        self._followed.clear()
        self._owned = frozenset()

    async def _place(self, tps: Set[TP]) -> None:
        """Seeks newly assigned partitions to where their projections are, and begins to read them."""
        by_name = {Partition(*tp): tp for tp in tps}
        places = await self.coordinator.positions(by_name.keys())
        ahead = {
            tp: max((each.stored for each in places[partition] if each.stored is not None), default=None)
            for partition, tp in by_name.items()
        }
        bounds = await self._bounds(ahead)
        # Each for itself: one that is new must not hide what another one has lost.
        starts = {
            partition: [start_offset(partition, each.stored, bounds[tp], each.start) for each in places[partition]]
            for partition, tp in by_name.items()
        }
        # Before the seek: whatever is read behind it finds its worker.
        await self.coordinator.assigned(starts)
        try:
            await self._begin({by_name[partition]: min(offsets) for partition, offsets in starts.items()})
        except IllegalStateError:
            return  # taken away already: the next assignment begins anew
        self._placed |= tps
        self.resume_partitions(tps)
        self.unsettled_since = None
        log.info("reading", extra={"fields": {"partitions": len(tps), "topics": len({tp.topic for tp in tps})}})

    async def _bounds(self, stored: Mapping[TP, int | None]) -> Mapping[TP, PartitionBounds]:
        ahead = 0
        while True:
            try:
                bounds = await self._thread.bounds(stored.keys())
            except KafkaError as error:
                if not error.retriable:
                    raise
                log.warning("waiting for Kafka to tell what the topics hold: %s", type(error).__name__)
            else:
                if all(offset is None or offset <= bounds[tp].end for tp, offset in stored.items()):
                    return bounds
                ahead += 1
                if ahead == AHEAD_TRIES:
                    return bounds
            await asyncio.sleep(1)

    async def _begin(self, starts: Mapping[TP, int]) -> None:
        reading = next(self._reading_numbers)
        # Before the seek: from here on nothing that was fetched earlier is current.
        self._delivery.begin(starts, reading)
        await self._thread.begin(starts, reading)

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Faust's way, for topics that nobody guides."""
        others = self.assignment() - self._owned
        return await self._thread.seek_to_own(others) if others else {}

    # Which partitions are fetched: of owned ones only those that are placed and not held.

    def _set_active_tps(self, tps: set[TP]) -> set[TP]:
        active = super()._set_active_tps(tps)
        active -= self._owned - self._placed
        return active

    def resume_partitions(self, tps: Iterable[TP]) -> None:
        super().resume_partitions({tp for tp in tps if tp not in self._owned or tp in self._placed})
        self._let_go.set()

    def on_buffer_drop(self, tp: TP) -> None:
        """Called when the queue of a stream has room again, which may be long after its partition was taken away."""
        if tp in self._paused_partitions or tp in self._held or tp not in self.assignment():
            return
        super().on_buffer_drop(tp)
        self._let_go.set()

    # Records.

    async def _wait_next_records(self, timeout: float) -> tuple[RecordMap | None, set[TP] | None]:
        if self.flow_active and not self.app.client_only and not self._get_active_partitions():
            # Faust would sleep for a second, whatever happens.
            self._let_go.clear()
            await self.wait_first(self._let_go.wait(), self.suspend_flow.wait(), timeout=IDLE_SECONDS)
            if not self._get_active_partitions():
                return None, None
        return await super()._wait_next_records(timeout)

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> RecordMap:
        await self._read_dropped_again()
        # A copy: Faust changes its set while the thread is looking at it.
        asked = None if active_partitions is None else set(active_partitions)
        readings = self._delivery.numbers(self._owned)
        self._fetched = fetched = await self._thread.fetch(asked, readings, min(timeout, POLL_SECONDS))
        for tp, stretch in fetched.stretches.items():
            self._delivery.fetched(tp, stretch, fetched[tp][-1].offset if tp in fetched else None)
        return fetched

    async def _read_dropped_again(self) -> None:
        """Seeks back to what was fetched and not handed over: for whatever reason, it must not be left out."""
        # Nothing is on its way now: Faust asks for more when it is done with what it has.
        dropped = self._delivery.dropped(self._placed)
        if not dropped:
            return
        numbers, progress = self._delivery.numbers(dropped), self.coordinator.progress()
        starts = {tp: self._delivery.again(tp, progress.get(Partition(*tp), 0)) for tp in dropped}
        for tp, offset in starts.items():
            told = {"partition": str(Partition(*tp)), "offset": offset}
            log.warning("records were dropped before a projection had them: reading again", extra={"fields": told})
        await asyncio.sleep(READ_AGAIN_SECONDS)
        with contextlib.suppress(IllegalStateError):  # taken away already: the next assignment begins anew
            await self._begin({tp: starts[tp] for tp in dropped if self._delivery.number(tp) == numbers[tp]})

    def _to_message(self, tp: TP, record: Any) -> ConsumerMessage:  # noqa: ANN401 - aiokafka has no types
        message = super()._to_message(tp, record)
        stretch = self._fetched.stretches.get(tp)
        if stretch is not None:
            message.reading = stretch.reading  # type: ignore[attr-defined]
            message.follows = self._fetched.chains[tp].get(record.offset)  # type: ignore[attr-defined]
        return message

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Message]]:
        takers = cast(Guided, self.app).takers
        async for tp, message in super().getmany(timeout):
            if tp not in self._owned:
                yield tp, message
                continue
            follows: int = getattr(message, "follows", -1)
            if self._delivery.hand(tp, getattr(message, "reading", None), follows, message.offset):
                self.records += 1
                if tp.topic not in takers:
                    yield tp, message
                    continue
                for take in takers[tp.topic]:
                    if not take(message.topic, message.partition, message.offset, follows, message):
                        self._delivery.missed(tp)
                if self.records % RECORDS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    # What Kafka is told.

    def reached(self) -> Mapping[Partition, int]:
        """Of each partition, the offset below which nothing is left to apply."""
        return self._committable(self.coordinator.progress())

    def _committable(self, progress: Mapping[Partition, int]) -> dict[Partition, int]:
        reaches = {Partition(*tp): self._delivery.reach(tp) for tp in self._placed & self.assignment()}
        return {each: reach.committable(progress.get(each)) for each, reach in reaches.items() if reach is not None}

    async def ends(self, topics: Iterable[str]) -> Mapping[Partition, int]:
        """Where each partition ends that these topics have now, be it ours or not."""
        tps = await self._thread.partitions(topics)
        return await self.ends_of(Partition(*tp) for tp in tps)

    async def ends_of(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        """Where these end: behind their last stable record."""
        found = await self._thread.ends([TP(*each) for each in partitions])
        return {Partition(*tp): end for tp, end in found.items()}

    async def force_commit(self, topics: TPorTopicSet | None = None, start_new_transaction: bool = True) -> bool:
        did_commit = await super().force_commit(topics, start_new_transaction)
        if self._placed:
            await self._follow(self.coordinator.progress())
        return bool(did_commit)

    async def _follow(self, progress: Mapping[Partition, int]) -> None:
        reached = {TP(*partition): offset for partition, offset in self._committable(progress).items()}
        news = {tp: offset for tp, offset in reached.items() if offset > self._followed.get(tp, -1)}
        if news and await self._thread.follow(news):
            self._followed |= news

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Faust's watch for stalled streams; a held partition is none, and workers are watched by their projection."""
        if tp not in self._owned:
            super().verify_event_path(now, tp)


class Conductor(conductor.Conductor):
    """Gives records to streams."""

    logger = logging.getLogger("faust.projections")

    def acks_enabled_for(self, topic: str) -> bool:
        """Streams, the compiled ones too, and the consumer ask this before they keep account of a record."""
        return super().acks_enabled_for(topic) and not cast(Guided, self.app).coordinator.owns(topic)


class Transport(driver.Transport):
    """What a projection app reads and writes through."""

    Consumer: ClassVar[type[ConsumerT]] = Consumer
    Conductor: ClassVar[type[ConductorT]] = Conductor
