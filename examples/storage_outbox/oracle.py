"""Compares the projection with the service's own tables. The faults: concurrent writers, and a killed connector."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from examples.example import Example, Rows
from examples.storage_outbox.service import Stores, put
from tailrace.testkit.demo.environment import DemoEnvironment
from tailrace.testkit.workload.writer import WorkloadWriter

WRITERS, EVENTS = 8, 5
# Every event has one entry in the WAL log, and numbers count up from 1 without a gap.
EXPECTED = """
    SELECT s.id, s.items, s.bytes, count(DISTINCT o.sequence_number), max(o.sequence_number),
           count(*) - count(DISTINCT w.outbox_id)
    FROM stores s JOIN storage_outbox o ON o.aggregate_id = s.id LEFT JOIN storage_outbox_wal w USING (outbox_id)
    GROUP BY s.id
"""
PROJECTED = "SELECT id, items, bytes, items, last_sequence, out_of_order FROM store_contents.stores"


class StorageOutbox(Example[Stores]):
    SERVICE = Stores
    FAULT = f"{WRITERS} writers at once on one store, and the connector killed (SIGKILL) and started again"

    @classmethod
    def join(cls, environment: DemoEnvironment) -> None:
        servers = environment.servers
        environment.replace_services([Stores(servers.kafka, "", servers.postgres, ours=True)])

    def environment(self) -> dict[str, str]:
        return {"SHOP_DB": self.service.url}

    def rows(self) -> Rows:
        return self._query(PROJECTED)

    def expected(self) -> Rows:
        return self._query(EXPECTED)

    def _query(self, query: Any) -> Rows:  # noqa: ANN401 - psycopg wants a literal; these two are
        with psycopg.connect(self.service.dsn) as connection:
            return {
                store: f"{items} items, {size:,} bytes, {numbers} numbers up to {last}, {wrong} wrong"
                for store, items, size, numbers, last, wrong in connection.execute(query)
            }

    def disturb(self, earlier: WorkloadWriter) -> None:
        self.service.connector.kill()
        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(self._put_items, range(WRITERS)))
        self.service.connector.start()

    def _put_items(self, writer: int) -> None:
        with psycopg.connect(self.service.dsn) as connection:
            for number in range(EVENTS):
                put(connection, "store-shared", 100, f"writer {writer}, item {number}")
                connection.commit()
