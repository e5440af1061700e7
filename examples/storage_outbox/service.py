"""The stores service: publishes with `publish_event_transactionally`, into a table with sequence numbers."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg

from tailrace.outbox.ddl import layout_ddl
from tailrace.outbox.storage import StorageOutbox
from tailrace.testkit.demo.orders import Orders
from tailrace.testkit.workload.orders import OrdersWriter
from tailrace.testkit.workload.writer import Mix, WorkloadEvent, WorkloadWriter

SCHEMAS = Path(__file__).parent / "schemas"
TOPICS = Path(__file__).parent / "topics"
TABLE = "public.storage_outbox"
outbox = StorageOutbox(TABLE, topics={"STORAGE_*": "storage.events"}, schemas=SCHEMAS)

_STORES = "CREATE TABLE stores (id text PRIMARY KEY, items integer NOT NULL, bytes bigint NOT NULL);"
_PIPELINE = """\
# The stores' pipeline. An event's metadata goes into the value of its record.
pipeline: {pipeline}

source:
  postgres: {url}
  table: public.storage_outbox

outbox: {{layout: storage}}
schemas: {{folder: {schemas}}}
topics: {{folder: {topics}}}

kafka:
  bootstrap: {bootstrap}
"""


def put(connection: psycopg.Connection, store: str, size: int, correlation_id: str) -> str:
    """Puts an item into a store: the business row and the event, in the transaction of the caller."""
    connection.execute(
        "INSERT INTO stores AS s VALUES (%s, 1, %s) "
        "ON CONFLICT (id) DO UPDATE SET items = s.items + 1, bytes = s.bytes + excluded.bytes",
        (store, size),
    )
    payload = {"store_id": store, "size_bytes": size}
    metadata = {"event_version": "1.0.0", "correlation_id": correlation_id}
    published: str = outbox.publish_event_transactionally(
        store, "store", "STORAGE_ITEM_STORED", payload, metadata, connection
    )
    return published


class StoresWriter(OrdersWriter):
    ENTITY = "store"

    def _write(self, event: WorkloadEvent) -> None:
        put(self._connected(), event.key, self._random.randint(1, 5_000), event.id)


class Stores(Orders):
    NAME = "stores"

    def create(self) -> None:
        super().create()
        with psycopg.connect(self.dsn) as connection:
            connection.execute(_STORES + layout_ddl("storage", TABLE))  # type: ignore[call-overload]

    def pipeline_text(self) -> str:
        return _PIPELINE.format(
            pipeline=self.pipeline,
            url=json.dumps(self.url),
            schemas=json.dumps(str(SCHEMAS)),
            topics=json.dumps(str(TOPICS)),
            bootstrap=self.bootstrap,
        )

    def writer(self, *, seed: int, keys: int, mix: Mix) -> WorkloadWriter:
        return StoresWriter(self.dsn, seed=seed, keys=keys, mix=mix)

    def in_outbox(self) -> set[str]:
        with psycopg.connect(self.dsn) as connection:
            return {row[0] for row in connection.execute("SELECT outbox_id FROM storage_outbox")}

    @property
    def outbox(self) -> str:
        return TABLE
