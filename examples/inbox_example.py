"""Compares what a consumer with an inbox has written with the topic. The faults: duplicates, and a killed consumer.

Both examples, `inbox_kafka` and `inbox_faststream`, have the same tables and the same faults.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import psycopg
from confluent_kafka import Message, Producer

from examples.example import ROOT, Example, Finding, Rows
from tailrace.testkit.demo.orders import Orders
from tailrace.testkit.demo.process import TailraceProcess
from tailrace.testkit.stack import wait_until
from tailrace.testkit.stack.paths import new_run_dir
from tailrace.testkit.topic_reader import read_all
from tailrace.testkit.workload.writer import WorkloadWriter

REPEATED = 30
PUBLISH_TIMEOUT = 60.0
GROUP = "order-totals"
APPLIED = "SELECT id, events, total FROM order_totals"
MARKERS = "SELECT event_id FROM processed_events WHERE consumer_group = %s"


class Program(TailraceProcess):
    """A Python module that is run as a program, instead of a `tailrace` command."""

    def start(self) -> None:
        self._log_start = self._process.log.stat().st_size if self._process.log.exists() else 0
        self._process.launch([sys.executable, "-m", *self._arguments], {**os.environ, **self._environment})


class InboxExample(Example[Orders]):
    SERVICE = Orders
    TRUTH = "topic"
    FAULT = f"consumer killed (SIGKILL), {REPEATED} records published once more; consumer killed while it catches up"

    def worker_process(self) -> TailraceProcess:
        return Program(
            "worker",
            new_run_dir("example", None),
            [f"{self.package}.app"],
            ready_event="reading",
            environment={**self.environment(), "KAFKA": self.service.bootstrap, "PYTHONPATH": str(ROOT)},
        )

    def environment(self) -> dict[str, str]:
        return {"SHOP_DB": self.service.url}

    def rows(self) -> Rows:
        return {order: _description(events, total) for order, events, total in self._query(APPLIED)}

    def expected(self) -> Rows:
        """Adds up the events of the topic, each id once, after the connector has published all of the outbox."""
        wait_until(
            lambda: self.service.in_outbox() <= {_id(record) for record in self._records()},
            PUBLISH_TIMEOUT,
            what="the connector to publish the outbox",
        )
        orders = [
            json.loads(record.value() or b"{}", parse_float=Decimal, parse_int=Decimal)
            for record in {_id(record): record for record in self._records()}.values()
        ]
        events = Counter(order["order"] for order in orders)
        totals: defaultdict[str, Decimal] = defaultdict(Decimal)
        for order in orders:
            totals[order["order"]] += order["amount"]
        return {order: _description(events[order], totals[order]) for order in events}

    def disturb(self, earlier: WorkloadWriter) -> None:
        self.worker.kill()
        self._publish_again()
        applied = self.rows()
        self.worker.start()
        wait_until(lambda: self.worker.ready and self.rows() != applied, PUBLISH_TIMEOUT, what="the consumer to go on")
        self.worker.kill()
        self.worker.start()

    def audit(self, writers: Sequence[WorkloadWriter]) -> list[Finding]:
        records = Counter(map(_id, self._records()))
        markers = Counter(event for (event,) in self._query(MARKERS, GROUP))
        repeated = records.total() - len(records)
        found = f"{records.total()} records on the topic, {repeated} of them duplicates; {markers.total()} markers"
        wrong = sorted(event for event in records.keys() | markers.keys() if markers[event] != min(1, records[event]))
        return [Finding(found, wrong if repeated >= REPEATED else [*wrong, "too few duplicates"])]

    def _publish_again(self) -> None:
        """Sends copies of records, with their headers, behind the others."""
        producer = Producer({"bootstrap.servers": self.service.bootstrap})
        for record in self._records()[:REPEATED]:
            producer.produce(self.service.topic, record.value(), record.key(), headers=record.headers())
        producer.flush(PUBLISH_TIMEOUT)

    def _records(self) -> list[Message]:
        return read_all(self.service.bootstrap, [self.service.topic])

    def _query(self, query: Any, *parameters: str) -> list[tuple[Any, ...]]:  # noqa: ANN401 - psycopg wants a literal
        with psycopg.connect(self.service.dsn) as connection:
            return connection.execute(query, parameters).fetchall()


def _id(record: Message) -> str:
    value = dict(record.headers() or [])["id"]
    return value.decode() if isinstance(value, bytes) else str(value)


def _description(events: int, total: Decimal) -> str:
    return f"{events} events, {total:,.2f} EUR"
