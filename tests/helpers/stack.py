"""Fixtures for real servers, started when first used and shared by the whole run.

Tests must not stop, kill or pause shared servers: those that do start their own with `choice=ServerChoice.LOCAL`.
`database` is a new database of the shared Postgres for each test.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tailrace.testkit.stack import (
    KafkaBroker,
    MongoReplicaSet,
    MongoServer,
    PostgresServer,
    RegistryServer,
    ServerChoice,
    wait_until,
)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Postgres 16, or the one in TAILRACE_STACK_POSTGRES."""
    with PostgresServer("16") as server:
        yield server


@pytest.fixture(scope="session")
def postgres18() -> Iterator[PostgresServer]:
    """Postgres 18, always our own: the environment names one server of one version."""
    with PostgresServer("18", choice=ServerChoice.LOCAL) as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """Kafka, or the one in TAILRACE_STACK_KAFKA."""
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def mongo() -> Iterator[MongoServer]:
    """MongoDB, or the one in TAILRACE_STACK_MONGO. Use unique names of databases."""
    with MongoServer() as server:
        yield server


@pytest.fixture(scope="module")
def mongo_set() -> Iterator[MongoReplicaSet]:
    """Three members for the tests of one file, which may kill and pause them but must leave them running."""
    with MongoReplicaSet() as members:
        yield members


@pytest.fixture(scope="session")
def registry() -> Iterator[RegistryServer]:
    """A schema registry, or the one in TAILRACE_STACK_REGISTRY. Use unique names of subjects."""
    with RegistryServer() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The connection string of a new database, which is dropped afterwards with its replication slots."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name)
    with postgres.connect() as connection:
        wait_until(lambda: _slots_dropped(connection, name), what=f"the end of the slots of {name}")
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _slots_dropped(connection: psycopg.Connection[tuple[object, ...]], name: str) -> bool:
    """Drops the slots of a database: an active slot after its reader was ended. Returns whether none is left."""
    slots = connection.execute(
        "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s", [name]
    ).fetchall()
    for slot, reader in slots:
        if reader is not None:
            connection.execute("SELECT pg_terminate_backend(%s)", [reader])
            continue
        try:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
        except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
            pass  # a reader has started, or the slot was temporary; the next call checks again
    return not slots


def is_dead(pid: int) -> bool:
    """Returns whether a process is dead, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
