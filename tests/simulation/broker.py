"""Kafka as the connector sees it: partitions, the idempotent producer, and the transaction coordinator.

Modelled behaviour, each rule as in Kafka 4.1 with transactions of version 1 (what librdkafka speaks):
- InitProducerId increments the epoch of the transactional id. With a transaction open it fences, begins to abort it,
  and answers CONCURRENT_TRANSACTIONS until the markers are written (TransactionCoordinator.handleInitProducerId).
- A request with an older epoch is refused: INVALID_PRODUCER_EPOCH, which librdkafka reports as fatal `_FENCED`.
- EndTxn decides first and writes markers later; in between new requests get CONCURRENT_TRANSACTIONS. Repeating EndTxn
  of the same epoch and kind succeeds, so a lost answer can be asked for again.
- A transaction that is open for longer than its timeout is aborted and its producer fenced.
- Readers of committed records stop at the last stable offset, where the first open transaction begins, and skip aborted
  records and markers. The other readers see everything.
- A batch that was stored already is recognised by its sequence number, and not stored again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError

from simulation.scheduler import Simulation

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


class BrokerError(Exception):
    """The answer to a refused request: an error code of Kafka."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class Transaction:
    number: int
    owner: str
    state: str = OPEN
    marked: bool = False
    """The markers are written: before that the decision is not visible."""
    records: list[Stored] = field(default_factory=list)


@dataclass(slots=True)
class Stored:
    """A record in a partition; a marker has no topic of its own records."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Any
    timestamp: int
    transaction: Transaction | None
    is_marker: bool = False
    writer: str = ""


@dataclass(slots=True)
class Producing:
    """What the coordinator knows of a transactional id."""

    epoch: int = -1
    transaction: Transaction | None = None
    pending: str = ""
    """The kind of the decision whose markers are not written yet."""
    last: str = ""
    sequence: int = -1


class Broker:
    """All topics and the coordinator. Each method is one request, handled at once."""

    def __init__(self, simulation: Simulation, *, timeout: float = 60.0, partitions: int = 2) -> None:
        self._simulation = simulation
        self._timeout = timeout
        self._default_partitions = partitions
        self._numbers = 0
        self.topics: dict[str, list[list[Stored]]] = {}
        self.producers: dict[str, Producing] = {}
        self.decided: Callable[[Transaction], None] = lambda _: None
        """Called when a transaction is decided, before its markers are written."""
        self.appended: Callable[[Stored], None] = lambda _: None
        self.available = True

    def create(self, topic: str, partitions: int) -> None:
        self.topics.setdefault(topic, [[] for _ in range(partitions)])

    def init_producer(self, name: str) -> int:
        """InitProducerId of a transactional id: returns the epoch."""
        known = self.producers.setdefault(name, Producing())
        if known.pending:
            raise BrokerError(KafkaError.CONCURRENT_TRANSACTIONS)
        known.epoch += 1
        known.sequence = -1
        if known.transaction is not None:
            self._decide(known, ABORTED)
            raise BrokerError(KafkaError.CONCURRENT_TRANSACTIONS)
        known.last = ""
        return known.epoch

    def append(self, name: str, epoch: int, sequence: int, records: list[tuple[Any, ...]], owner: str) -> None:
        """AddPartitionsToTxn and Produce of one batch in a transaction."""
        known = self._known(name, epoch)
        if known.pending:
            raise BrokerError(KafkaError.CONCURRENT_TRANSACTIONS)
        if sequence <= known.sequence:
            return
        known.sequence = sequence
        if known.transaction is None:
            self._numbers += 1
            known.transaction = opened = Transaction(self._numbers, owner)
            self._simulation.at(self._timeout, lambda: self._expire(known, opened))
        for record in records:
            self._store(record, known.transaction, owner)

    def append_plain(self, records: list[tuple[Any, ...]], owner: str) -> None:
        """Produce outside a transaction."""
        for record in records:
            self._store(record, None, owner)

    def end(self, name: str, epoch: int, kind: str) -> None:
        """EndTxn: COMMITTED or ABORTED."""
        known = self._known(name, epoch)
        if known.pending:
            if known.pending != kind:
                raise BrokerError(KafkaError.INVALID_TXN_STATE)
            raise BrokerError(KafkaError.CONCURRENT_TRANSACTIONS)
        if known.transaction is not None:
            self._decide(known, kind)
        elif known.last != kind:
            raise BrokerError(KafkaError.INVALID_TXN_STATE)

    def last_stable(self, topic: str, partition: int) -> int:
        log = self.topics[topic][partition]
        for record in log:
            if record.transaction is not None and not record.transaction.marked:
                return record.offset
        return len(log)

    def read(self, topic: str, partition: int, offset: int, *, committed: bool) -> tuple[list[Stored], int]:
        """Returns records from `offset` on, and the offset up to which nothing more is to be read now."""
        log = self.topics[topic][partition]
        end = self.last_stable(topic, partition) if committed else len(log)
        found = [
            record
            for record in log[offset:end]
            if not record.is_marker
            and not (committed and record.transaction is not None and record.transaction.state == ABORTED)
        ]
        return found, end

    def committed(self, topic: str) -> list[Stored]:
        """All records that are decided as committed, by partition, whether their markers are written or not."""
        return [
            record
            for log in self.topics.get(topic, ())
            for record in log
            if not record.is_marker and (record.transaction is None or record.transaction.state == COMMITTED)
        ]

    def _known(self, name: str, epoch: int) -> Producing:
        known = self.producers.get(name)
        if known is None or epoch != known.epoch:
            raise BrokerError(KafkaError.INVALID_PRODUCER_EPOCH)
        return known

    def _expire(self, known: Producing, transaction: Transaction) -> None:
        if known.transaction is transaction:
            known.epoch += 1
            self._decide(known, ABORTED)

    def _decide(self, known: Producing, kind: str) -> None:
        transaction, known.transaction = known.transaction, None
        assert transaction is not None
        transaction.state = kind
        known.pending = known.last = kind
        self._simulation.note(f"transaction {transaction.number} of {transaction.owner} {kind}")
        self.decided(transaction)

        def mark() -> None:
            transaction.marked = True
            known.pending = ""
            for topic, number in {(record.topic, record.partition): None for record in transaction.records}:
                log = self.topics[topic][number]
                log.append(Stored(topic, number, len(log), None, None, None, 0, transaction, is_marker=True))

        self._simulation.at(self._simulation.delay(0.003), mark)

    def _store(self, record: tuple[Any, ...], transaction: Transaction | None, writer: str) -> None:
        topic, value, key, timestamp, headers = record
        self.create(topic, self._default_partitions)
        logs = self.topics[topic]
        number = zlib.crc32(key or b"") % len(logs)
        log = logs[number]
        stored = Stored(topic, number, len(log), key, value, headers, timestamp, transaction, writer=writer)
        log.append(stored)
        if transaction is not None:
            transaction.records.append(stored)
        self.appended(stored)
