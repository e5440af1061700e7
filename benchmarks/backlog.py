"""Backlogs to drain: outbox rows with 200 B payloads, committed in a given shape, waiting in the WAL."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

EVENTS_DDL = """
CREATE TABLE outbox (
    id uuid PRIMARY KEY,
    aggregatetype text NOT NULL,
    aggregateid text NOT NULL,
    type text NOT NULL,
    payload jsonb
);
CREATE PROCEDURE backlog(transactions int, events int) LANGUAGE plpgsql AS $$
BEGIN
    FOR transaction IN 1 .. transactions LOOP
        INSERT INTO outbox
        SELECT gen_random_uuid(), 'order', 'order-' || (random() * 5000)::int, 'OrderPlaced', jsonb_build_object(
            'order', 'order-' || event, 'customer', 'customer-' || transaction, 'amount', event * 1.25,
            'currency', 'EUR', 'status', 'placed', 'revision', event, 'express', event % 2 = 0,
            'note', repeat('x', 60))
        FROM generate_series(1, events) AS event;
        COMMIT;
    END LOOP;
END $$;
"""
"""Eight flat fields; with their names and the note a payload has about 200 bytes."""

SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "additionalProperties": False,
    "required": ["order", "customer", "amount", "currency", "status", "revision"],
    "properties": {
        "order": {"type": "string", "minLength": 1},
        "customer": {"type": "string", "minLength": 1},
        "amount": {"type": "number", "minimum": 0},
        "currency": {"type": "string", "pattern": "^[A-Z]{3}$"},
        "status": {"enum": ["placed", "paid", "shipped"]},
        "revision": {"type": "integer", "minimum": 1},
        "express": {"type": "boolean"},
        "note": {"type": "string", "maxLength": 200},
    },
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A backlog of `transactions` with `events` rows each."""

    name: str
    transactions: int
    events: int

    @property
    def total(self) -> int:
        return self.transactions * self.events


def write_backlog(dsn: str, shape: Shape) -> str:
    """Commits the backlog; returns the LSN at the end of its last commit.

    That end, and not the end of the log: whatever the server writes behind it on its own is no event, and a reader
    that confirms only what it has stored durably would be timed waiting for it.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute("CALL backlog(%s, %s)", (shape.transactions, shape.events))
        row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        # Flushes all of it, and moves the log on, so that pg_recvlogical sees the end pass by.
        connection.execute("CHECKPOINT")
        return str(row[0])


def payload_bytes(dsn: str) -> int:
    """The average size of a payload, as published."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT avg(length(payload::text))::int FROM outbox").fetchone()
        assert row is not None
        return int(row[0])
