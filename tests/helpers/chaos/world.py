"""What a chaos run disturbs: three servers behind proxies, two pipelines, two projection apps, and their writers."""

from __future__ import annotations

import functools
import json
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymongo
from psycopg.conninfo import make_conninfo

from helpers.broken_kafka import HASTY
from helpers.projection import Worker
from helpers.service import Connector, Service
from helpers.shop import Shop, open_shop
from helpers.users import Users, open_users
from tailrace.testkit.oracle import WriteOutcome, WrittenEvent
from tailrace.testkit.stack import KafkaBroker, MongoServer, PostgresServer, ServerChoice, wait_until
from tailrace.testkit.stack.server import StackServer
from tailrace.testkit.tcp_proxy import TcpProxy
from tailrace.testkit.workload.writer import Mix, WorkloadWriter

START_SECONDS = 240
"""How long a process may take until it runs again: other faults are active meanwhile."""
RATE = 12.0
"""Transactions a second of each writer."""
WRITERS = 2
LINK_TIMEOUT = 4
KAFKA_SETTINGS = {"transaction.timeout.ms": 10_000, "message.timeout.ms": 8000}
APP = """
from tailrace.backoff import Backoff
from tailrace.projections import MongoStore, PostgresStore, Projection, projection_app

app = projection_app(
    {name!r}, broker="kafka://{bootstrap}", broker_session_timeout=6, broker_heartbeat_interval=0.5
)
TABLES = "CREATE TABLE IF NOT EXISTS history (key text PRIMARY KEY, ids text[] NOT NULL)"

async def in_postgres(event, effects):
    await effects.execute(
        "INSERT INTO history VALUES (%s, ARRAY[%s]) ON CONFLICT (key) DO UPDATE SET ids = history.ids || EXCLUDED.ids",
        (event.key.decode(), event.id),
    )

async def in_mongo(event, effects):
    await effects.collection("history").update_one(
        {{"_id": event.key.decode()}}, {{"$push": {{"ids": event.id}}}}, upsert=True
    )

for topic in {topics!r}:
    part = {name!r} + "_" + topic.rpartition(".")[2]
    if {postgres!r}:
        store, append = PostgresStore({postgres!r}, schema=part, tables=TABLES), in_postgres
    else:
        store, append = MongoStore({mongo!r}, part, collections={{"history": []}}), in_mongo
    declared = Projection(app, topic, store=store, name=part, max_attempts=10000, backoff=Backoff(base=0.05, maximum=1))
    declared.on()(append)
"""


class Gate:
    """Pauses a writer between two transactions."""

    def __init__(self, writer: WorkloadWriter) -> None:
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        transaction = writer.transaction

        @functools.wraps(transaction)
        def gated(*arguments: Any, **options: Any) -> list[WrittenEvent]:
            # Without the event, a writer that is late would take the lock again before anybody else.
            self._open.wait()
            with self._lock:
                return transaction(*arguments, **options)

        writer.transaction = gated  # type: ignore[method-assign]

    @contextmanager
    def closed(self) -> Iterator[None]:
        self._open.clear()
        try:
            with self._lock:
                yield
        finally:
            self._open.set()


class Target:
    """A process that is killed and started again: a connector or a projection worker. One fault at a time."""

    def __init__(self, name: str, ready: str) -> None:
        self.name = name
        self.ready = ready
        self.process: Connector | None = None
        self.ended_by_itself: list[str] = []
        self._count = 0

    def launch(self) -> Connector:
        """Starts another process, without waiting."""
        self._count += 1
        return self._launched(self._count)

    def _launched(self, number: int) -> Connector:
        raise NotImplementedError

    @property
    def current(self) -> Connector:
        if self.process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self.process

    def start(self) -> None:
        self.process = self.launch()

    def require_running(self) -> None:
        """Starts a process that has ended by itself again, as a supervisor would, and records why it ended."""
        if not self.current.running:
            code = self.current.process.returncode
            self.ended_by_itself.append(f"exit code {code}: {self.current.log[-1500:]}")
            self.start()

    def await_ready(self) -> None:
        """Waits until it has started, also if it must be started again."""

        def ready() -> bool:
            self.require_running()
            return self.ready in self.current.log

        wait_until(ready, START_SECONDS, what=f"the start of {self.name}")

    def close(self) -> None:
        if self.process is not None and self.process.running:
            self.process.process.send_signal(signal.SIGCONT)
            self.process.kill()


