"""Producer, Consumer and AdminClient of confluent-kafka over the simulated broker, with librdkafka's rules.

- `produce` only queues; a thread of librdkafka sends. A full queue raises BufferError.
- A refused or lost request that may succeed later is sent again by librdkafka until the message times out.
- A failed message makes the transaction abortable: the commit fails with `txn_requires_abort`.
- An old epoch is fatal: every later call fails.
- `commit_transaction` sends what is queued, then EndTxn. A timeout of the call is retriable and does not end EndTxn:
  the next call goes on waiting for the same one.
- A client that sends a request again has closed the connection of the first: the first arrives before that, or never.
  The last request of a killed client may arrive at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from simulation.broker import ABORTED, COMMITTED, Broker, BrokerError, Stored
from simulation.network import Lost, Network
from simulation.scheduler import Simulation
from simulation.stdlib import Condition

MESSAGE_TIMEOUT = 30.0
REQUEST_TIMEOUT = 8.0
RETRY = (KafkaError.CONCURRENT_TRANSACTIONS, KafkaError._TIMED_OUT)


def failure(code: int, **flags: bool) -> KafkaException:
    return KafkaException(KafkaError(code, None, **flags))


class Message:
    """A read record, or an event such as the end of a partition."""

    def __init__(self, record: Stored, error: KafkaError | None = None) -> None:
        self._record = record
        self._error = error

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str:
        return self._record.topic

    def partition(self) -> int:
        return self._record.partition

    def offset(self) -> int:
        return self._record.offset

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> bytes | None:
        return self._record.value

    def headers(self) -> Any:
        return self._record.headers

    def timestamp(self) -> tuple[int, int]:
        return (1, self._record.timestamp)


class KafkaClients:
    """Makes the clients of one simulated network; its methods replace the classes of confluent-kafka."""

    def __init__(self, simulation: Simulation, broker: Broker, network: Network) -> None:
        self.simulation, self.broker, self.network = simulation, broker, network
        self.queue_records = 100

    def producer(self, config: dict[str, Any], on_delivery: Callable[..., None] | None = None) -> Producer:
        return Producer(self, config, on_delivery)

    def consumer(self, config: dict[str, Any]) -> Consumer:
        return Consumer(self, config)


class Producer:
    """One producer: its queue, the thread that sends, and the state of its transaction."""

    def __init__(
        self, clients: KafkaClients, config: dict[str, Any], on_delivery: Callable[..., None] | None = None
    ) -> None:
        self._clients = clients
        self._simulation = clients.simulation
        self._name: str = config.get("transactional.id", "")
        self._on_delivery = on_delivery
        self._queue: list[tuple[tuple[Any, ...], Callable[..., None] | None]] = []
        self._events: list[tuple[Callable[..., None], KafkaError, Message]] = []
        self._changed = Condition(self._simulation)
        self._epoch = -1
        self._sequence = 0
        self._failed: KafkaError | None = None
        self._fatal = False
        self._ending = ""
        self._ended: BrokerError | None = None
        self._sending = False

    def init_transactions(self, timeout: float) -> None:
        deadline = self._simulation.now + timeout
        while True:
            try:
                self._epoch = self._request("kafka.init", lambda: self._clients.broker.init_producer(self._name))
            except BrokerError as error:
                if error.code not in RETRY or self._simulation.now > deadline:
                    raise failure(error.code, retriable=error.code in RETRY) from None
                self._simulation.sleep(self._simulation.delay(0.02))
            else:
                return

    def begin_transaction(self) -> None:
        self._simulation.current()
        if self._fatal:
            raise failure(KafkaError._FENCED, fatal=True)
        self._failed, self._ending = None, ""

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        on_delivery: Callable[..., None] | None = None,
        callback: Callable[..., None] | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        self._simulation.current()
        if self._fatal:
            raise failure(KafkaError._FATAL, fatal=True)
        if self._name and self._failed is not None:
            raise failure(KafkaError._STATE, txn_requires_abort=True)
        if len(self._queue) >= self._clients.queue_records:
            raise BufferError("Local: Queue full")
        self._queue.append(((topic, value, key, timestamp, headers), on_delivery or callback or self._on_delivery))
        if not self._sending:
            self._sending = True
            self._simulation.spawn(self._simulation.current().process, self._send_all)

    def poll(self, timeout: float) -> int:
        if timeout:
            self._changed.wait_for(lambda: self._events or not self._queue, timeout)
        return self._call_back()

    def flush(self, timeout: float = -1) -> int:
        self._changed.wait_for(lambda: not self._queue, None if timeout < 0 else timeout)
        self._call_back()
        return len(self._queue)

    def commit_transaction(self, timeout: float = -1) -> None:
        deadline = self._simulation.now + timeout
        if self.flush(timeout):
            raise failure(KafkaError._TIMED_OUT, retriable=True)
        if self._failed is not None and not self._ending:
            raise KafkaException(self._with_flags(self._failed))
        self._end(COMMITTED, deadline - self._simulation.now)

    def abort_transaction(self, timeout: float = -1) -> None:
        if self._fatal:
            raise failure(KafkaError._FATAL, fatal=True)
        deadline = self._simulation.now + timeout
        self._queue.clear()
        self._changed.wait_for(lambda: not self._sending, timeout)
        self._end(ABORTED, max(0.0, deadline - self._simulation.now))

    def purge(self, *, in_queue: bool, in_flight: bool, blocking: bool) -> None:
        self._simulation.current()
        self._queue.clear()
        self._changed.notify_all()

    def _with_flags(self, error: KafkaError) -> KafkaError:
        return KafkaError(error.code(), None, fatal=self._fatal, txn_requires_abort=not self._fatal)

    def _call_back(self) -> int:
        events, self._events = self._events, []
        for callback, error, message in events:
            callback(error, message)
        return len(events)

    def _end(self, kind: str, timeout: float) -> None:
        if not self._ending:
            self._ending, self._ended = kind, None
            self._simulation.spawn(self._simulation.current().process, lambda: self._send_end(kind))
        if not self._changed.wait_for(lambda: self._ended is not None, timeout):
            raise failure(KafkaError._TIMED_OUT, retriable=True)
        assert self._ended is not None
        code = self._ended.code
        if code == 0:
            self._ending = ""
        elif code == KafkaError.INVALID_PRODUCER_EPOCH:
            self._fatal = True
            raise failure(KafkaError._FENCED, fatal=True)
        else:
            raise failure(code, txn_requires_abort=True)

    def _send_end(self, kind: str) -> None:
        def ask() -> None:
            # Without a record there is nothing that the coordinator knows of.
            if self._sequence:
                self._clients.broker.end(self._name, self._epoch, kind)

        while True:
            try:
                self._request("kafka.end", ask)
                answer = BrokerError(0)
            except BrokerError as error:
                answer = error
            if answer.code not in RETRY:
                break
            self._simulation.sleep(self._simulation.delay(0.01))
        self._ended = answer
        self._changed.notify_all()

    def _send_all(self) -> None:
        """The thread of librdkafka that sends what is queued."""
        simulation = self._simulation
        while self._queue:
            # linger.ms and the size of batches decide how many records travel together.
            batch = self._queue[: simulation.random.randint(1, 8)]
            records = [record for record, _ in batch]
            self._sequence += 1
            sequence, since = self._sequence, simulation.now
            while True:
                try:
                    self._send(records, sequence)
                except BrokerError as error:
                    if (
                        error.code in RETRY
                        and simulation.now - since < MESSAGE_TIMEOUT
                        and self._queue[:1] == batch[:1]
                    ):
                        simulation.sleep(simulation.delay(0.02))
                        continue
                    code = KafkaError._MSG_TIMED_OUT if error.code in RETRY else error.code
                    self._fail(KafkaError(code))
                break
            if self._queue[: len(batch)] == batch:
                del self._queue[: len(batch)]
            self._changed.notify_all()
        self._sending = False
        self._changed.notify_all()

    def _send(self, records: list[tuple[Any, ...]], sequence: int) -> None:
        broker, owner = self._clients.broker, self._simulation.current().process.name
        if self._name:
            self._request("kafka.produce", lambda: broker.append(self._name, self._epoch, sequence, records, owner))
        else:
            self._request("kafka.plain", lambda: broker.append_plain(records, owner))

    def _fail(self, error: KafkaError) -> None:
        """One record failed, and with it all that are queued behind it."""
        self._failed = self._failed or error
        if error.code() == KafkaError.INVALID_PRODUCER_EPOCH and self._name:
            self._fatal = True
        for record, callback in self._queue:
            topic, value, key, timestamp, headers = record
            if callback is not None:
                message = Message(Stored(topic, -1, -1, key, value, headers, timestamp, None), error)
                self._events.append((callback, error, message))
        self._queue.clear()

    def _request(self, label: str, effect: Callable[[], Any]) -> Any:
        try:
            return self._clients.network.request(label, effect, REQUEST_TIMEOUT)
        except Lost:
            raise BrokerError(KafkaError._TIMED_OUT) from None


class Metadata:
    """The answer of `list_topics`."""

    class Topic:
        error = None

        class Partition:
            replicas = (1,)
            isrs = (1,)
            leader = 1
            error = None

        def __init__(self, partitions: int) -> None:
            self.partitions = {number: self.Partition() for number in range(partitions)}

    def __init__(self, broker: Broker) -> None:
        self.topics = {name: self.Topic(len(logs)) for name, logs in broker.topics.items()}


class Consumer:
    """A consumer with assigned partitions; it joins no group."""

    def __init__(self, clients: KafkaClients, config: dict[str, Any]) -> None:
        self._clients = clients
        self._committed = config.get("isolation.level", "read_committed") == "read_committed"
        self._next: dict[tuple[str, int], int] = {}
        self._at_end: set[tuple[str, int]] = set()
        self._paused: set[tuple[str, int]] = set()

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Metadata:
        return Metadata(self._request(lambda: self._clients.broker))

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        topic, number = partition.topic, partition.partition
        broker = self._clients.broker

        def ask() -> tuple[int, int]:
            return 0, broker.last_stable(topic, number) if self._committed else len(broker.topics[topic][number])

        found: tuple[int, int] = self._request(ask)
        return found

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._next = {(each.topic, each.partition): each.offset for each in partitions}
        self._at_end.clear()

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._paused |= {(each.topic, each.partition) for each in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self._paused -= {(each.topic, each.partition) for each in partitions}

    def unassign(self) -> None:
        self._next = {}

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        found: list[Message] = []
        for (topic, number), offset in list(self._next.items()):
            if (topic, number) in self._paused:
                continue
            try:
                records, end = self._request(
                    lambda t=topic, n=number, o=offset: self._clients.broker.read(t, n, o, committed=self._committed)
                )
            except KafkaException:
                return found
            records = records[: num_messages - len(found)]
            found += [Message(record) for record in records]
            after = records[-1].offset + 1 if records else end
            if not records and (topic, number) not in self._at_end and after >= offset:
                self._at_end.add((topic, number))
                event = Stored(topic, number, after, None, None, None, 0, None)
                found.append(Message(event, KafkaError(KafkaError._PARTITION_EOF)))
            if records:
                self._at_end.discard((topic, number))
            self._next[topic, number] = max(offset, after)
        if not found:
            self._clients.simulation.sleep(timeout)
        return found

    def close(self) -> None: ...

    def _request(self, effect: Callable[[], Any]) -> Any:
        try:
            return self._clients.network.request("kafka.read", effect, REQUEST_TIMEOUT)
        except Lost:
            raise failure(KafkaError._TIMED_OUT, retriable=True) from None
