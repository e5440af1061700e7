"""Compares the projection with the outbox. The fault of this example: the worker is killed."""

from __future__ import annotations

from typing import Any

import psycopg

from examples.example import Example, Rows
from tailrace.testkit.demo.orders import Orders
from tailrace.testkit.workload.writer import WorkloadWriter

# An order's events are numbered by `revision`: the last one has the amount, all after the first are changes.
EXPECTED = """
    SELECT DISTINCT ON (aggregateid) aggregateid, (payload->>'amount')::numeric, payload->>'currency',
           count(*) OVER (PARTITION BY aggregateid) - 1
    FROM outbox ORDER BY aggregateid, (payload->>'revision')::integer DESC
"""
PROJECTED = "SELECT id, amount, currency, changes FROM order_summary.orders"


class OrderSummary(Example[Orders]):
    SERVICE = Orders
    FAULT = "worker killed (SIGKILL) while events arrive, and started again"

    def environment(self) -> dict[str, str]:
        return {"SHOP_DB": self.service.url}

    def rows(self) -> Rows:
        return self._query(PROJECTED)

    def expected(self) -> Rows:
        return self._query(EXPECTED)

    def _query(self, query: Any) -> Rows:  # noqa: ANN401 - psycopg wants a literal; these two are
        with psycopg.connect(self.service.dsn) as connection:
            return {
                key: f"{amount:9,.2f} {currency}, changed {changes} times"
                for key, amount, currency, changes in connection.execute(query)
            }

    def disturb(self, earlier: WorkloadWriter) -> None:
        self.worker.kill()
        self.worker.start()
