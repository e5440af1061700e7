"""The projection `order_summary` in the demo: its process, its table, and one run of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import psycopg

from tailrace.testkit.demo.display import ProjectionStatus
from tailrace.testkit.demo.orders import Orders
from tailrace.testkit.demo.process import DemoProcess, TailraceProcess
from tailrace.testkit.demo.report import ProjectionResult
from tailrace.testkit.demo.service import ServiceRun
from tailrace.testkit.oracle import Histories, check_projection, expected_histories

MODULE = "tailrace.testkit.demo.order_summary"
TABLE = "order_summary.order_summary"
EXTRA = ("faust", "aiokafka")


def is_installed() -> bool:
    """Returns whether the extra `faust` is installed, which projections need."""
    # After its import Faust replaces its own module by one that find_spec cannot handle.
    return all(sys.modules.get(name) is not None or importlib.util.find_spec(name) is not None for name in EXTRA)


class OrderSummaryProjection:
    """A projection of the orders into a separate schema in their database, removed with that database.

    On Kafka it has a topic for dead letters. Its consumer group is removed with the topic it reads.
    """

    NAME = "order_summary"

    def __init__(self, orders: Orders, suffix: str) -> None:
        self.orders = orders
        self.group = f"{self.NAME}{suffix}"
        self.dead_letters = f"{self.group}.dead-letters"
        self._process: TailraceProcess | None = None
        self._connection: psycopg.Connection | None = None

    @property
    def process(self) -> TailraceProcess:
        if self._process is None:
            raise RuntimeError("the environment is not open")
        return self._process

    def prepare(self, folder: Path) -> None:
        """Creates the process, without starting it; the orders' database must exist."""
        environment = {
            "ORDER_SUMMARY_NAME": self.group,
            "ORDER_SUMMARY_BROKER": ";".join(f"kafka://{each}" for each in self.orders.bootstrap.split(",")),
            "ORDER_SUMMARY_TOPIC": self.orders.topic,
            "ORDER_SUMMARY_DATABASE": self.orders.dsn,
            # Faust's own setting. A static member gets its partitions back when it returns; any other has to wait until
            # Kafka's session timeout of the killed one.
            "CONSUMER_GROUP_INSTANCE_ID": f"{self.group}-1",
        }
        self._process = TailraceProcess(
            self.NAME, folder, ["project", f"{MODULE}:app"], ready_event="reading", environment=environment
        )

    def run(self, source: ServiceRun) -> ProjectionRun:
        """Returns a run of it on the topic of a service."""
        return ProjectionRun(self, source)

    def applied(self) -> int:
        """Returns how many events were applied to its rows."""
        [(count,)] = self._select("coalesce(sum(cardinality(events)), 0)") or [(0,)]
        return int(count)

    def histories(self) -> Histories:
        """Returns the ids of the events applied to each order; empty before the first start."""
        return dict(self._select("order_id, events"))

    @property
    def client(self) -> str:
        """A command that shows some of its rows."""
        return f"{self.orders.client} -c 'TABLE {TABLE} LIMIT 10'"

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.close()

    def _select(self, columns: str) -> list[Any]:
        if self._connection is None:
            self._connection = psycopg.connect(self.orders.dsn, autocommit=True)
        try:
            return self._connection.execute(f"SELECT {columns} FROM {TABLE}").fetchall()  # noqa: S608
        except psycopg.errors.UndefinedTable:
            return []


class ProjectionRun(DemoProcess):
    """One run of the projection on the topic of a service."""

    def __init__(self, summary: OrderSummaryProjection, source: ServiceRun) -> None:
        super().__init__(f"{summary.NAME} projection", summary.process, f"applying {source.service.topic}")
        self._summary = summary
        self._source = source

    def has_applied_events(self) -> bool:
        return self.is_running() and self._summary.applied() > 0

    def has_caught_up(self) -> bool:
        return self.is_running() and self._summary.applied() >= self._source.arrived

    def result(self) -> ProjectionResult:
        """Compares its rows with the records on the topic, which the result of the service has read."""
        comparison = check_projection(expected_histories(self._source.published), self._summary.histories())
        return ProjectionResult(self._summary.NAME, comparison, self.downtimes)

    def status(self) -> ProjectionStatus:
        return ProjectionStatus(self._summary.NAME, self.state, self._summary.applied())
