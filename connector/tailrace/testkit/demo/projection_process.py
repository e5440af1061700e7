"""The consumer's side of the scene: the projection `order_summary` as a process of its own, and its table."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import psycopg

from tailrace.testkit.demo.command import TailraceProcess
from tailrace.testkit.demo.orders import Orders
from tailrace.testkit.demo.projection_check import Histories

MODULE = "tailrace.testkit.demo.order_summary"
TABLE = "order_summary.order_summary"
EXTRA = ("faust", "aiokafka")


def is_installed() -> bool:
    """Whether there is what projections run on; it comes with the extra `faust`."""
    # Once it is imported, Faust puts something in its own place that cannot be looked up any more.
    return all(sys.modules.get(name) is not None or importlib.util.find_spec(name) is not None for name in EXTRA)


class OrderSummaryProjection:
    """A projection of the orders into a schema of its own in their database. It goes with that database.

    On Kafka it leaves a topic for dead letters. Its group goes with the topic that it has read.
    """

    NAME = "order_summary"

    def __init__(self, orders: Orders, suffix: str) -> None:
        self.orders = orders
        self.group = f"{self.NAME}{suffix}"
        self.letters = f"{self.group}.dead-letters"
        self._process: TailraceProcess | None = None
        self._connection: psycopg.Connection | None = None

    @property
    def process(self) -> TailraceProcess:
        if self._process is None:
            raise RuntimeError("the scene is not open")
        return self._process

    def prepare(self, folder: Path) -> None:
        """The orders' database must be there; the process is not started yet."""
        environment = {
            "ORDER_SUMMARY_NAME": self.group,
            "ORDER_SUMMARY_BROKER": ";".join(f"kafka://{each}" for each in self.orders.bootstrap.split(",")),
            "ORDER_SUMMARY_TOPIC": self.orders.topic,
            "ORDER_SUMMARY_DATABASE": self.orders.dsn,
            # Faust's own. A worker with a name gets its partitions back as soon as it returns; one without has to wait
            # until Kafka gives up its predecessor.
            "CONSUMER_GROUP_INSTANCE_ID": f"{self.group}-1",
        }
        self._process = TailraceProcess(
            self.NAME, folder, ["project", f"{MODULE}:app"], working="reading", environment=environment
        )

    def applied(self) -> int:
        """How many events its rows are made of."""
        [(count,)] = self._ask("coalesce(sum(cardinality(events)), 0)") or [(0,)]
        return int(count)

    def histories(self) -> Histories:
        """Of each order, the ids of the events that were applied to it; nothing before the first start."""
        return dict(self._ask("order_id, events"))

    @property
    def client(self) -> str:
        """A command that shows some of it."""
        return f"{self.orders.client} -c 'TABLE {TABLE} LIMIT 10'"

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.close()

    def _ask(self, columns: str) -> list[Any]:
        if self._connection is None:
            self._connection = psycopg.connect(self.orders.dsn, autocommit=True)
        try:
            return self._connection.execute(f"SELECT {columns} FROM {TABLE}").fetchall()  # noqa: S608
        except psycopg.errors.UndefinedTable:
            return []