class Pipeline(Target):
    """A service, its writers, and the connector that publishes its outbox."""

    def __init__(self, name: str, service: Service, seed: int) -> None:
        super().__init__(name, '"running"')
        self.service = service
        self.gates: list[Gate] = []
        self.single: list[WrittenEvent] = []
        """Events that faults have written, besides those of the writers."""
        self.redriven: set[str] = set()
        self.replayed = 0
        """How many records replays said that they published."""
        self.growths = 0
        """How often the topic got another partition."""
        self.seen_in_outbox: set[str] = set()
        for number in range(WRITERS):
            writer = service.writer(seed=seed * 10 + number, mix=Mix(rollback=0.15, invalid=0.03, savepoint=0.2))
            self.gates.append(Gate(writer))

    def _launched(self, number: int) -> Connector:
        return self.service.start(wait=False)

    @property
    def written(self) -> list[WrittenEvent]:
        return [*(event for writer in self.service.writers for event in list(writer.written)), *self.single]

    @property
    def failed_writers(self) -> list[WorkloadWriter]:
        return [writer for writer in self.service.writers if writer.error is not None]

    def known_committed(self) -> list[WrittenEvent]:
        """Returns the events of the writers that are certainly committed, those of each writer in order."""
        found = [event for writer in self.service.writers for event in list(writer.written)]
        return [event for event in found if event.outcome is WriteOutcome.COMMITTED]

    def remember_outbox(self) -> None:
        """Remembers what is in the outbox now: it decides outcomes that the writers do not know."""
        self.seen_in_outbox |= self.service.in_outbox()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Lets no writer run a transaction meanwhile."""
        with ExitStack() as held:
            for gate in self.gates:
                held.enter_context(gate.closed())
            yield


class ProjectionApp(Target):
    """The worker of one app, which projects both topics into one store."""

    def __init__(self, name: str, world: World, *, postgres: str = "", mongo: str = "") -> None:
        super().__init__(name, '"reading"')
        self.world = world
        self.app = f"chaos_{name.split(maxsplit=1)[0]}"
        self.in_postgres = bool(postgres)
        text = APP.format(
            name=self.app, bootstrap=world.kafka.bootstrap, topics=[each.service.topic for each in world.pipelines],
            postgres=postgres, mongo=mongo,
        )  # fmt: skip
        (world.folder / f"{self.app}.py").write_text(text)

    @property
    def dead_letters(self) -> str:
        return f"{self.app}.dead-letters"

    def _launched(self, number: int) -> Connector:
        return Worker(self.world.folder, self.world.folder / f"{self.app}-{number}.log", f"{self.app}:app")

    def histories(self, topic: str) -> Mapping[str, list[str]]:
        """Returns the ids applied to each key."""
        part = f"{self.app}_{topic.rpartition('.')[2]}"
        if self.in_postgres:
            with psycopg.connect(self.world.postgres.dsn()) as connection:
                try:
                    return dict(connection.execute(f"SELECT key, ids FROM {part}.history").fetchall())
                except psycopg.errors.UndefinedTable:
                    return {}
        with pymongo.MongoClient[dict[str, Any]](self.world.mongo.direct_uri) as client:
            return {str(row["_id"]): row["ids"] for row in client[part].history.find()}


class World:
    """Everything, started on entering."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self._closing = ExitStack()

    def __enter__(self) -> World:
        try:
            self._open()
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _open(self) -> None:
        enter = self._closing.enter_context
        self.proxies = {name: enter(TcpProxy()) for name in ("postgres", "mongo", "kafka")}
        self.postgres = enter(PostgresServer("16", choice=ServerChoice.LOCAL))
        self.mongo = enter(MongoServer(choice=ServerChoice.LOCAL))
        self.kafka = enter(
            KafkaBroker(
                properties=HASTY, advertised_port=self.proxies["kafka"].port, choice=ServerChoice.LOCAL
            )
        )  # fmt: skip
        self.servers: dict[str, StackServer] = {"postgres": self.postgres, "mongo": self.mongo, "kafka": self.kafka}
        for name, proxy in self.proxies.items():
            server: Any = self.servers[name]
            proxy.point_at(server.host if name != "kafka" else proxy.host, server.port)
        self.mongo.advertise(self.proxies["mongo"].port)
        settings: dict[str, Any] = {"limits": {"batch_records": 200}, "kafka": {"settings": KAFKA_SETTINGS}}
        self.orders = Pipeline("orders", self._shop(settings), self.seed)
        self.users = Pipeline("users", self._users(settings), self.seed)
        self.pipelines = [self.orders, self.users]
        for pipeline in self.pipelines:
            self._closing.callback(pipeline.service.close)
        through = {"host": self.proxies["postgres"].host, "port": self.proxies["postgres"].port}
        self.projections = [
            ProjectionApp("postgres projection", self, postgres=make_conninfo(self.postgres.dsn(), **through)),
            ProjectionApp("mongo projection", self, mongo=self.mongo.uri),
        ]
        self.targets: dict[str, Target] = {each.name: each for each in (*self.pipelines, *self.projections)}
        for target in self.targets.values():
            self._closing.callback(target.close)

    def _shop(self, settings: Mapping[str, Any]) -> Shop:
        folder = self.folder / "orders"
        folder.mkdir()
        shop = open_shop(self.postgres, self.kafka, folder, link_timeout=LINK_TIMEOUT, replay_window="256 MiB")
        proxy = self.proxies["postgres"]
        shop.configure(source={"postgres": make_conninfo(shop.dsn, host=proxy.host, port=proxy.port)}, **settings)
        return shop

    def _users(self, settings: Mapping[str, Any]) -> Users:
        folder = self.folder / "users"
        folder.mkdir()
        users = open_users(self.mongo, self.kafka, folder, link_timeout=LINK_TIMEOUT)
        users.configure(**settings)
        return users

    def pipeline(self, name: str) -> Pipeline:
        return next(each for each in self.pipelines if each.name == name)

    def start(self) -> None:
        for pipeline in self.pipelines:
            pipeline.start()
        for pipeline in self.pipelines:
            pipeline.await_ready()
        for pipeline in self.pipelines:
            self.kafka_topic(pipeline.service.topic)
        for projection in self.projections:
            projection.start()
            projection.await_ready()
        for pipeline in self.pipelines:
            for writer in pipeline.service.writers:
                writer.start(rate=RATE)

    def kafka_topic(self, topic: str) -> None:
        admin = self.kafka.admin()
        wait_until(lambda: topic in admin.list_topics(timeout=10).topics, 60, what=f"the topic {topic}")

    def restore(self) -> None:
        """Removes what a fault may have left behind when it failed."""
        for proxy in self.proxies.values():
            proxy.restore()
        for server in self.servers.values():
            if server.running:
                server.resume()
            else:
                server.start()

    def logs(self) -> str:
        return "\n".join(
            f"--- {target.name}\n{target.current.log[-4000:]}" for target in self.targets.values() if target.process
        )


def json_lines(text: str) -> list[dict[str, Any]]:
    """Returns the JSON objects that a command has printed."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
