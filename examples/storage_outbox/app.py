"""One row for each store: its items, their size, and the sequence number of its last event."""

from __future__ import annotations

import os

from pydantic import BaseModel

from tailrace.projections import Event, PostgresEffects, PostgresStore, Projection, projection_app


class Metadata(BaseModel):
    outbox_id: str
    sequence_number: int


class ItemStored(BaseModel):
    store_id: str
    size_bytes: int
    metadata: Metadata


TABLES = """CREATE TABLE IF NOT EXISTS stores (
    id text PRIMARY KEY, items integer NOT NULL, bytes bigint NOT NULL, last_sequence bigint NOT NULL,
    out_of_order integer NOT NULL
)"""
DATABASE = os.environ.get("SHOP_DB", "postgresql://localhost/shop")
app = projection_app("store-contents", broker=os.environ.get("KAFKA", "kafka://localhost:9092"))
stores = Projection(app, "storage.events", store=PostgresStore(DATABASE, schema="store_contents", tables=TABLES))

# Counts events that do not carry the number after the last one: there must be none.
ADD = """INSERT INTO stores AS s VALUES (%(store)s, 1, %(bytes)s, %(number)s, (%(number)s <> 1)::integer)
ON CONFLICT (id) DO UPDATE SET items = s.items + 1, bytes = s.bytes + excluded.bytes,
    last_sequence = excluded.last_sequence,
    out_of_order = s.out_of_order + (excluded.last_sequence <> s.last_sequence + 1)::integer"""


@stores.on("STORAGE_ITEM_STORED", model=ItemStored)
async def stored(event: Event, effects: PostgresEffects) -> None:
    item: ItemStored = event.data
    number = item.metadata.sequence_number
    await effects.execute(ADD, {"store": item.store_id, "bytes": item.size_bytes, "number": number})
