"""The orders service on Postgres: writes an order and its outbox row in one transaction, some inside savepoints."""

from __future__ import annotations

import json

import psycopg

from tailrace.testkit.workload.writer import Mix, WorkloadEvent, WorkloadWriter

SHOP_DDL = """
CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, amount numeric NOT NULL, revision int NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (
    id uuid PRIMARY KEY,
    aggregatetype text NOT NULL,
    aggregateid text NOT NULL,
    type text NOT NULL,
    payload jsonb,
    traceparent text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""

_INSERT = """
INSERT INTO {table} (id, aggregatetype, aggregateid, type, payload, traceparent) VALUES (%s, 'order', %s, %s, %s, %s)
"""


class OrdersWriter(WorkloadWriter):
    """Writes orders; the tables are those of `SHOP_DDL`."""

    ENTITY = "order"

    def __init__(
        self,
        dsn: str,
        *,
        table: str = "outbox",
        entities: bool = True,
        seed: int = 0,
        keys: int = 20,
        mix: Mix | None = None,
    ) -> None:
        """`table` is the outbox as it is written in SQL; without `entities`, only events are written."""
        super().__init__(seed=seed, keys=keys, mix=mix)
        self._dsn = dsn
        self._insert = _INSERT.format(table=table)
        self._entities = entities
        self._connection: psycopg.Connection | None = None

    def _begin(self) -> None:
        self._connected()

    def _write(self, event: WorkloadEvent) -> None:
        connection = self._connected()
        amount = self._random.randint(1, 99_999) / 100
        payload = {
            "order": event.key, "revision": event.seq, "amount": amount if event.valid else "a lot", "currency": "EUR",
        }  # fmt: skip
        traceparent = f"00-{self._random.getrandbits(128):032x}-{self._random.getrandbits(64):016x}-01"
        # Rows of a subtransaction have another transaction id than their parent.
        inside = self._random.random() < self._mix.savepoint
        if inside:
            connection.execute("SAVEPOINT part")
        if self._entities:
            connection.execute(
                "INSERT INTO orders VALUES (%s, 0, %s) ON CONFLICT (id) DO UPDATE SET revision = excluded.revision",
                (event.key, event.seq),
            )
        kind = "OrderPlaced" if event.seq == 1 else "OrderChanged"
        connection.execute(self._insert, (event.id, event.key, kind, json.dumps(payload), traceparent))
        if inside:
            connection.execute("RELEASE part")

    def _commit(self) -> None:
        self._connected().commit()

    def _roll_back(self) -> None:
        self._connected().rollback()

    def _is_unavailable(self, error: Exception) -> bool:
        return isinstance(error, psycopg.OperationalError)

    def _abandon(self) -> None:
        self._disconnect()

    def _connected(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = psycopg.connect(self._dsn, connect_timeout=5)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def ids_in_table(dsn: str, table: str = "outbox") -> set[str]:
    """Returns the ids in the outbox, which decide outcomes that the writer does not know."""
    with psycopg.connect(dsn) as connection:
        return {str(row[0]) for row in connection.execute(f"SELECT id FROM {table}")}  # noqa: S608 - not user input
