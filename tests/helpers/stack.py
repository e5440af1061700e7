"""Fixtures for real servers: one Postgres of each version, one Kafka, one MongoDB and one schema registry for the whole
run, started when first asked for.

Tests that share them must not stop, kill or pause them: those that do start a server of their own, with
`source=Source.LOCAL`. `database` is a fresh database of the shared Postgres for each test.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

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
    """Postgres 16, or whichever TAILRACE_STACK_POSTGRES names."""
    with PostgresServer("16") as server:
        yield server


@pytest.fixture(scope="session")
def postgres18() -> Iterator[PostgresServer]:
    """Postgres 18, always our own: the address in the environment names one server of one version."""
    with PostgresServer("18", choice=ServerChoice.LOCAL) as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """Kafka, or whichever broker TAILRACE_STACK_KAFKA names."""
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def mongo() -> Iterator[MongoServer]:
    """MongoDB, or whichever TAILRACE_STACK_MONGO names. Databases are shared: make names of your own."""
    with MongoServer() as server:
        yield server


@pytest.fixture(scope="module")
def mongo_set() -> Iterator[MongoReplicaSet]:
    """Three members for the tests of one file, which may kill and pause them but must leave them running."""
    with MongoReplicaSet() as members:
        yield members


@pytest.fixture(scope="session")
def registry() -> Iterator[RegistryServer]:
    """A schema registry, or whichever TAILRACE_STACK_REGISTRY names. Subjects are shared: make names of your own."""
    with RegistryServer() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The connection string of a new database; afterwards it and its replication slots are dropped."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name)
    with postgres.connect() as connection:
        wait_until(lambda: _slots_dropped(connection, name), what=f"the end of the slots of {name}")
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _slots_dropped(connection: psycopg.Connection[tuple[object, ...]], name: str) -> bool:
    """A database with slots cannot be dropped, nor can a slot that is read: end the reader, try again."""
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
            pass  # a reader was quicker, or it was a temporary slot; the next look tells
    return not slots
