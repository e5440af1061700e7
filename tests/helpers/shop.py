"""`Shop`: the orders service on Postgres, with its own database, slot and topics."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from helpers.service import Connector, Service
from tailrace.positions.postgres import LsnPosition
from tailrace.testkit.oracle import WrittenEvent, backward_positions
from tailrace.testkit.stack import KafkaBroker, PostgresServer, wait_until
from tailrace.testkit.topic_reader import stored_positions
from tailrace.testkit.workload.orders import SHOP_DDL, OrdersWriter, ids_in_table

__all__ = ["SCHEMA", "Connector", "Shop", "close_shop", "open_shop"]

SCHEMA = {
    "type": "object",
    "required": ["order", "revision", "amount", "currency"],
    "properties": {
        "order": {"type": "string"},
        "revision": {"type": "integer", "minimum": 1},
        "amount": {"type": "number"},
        "currency": {"type": "string", "pattern": "^[A-Z]{3}$"},
    },
}


class Shop(Service):
    """A service that writes orders."""

    ENTITIES = "orders"

    def __init__(self, postgres: PostgresServer, kafka: KafkaBroker, folder: Path, name: str, dsn: str) -> None:
        super().__init__(kafka, folder, name)
        self.postgres = postgres
        self.dsn = dsn

    @property
    def slot(self) -> str:
        return f"tailrace_{self.name}"

    def make_writer(self, **options: Any) -> OrdersWriter:
        return OrdersWriter(self.dsn, **options)

    def in_outbox(self) -> set[str]:
        return ids_in_table(self.dsn)

    def execute(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Runs one statement as the superuser in the shop's database."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)  # type: ignore[call-overload]
            # Not by `description`, which is also None for rows without columns.
            found = cursor.pgresult is not None and cursor.pgresult.status == psycopg.pq.ExecStatus.TUPLES_OK
            return cursor.fetchall() if found else []

    def insert(self, payload: str, *, kind: str = "OrderPlaced", key: str = "k", seq: str = "") -> str:
        """Inserts one outbox row in its own transaction; returns its id."""
        event = str(uuid.uuid4())
        self.execute(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (%s, 'order', %s, %s, %s)",
            event, key, kind, payload,
        )  # fmt: skip
        return event

    def copy(self, events: Iterable[WrittenEvent]) -> None:
        """Inserts outbox rows with one COPY. All columns are given, so that the rows of a page share an LSN."""
        statement = "COPY outbox (id, aggregatetype, aggregateid, type, payload, created_at) FROM STDIN"
        written = datetime.now(UTC)
        with psycopg.connect(self.dsn) as connection, connection.cursor().copy(statement) as rows:
            for event in events:
                rows.write_row((event.id, "order", event.key, "OrderPlaced", f'{{"order": {event.seq}}}', written))

    def wrong_positions(self) -> list[str]:
        # The slot first: a confirmed position must have been stored before.
        confirmed = self.confirmed_lsn()
        positions = self.positions()
        wrong = backward_positions([position.progress for position in positions])
        if positions and confirmed is not None and confirmed > positions[-1].lsn:
            wrong.append(f"the slot is confirmed to {confirmed}, stored is {positions[-1].lsn}")
        return wrong

    def positions(self) -> list[LsnPosition]:
        return [each for each in stored_positions(self.kafka.bootstrap, self.name) if isinstance(each, LsnPosition)]

    def confirmed_lsn(self) -> int | None:
        rows = self.execute(
            "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s", self.slot
        )
        return int(rows[0][0]) if rows and rows[0][0] is not None else None


def open_shop(postgres: PostgresServer, kafka: KafkaBroker, folder: Path, *, encoding: str = "", **source: Any) -> Shop:
    """Creates a shop on the given servers, with an empty outbox and a pipeline file; nothing runs yet."""
    name = f"shop_{uuid.uuid4().hex[:8]}"
    shop = Shop(postgres, kafka, folder, name, postgres.create_database(name, encoding=encoding))
    shop.execute(SHOP_DDL)
    shop.register(dict.fromkeys(("OrderPlaced", "OrderChanged"), SCHEMA), "order")
    shop.configure(
        pipeline=name,
        source={"postgres": shop.dsn, "table": "public.outbox", **source},
        outbox={"columns": {"timestamp": "created_at"}},
        schemas={"folder": "schemas"},
        topics={"folder": "topics"},
        kafka={"bootstrap": kafka.bootstrap, "dead_letter_topic": shop.letters},
    )
    return shop


def close_shop(shop: Shop) -> None:
    """Ends its processes and drops its slot on the shared server, so that no WAL is kept for it."""
    shop.close()
    with shop.postgres.connect() as connection:

        def gone() -> bool:
            slots = connection.execute(
                "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s", (shop.name,)
            ).fetchall()
            for slot, pid in slots:
                if pid is not None:
                    connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
                    continue
                try:
                    connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
                except psycopg.errors.ObjectInUse:
                    pass  # the next call checks again
            return not slots

        wait_until(gone, what=f"the end of the slots of {shop.name}")
        connection.execute(f'DROP DATABASE "{shop.name}" WITH (FORCE)')  # type: ignore[call-overload]


@pytest.fixture
def shop(postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Shop]:
    """A shop on the shared servers, Postgres 16."""
    shop = open_shop(postgres, kafka, tmp_path)
    yield shop
    close_shop(shop)


@pytest.fixture
def shop18(postgres18: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Shop]:
    """The same on Postgres 18."""
    shop = open_shop(postgres18, kafka, tmp_path)
    yield shop
    close_shop(shop)


@pytest.fixture
def make_topic(kafka: KafkaBroker) -> Callable[..., None]:
    """Creates a topic by hand, with any configuration."""

    def make(topic: str, partitions: int = 1, **config: str) -> None:
        kafka.create_topic(topic, partitions, {name.replace("_", "."): value for name, value in config.items()})

    return make
