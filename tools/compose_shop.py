"""The demo's scenario and verdict on the shop of compose/: a worker with both pipelines, and the example projection.

The servers run already. `Program` is what can be started and killed: a container (`tools.compose_test`), or a process
(`tests/integration/test_deploy_shop.py`, without Docker).
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from tailrace.testkit.demo.display import Display, ProjectionStatus, display_for
from tailrace.testkit.demo.environment import DemoEnvironment
from tailrace.testkit.demo.orders import Orders
from tailrace.testkit.demo.process import Connector
from tailrace.testkit.demo.projection import OrderSummaryProjection, ProjectionRun
from tailrace.testkit.demo.report import DemoReport, ProjectionResult
from tailrace.testkit.demo.scenario import Scenario
from tailrace.testkit.demo.service import Service, ServiceRun
from tailrace.testkit.demo.users import Users
from tailrace.testkit.oracle import Histories, check_projection
from tailrace.testkit.stack import KafkaBroker, MongoServer, PostgresServer, StackError

REQUEST_TIMEOUT = 5.0
# What the example must show for each order, by its outbox. Invalid events (their amount is a text) were dead-lettered:
# a change of an order whose first event is invalid changes no row.
EXPECTED = """
    WITH valid AS (SELECT * FROM outbox WHERE jsonb_typeof(payload->'amount') = 'number'),
         placed AS (SELECT aggregateid FROM valid WHERE type = 'OrderPlaced')
    SELECT DISTINCT ON (aggregateid) aggregateid, (payload->>'amount')::numeric, payload->>'currency',
           count(*) OVER (PARTITION BY aggregateid) - 1
    FROM valid JOIN placed USING (aggregateid) ORDER BY aggregateid, (payload->>'revision')::integer DESC
"""
PROJECTED = "SELECT id, amount, currency, changes FROM order_summary.orders"


class Program(ABC):
    """A program of the shop."""

    name: str
    is_running = False
    last_pid = 0

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def kill(self) -> None:
        """Ends it as a power failure would."""

    @abstractmethod
    def stop(self) -> None: ...

    @property
    @abstractmethod
    def pid(self) -> int: ...

    @abstractmethod
    def log(self) -> str:
        """Returns the end of its log."""


class ProgramProcess(Connector):
    """A program as the scenario controls it. Several of them may share one program: the first one acts."""

    def __init__(self, program: Program, url: str, path: str, token: str = "") -> None:
        """It is ready when GET `path` shows it; `token` is sent with the request."""
        self.name = program.name
        self.file = Path()
        self._program = program
        self._address = url + path
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    @property
    def pid(self) -> int:
        """Its process, or the former one if it was ended through another of us."""
        if self._program.is_running:
            self._program.last_pid = self._program.pid
        return self._program.last_pid

    def start(self) -> None:
        if not self._program.is_running:
            self._program.start()
            self._program.is_running = True

    @property
    def ready(self) -> bool:
        try:
            answer = get(self._address, self._headers)
        except (OSError, ValueError):
            return False
        return "connector" not in answer or bool(answer["connector"]["state"] == "RUNNING")

    def kill(self) -> None:
        if self._program.is_running:
            self._program.kill()
            self._program.is_running = False

    def stop(self) -> None:
        if self._program.is_running:
            self._program.stop()
            self._program.is_running = False

    def failure(self, what: str) -> StackError:
        return StackError(what, why=self._program.log())

    def close(self) -> None:
        self.stop()


class ShopOrders(Orders):
    """The orders of the shop, whose database and pipeline exist already."""

    def __init__(self, kafka: KafkaBroker, postgres: PostgresServer, process: ProgramProcess) -> None:
        super().__init__(kafka, "", postgres, ours=True)
        self.dsn = postgres.dsn(self.database)
        self._connector = process


class ShopUsers(Users):
    """The users of the shop, whose collections and pipeline exist already."""

    def __init__(self, kafka: KafkaBroker, mongo: MongoServer, process: ProgramProcess) -> None:
        super().__init__(kafka, "", mongo, ours=True)
        self._connector = process


class ShopProjection(OrderSummaryProjection):
    """The example `order_summary`."""

    def __init__(self, orders: ShopOrders, process: ProgramProcess) -> None:
        super().__init__(orders, "")
        self._process = process

    def run(self, source: ServiceRun) -> ProjectionRun:
        return ShopProjectionRun(self, source)

    def applied(self) -> int:
        return sum(1 + int(history[0].rpartition(" ")[2]) for history in self.histories().values())

    def histories(self) -> Histories:
        """Returns one text for each order: its amount, currency and number of changes."""
        return self._read(PROJECTED)

    def expected(self) -> Histories:
        return self._read(EXPECTED)

    def _read(self, query: Any) -> Histories:
        with psycopg.connect(self.orders.dsn) as connection:
            try:
                rows = connection.execute(query).fetchall()
            except psycopg.errors.UndefinedTable:
                return {}
        return {key: [f"{key}: {amount:.2f} {currency} {changes}"] for key, amount, currency, changes in rows}


class ShopProjectionRun(ProjectionRun):
    """One run of the example, which shows amounts instead of event ids."""

    def __init__(self, summary: ShopProjection, source: ServiceRun) -> None:
        super().__init__(summary, source)
        self._shop = summary

    def has_caught_up(self) -> bool:
        return self.is_running() and self._shop.histories() == self._shop.expected()

    def result(self) -> ProjectionResult:
        comparison = check_projection(self._shop.expected(), self._shop.histories())
        return ProjectionResult(self._shop.NAME, comparison, self.downtimes)

    def status(self) -> ProjectionStatus:
        return ProjectionStatus(self._shop.NAME, self.state, self._shop.applied())


class ShopEnvironment(DemoEnvironment):
    """The shop as the scenario sees it. It starts and removes no server."""

    def __init__(
        self,
        kafka: KafkaBroker,
        postgres: PostgresServer,
        mongo: MongoServer,
        *,
        worker: Program,
        worker_url: str,
        worker_token: str,
        projection: Program,
        projection_url: str,
    ) -> None:
        def pipeline(name: str) -> ProgramProcess:
            return ProgramProcess(worker, worker_url, f"/connectors/{name}/status", worker_token)

        orders = ShopOrders(kafka, postgres, pipeline("orders"))
        services: list[Service] = [orders, ShopUsers(kafka, mongo, pipeline("users"))]
        self.services = services
        self.projections = [ShopProjection(orders, ProgramProcess(projection, projection_url, "/livez"))]


def run_scenario(environment: ShopEnvironment, *, seconds: float, seed: int) -> DemoReport:
    """Runs the demo's scenario: writes, kills the worker twice and the projection once, and compares."""
    with closing(display_for(sys.stdout)) as display:
        return run_scenario_on(environment, display, seconds=seconds, seed=seed)


def run_scenario_on(environment: ShopEnvironment, display: Display, *, seconds: float, seed: int) -> DemoReport:
    with closing(Scenario(environment, display, writing_seconds=seconds, seed=seed)) as scenario:
        report = scenario.run()
    display.report(report)
    return report


def get(url: str, headers: dict[str, str] | None = None) -> Any:
    """Returns the JSON at a local address; {} for another text."""
    request = urllib.request.Request(url, headers=headers or {})  # noqa: S310 - addresses of this machine
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=REQUEST_TIMEOUT) as answer:
            body = answer.read()
    except urllib.error.HTTPError as error:
        error.close()
        raise
    try:
        return json.loads(body)
    except ValueError:
        return {}
