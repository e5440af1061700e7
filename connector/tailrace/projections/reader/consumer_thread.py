"""The thread of the reader: it alone calls the consumer.

An assignment passes through these steps, and each one has the number of its *generation*:

1. The group assigns partitions. Nothing is fetched yet: the consumer's own assignment stays empty.
2. The reader finds the offsets to start from, in the app's event loop, and calls `assign`.
3. Records are fetched, and delivered to the event loop in the order of each partition.
4. The group revokes the partitions: the generation ends, and this thread waits until the reader has stopped its
   workers.

`assign` runs between two calls of the consumer, never within one. So a call during which the generation has ended can
only return records of before, and they are not delivered.

Records of a held partition are kept here, and its fetches are paused if it has many of them. If the event loop is slow,
this thread waits for it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import CancelledError
from concurrent.futures import Future as ThreadFuture
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tailrace.projections.core.store import Partition

POLL_SECONDS = 0.05
"""How long the consumer waits for a record. A call from the event loop waits as long at most."""
RECORDS_AT_ONCE = 1000
DELIVERIES = 2
"""So many deliveries may wait for the event loop."""
KEPT_RECORDS = 5_000
KEPT_BYTES = 8 * 1024 * 1024
"""A held partition with more records or bytes is paused: the client drops what it has fetched ahead, and fetches it
again after the pause."""
REVOKE_SECONDS = 30.0
"""For stopping the workers of revoked partitions. Later they cannot commit anything that another worker has applied."""

Records = Mapping[Partition, list[Message]]
log = logging.getLogger("tailrace.projections")


class ReaderCallbacks(Protocol):
    """What the thread calls. Each method is called in this thread, and must not wait for it."""

    def assigned(self, generation: int, partitions: Collection[Partition]) -> None:
        """The group has assigned all of these partitions. `ConsumerThread.assign` starts to read them."""

    def revoked(self) -> ThreadFuture[Mapping[Partition, int]]:
        """All partitions are revoked. The future has the offsets to commit when their workers have stopped."""

    def deliver(self, generation: int, records: Records, passed: Mapping[Partition, int]) -> None:
        """Passes on records, and the offsets up to which logs were read; followed by `ConsumerThread.delivered`."""

    def failed(self, error: Exception) -> None:
        """The thread ends with this error."""

    def report(self, error: KafkaError, partition: Partition | None) -> None:
        """The consumer has reported an error that may be final."""


class KeptRecords:
    """The records of a held partition; `passed` as in `ReaderCallbacks.deliver`."""

    def __init__(self) -> None:
        self.records: list[Message] = []
        self.bytes = 0
        self.passed: int | None = None
        self.paused = False

    def add(self, records: list[Message]) -> None:
        self.records += records
        self.bytes += sum(map(len, records))

    @property
    def is_full(self) -> bool:
        return len(self.records) > KEPT_RECORDS or self.bytes > KEPT_BYTES


class ConsumerThread(threading.Thread):
    """See the module's docstring. Methods without an underscore are called from the event loop."""

    def __init__(self, config: Mapping[str, Any], topics: Collection[str], callbacks: ReaderCallbacks) -> None:
        super().__init__(name="reader", daemon=True)
        self._topics = list(topics)
        self._callbacks = callbacks
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._may_deliver = threading.Semaphore(DELIVERIES)
        self._should_stop = False
        self._generation = 0
        self._assigned: set[Partition] = set()
        self._held: dict[Partition, KeptRecords] = {}
        # A token for the login may be asked for in the event loop: it must not create the consumer.
        self._consumer = Consumer({**config, "error_cb": self._on_error})

    # Called from the event loop.

    def assign(self, generation: int, starts: Mapping[Partition, int]) -> None:
        """Starts to read at these offsets, unless the generation has ended."""
        self._calls.put(lambda: self._assign(generation, starts))

    def hold(self, generation: int, partition: Partition) -> None:
        """Delivers no records of a partition until `release`, except those that are on their way."""
        self._calls.put(lambda: self._hold(generation, partition))

    def release(self, generation: int, partition: Partition) -> None:
        self._calls.put(lambda: self._release(generation, partition))

    def commit(self, generation: int, offsets: Mapping[Partition, int]) -> None:
        """Commits offsets to Kafka, for tools that show the lag. Nothing depends on it."""
        self._calls.put(lambda: self._commit(offsets) if generation == self._generation else None)

    def delivered(self) -> None:
        """Says that the event loop is done with a delivery."""
        self._may_deliver.release()

    def stop(self) -> None:
        """Leaves the group and ends the thread; `join` waits for it."""
        self._calls.put(self._end)

    # Called in this thread.

    def run(self) -> None:
        try:
            self._consumer.subscribe(
                self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
            while not self._should_stop:
                self._step()
        except Exception as error:  # noqa: BLE001 - ends the worker
            self._callbacks.failed(error)
        finally:
            self._consumer.close()

    def _step(self) -> None:
        """Executes the calls that wait, then reads and delivers once."""
        while not self._calls.empty():
            self._calls.get()()
        if self._should_stop:
            return
        reads = self._assigned.difference(self._held) or not self._assigned
        if not reads:
            # Nothing to read: wait for a call instead, and only let the consumer do what the group needs.
            try:
                self._calls.get(timeout=POLL_SECONDS)()
            except queue.Empty:
                pass
        elif not self._may_deliver.acquire(timeout=POLL_SECONDS):
            return  # the event loop is slow
        else:
            self._may_deliver.release()
        self._read(POLL_SECONDS if reads else 0, RECORDS_AT_ONCE if reads else 1)

    def _read(self, timeout: float, limit: int) -> None:
        generation = self._generation
        first = self._consumer.poll(timeout)
        if first is None:
            return
        messages = [first]
        if limit > 1:
            messages += self._consumer.consume(limit - 1, 0)
        if generation != self._generation:
            return  # records of before; the ones of the new generation are not fetched yet
        records: dict[Partition, list[Message]] = {}
        passed: dict[Partition, int] = {}
        for message in messages:
            if (error := message.error()) is not None:
                self._take_error(message, error, passed)
                continue
            partition = Partition(message.topic(), message.partition())  # type: ignore[arg-type]  # a record has both
            if partition in records:
                records[partition].append(message)
            else:
                records[partition] = [message]
        for partition, kept in self._held.items():
            self._keep(partition, kept, records.pop(partition, []))
            kept.passed = passed.pop(partition, kept.passed)
        if records or passed:
            self._deliver(records, passed)

    def _take_error(self, message: Message, error: KafkaError, passed: dict[Partition, int]) -> None:
        topic, number = message.topic(), message.partition()
        partition = Partition(topic, number) if topic is not None and number is not None and number >= 0 else None
        if error.code() == KafkaError._PARTITION_EOF and partition is not None:
            passed[partition] = message.offset() or 0
        else:
            self._callbacks.report(error, partition)

    def _deliver(self, records: Records, passed: Mapping[Partition, int]) -> None:
        self._may_deliver.acquire()
        self._callbacks.deliver(self._generation, records, passed)

    # Holds.

    def _hold(self, generation: int, partition: Partition) -> None:
        if generation == self._generation:
            self._held.setdefault(partition, KeptRecords())

    def _keep(self, partition: Partition, kept: KeptRecords, records: list[Message]) -> None:
        kept.add(records)
        if kept.is_full and not kept.paused:
            kept.paused = True
            self._consumer.pause([TopicPartition(*partition)])

    def _release(self, generation: int, partition: Partition) -> None:
        kept = self._held.pop(partition, None) if generation == self._generation else None
        if kept is None:
            return
        if kept.records or kept.passed is not None:
            self._deliver(
                {partition: kept.records} if kept.records else {},
                {} if kept.passed is None else {partition: kept.passed},
            )
        if kept.paused:
            self._consumer.resume([TopicPartition(*partition)])

    # Assignments.

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._end_generation()
        consumer.assign([])
        self._callbacks.assigned(self._generation, [Partition(each.topic, each.partition) for each in partitions])

    def _assign(self, generation: int, starts: Mapping[Partition, int]) -> None:
        if generation == self._generation:
            self._assigned = set(starts)
            self._consumer.assign([TopicPartition(*partition, offset) for partition, offset in starts.items()])
            # A pause of an earlier assignment may still be in effect.
            self._consumer.resume([TopicPartition(*partition) for partition in starts])

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit(self._stop_workers())
        consumer.unassign()

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._stop_workers()
        consumer.unassign()

    def _stop_workers(self) -> Mapping[Partition, int]:
        """Ends the generation and waits for the workers; returns the offsets to commit."""
        self._end_generation()
        stopping = self._callbacks.revoked()
        try:
            return stopping.result(REVOKE_SECONDS)
        except TimeoutError:
            log.warning("the workers of revoked partitions have not stopped within %.0f s", REVOKE_SECONDS)
        except CancelledError:
            pass  # the event loop ends
        except Exception as error:  # noqa: BLE001 - ends the worker
            self._callbacks.failed(error)
        return {}

    def _end_generation(self) -> None:
        self._generation += 1
        self._assigned = set()
        self._held.clear()

    def _commit(self, offsets: Mapping[Partition, int]) -> None:
        if offsets:
            try:
                self._consumer.commit(
                    offsets=[TopicPartition(*partition, offset) for partition, offset in offsets.items()],
                    asynchronous=True,
                )
            except KafkaException as error:
                log.warning("offsets were not committed to Kafka: %s", error.args[0].name())

    def _end(self) -> None:
        self._should_stop = True

    def _on_error(self, error: KafkaError) -> None:
        self._callbacks.report(error, None)
