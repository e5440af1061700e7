"""`Stack`: Postgres, Kafka and perhaps MongoDB, started at the same time; `up` and `down` keep them in the background.

One file in the user's state folder lists the servers that `up` leaves running. The order of steps makes a crash
harmless: servers are started as our children, then listed, then detached. If we are killed before the last step, they
die with us and the file lists servers that are gone, which the next `up` or `down` removes. A lock keeps two commands
from running at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import psycopg
from confluent_kafka import KafkaException

from tailrace.testkit.stack import kafka_local, mongo, postgres
from tailrace.testkit.stack.kafka import KafkaBroker, quiet_admin
from tailrace.testkit.stack.mongo import MongoServer
from tailrace.testkit.stack.paths import Progress, private_file, quiet, state_dir
from tailrace.testkit.stack.postgres import PostgresServer
from tailrace.testkit.stack.process import REAPER, LocalProcess
from tailrace.testkit.stack.server import ServerChoice, ServerGroup, StackServer
from tailrace.testkit.stack.waiting import StackError, wait_until

STOP_TIMEOUT = 40.0  # a little more than the reaper allows its server
REQUEST_TIMEOUT = 3


class Stack(ServerGroup):
    """A Postgres, a Kafka and perhaps a MongoDB for one run."""

    def __init__(
        self,
        version: str = "16",
        *,
        settings: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        advertised_port: int | None = None,
        mongo: bool = False,
        choice: ServerChoice = ServerChoice.AUTO,
        progress: Progress = quiet,
    ) -> None:
        self.postgres = PostgresServer(version, settings=settings, choice=choice, progress=progress)
        self.kafka = KafkaBroker(
            properties=properties, advertised_port=advertised_port, choice=choice, progress=progress
        )
        self.mongo = MongoServer(choice=choice, progress=progress) if mongo else None

    @property
    def servers(self) -> Sequence[StackServer]:
        return [self.postgres, self.kafka, *([self.mongo] if self.mongo else [])]


@dataclass(frozen=True)
class BackgroundServer:
    """A server that runs in the background."""

    name: str
    version: str
    address: str
    variable: str
    reaper: int
    run_dir: str

    @property
    def reaper_alive(self) -> bool:
        """Whether its reaper runs; the command line distinguishes it from another process with the same pid."""
        try:
            words = Path(f"/proc/{self.reaper}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return REAPER.name in {Path(os.fsdecode(word)).name for word in words} and self.run_dir.encode() in words

    @property
    def answers(self) -> bool:
        """Whether the server answers a request in its protocol."""
        if not self.reaper_alive:
            return False
        if self.variable == postgres.VARIABLE:
            try:
                with psycopg.connect(self.address, connect_timeout=REQUEST_TIMEOUT) as connection:
                    connection.execute("SELECT 1")
            except psycopg.OperationalError:
                return False
            return True
        if self.variable == mongo.VARIABLE:
            return mongo.answers(self.address, REQUEST_TIMEOUT)
        admin = quiet_admin(self.address)
        try:
            return bool(admin.list_topics(timeout=REQUEST_TIMEOUT).brokers)
        except KafkaException:
            return False


def listed() -> list[BackgroundServer]:
    """Returns the servers that `up` listed, whether they still run or not."""
    try:
        return [BackgroundServer(**entry) for entry in json.loads(_state_file().read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as exc:
        raise StackError(
            f"the state file {_state_file()} cannot be read",
            why=str(exc),
            remedy="remove the file, and end the processes `reaper.py` of leftover servers",
        ) from exc


def up(version: str, progress: Progress = quiet, *, with_mongo: bool = False) -> tuple[list[BackgroundServer], bool]:
    """Starts the servers and leaves them running; returns them, and whether this call started them."""
    with _locked():
        known = listed()
        if known and all(entry.answers for entry in known):
            running = known[0].version
            if running != version:
                raise StackError(
                    f"a stack with Postgres {running} is up already",
                    remedy=f"`tailrace stack down` first, or use --postgres {running}",
                )
            if with_mongo and mongo.VARIABLE not in {entry.variable for entry in known}:
                raise StackError("a stack without MongoDB is up already", remedy="`tailrace stack down` first")
            return known, False
        if known:
            progress("removing a stack that no longer answers")
            _down(known)
        stack = Stack(version, mongo=with_mongo, choice=ServerChoice.LOCAL, progress=progress)
        stack.start()
        try:
            started = [
                _entry("Postgres", version, stack.postgres.dsn(), postgres.VARIABLE, stack.postgres.process),
                _entry("Kafka", kafka_local.KAFKA, stack.kafka.bootstrap, kafka_local.VARIABLE, stack.kafka.process),
            ]
            if stack.mongo is not None:
                server = stack.mongo
                started.append(_entry("MongoDB", server.version, server.uri, mongo.VARIABLE, server.process))
            _write(started)
            for one in stack.servers:
                one.detach()
        except BaseException:
            stack.close()
            raise
        return started, True


def down() -> list[BackgroundServer]:
    """Ends what `up` started, removes all it wrote, and returns the ended servers."""
    with _locked():
        known = listed()
        _down(known)
        return known


def _down(known: list[BackgroundServer]) -> None:
    for entry in known:
        if entry.reaper_alive:
            os.kill(entry.reaper, signal.SIGTERM)
    for entry in known:
        try:
            wait_until(partial(_gone, entry), STOP_TIMEOUT, what=f"the end of {entry.name}")
        except StackError:
            # The server dies with its reaper.
            os.kill(entry.reaper, signal.SIGKILL)
        shutil.rmtree(entry.run_dir, ignore_errors=True)
    _state_file().unlink(missing_ok=True)


def _gone(entry: BackgroundServer) -> bool:
    return not entry.reaper_alive


def _entry(name: str, version: str, address: str, variable: str, process: LocalProcess) -> BackgroundServer:
    return BackgroundServer(name, version, address, variable, process.reaper_pid, str(process.run_dir))


def _write(started: list[BackgroundServer]) -> None:
    """Replaces the file atomically; only we can read it, since the address of Postgres has its password."""
    growing = private_file(
        _state_file().with_suffix(".new"), json.dumps([asdict(entry) for entry in started], indent=2), None
    )
    growing.replace(_state_file())


def _state_file() -> Path:
    return state_dir() / "stack.json"


@contextmanager
def _locked() -> Iterator[None]:
    descriptor = os.open(state_dir() / "stack.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
