"""Applies each event once: a marker in the transaction of the event's effects.

    inbox = Inbox()                                       # once, at start-up

    with psycopg.connect(dsn) as connection:              # the consumer's own transaction
        with inbox.once(connection, event_id, "billing") as first:
            if first:
                connection.execute("UPDATE accounts SET …")

For any consumer, of Kafka or of something else: only the event's id is needed. The inbox never commits.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from tailrace.errors import ConfigError
from tailrace.inbox.calls import perform
from tailrace.inbox.marker import checked_marker
from tailrace.inbox.mongo import MongoInbox
from tailrace.inbox.once import Once
from tailrace.inbox.postgres import PostgresInbox
from tailrace.outbox.writer.drivers.base import Database, driver_for
from tailrace.outbox.writer.requests import Handle

TABLE = "processed_events"
BATCH = 5_000


class Inbox:
    """Processed-event markers in one table or collection. Thread-safe; make one at start-up."""

    def __init__(self, table: str = TABLE) -> None:
        """`table` is `table` or `schema.table`; in MongoDB `database.collection`.

        A collection without a database belongs to the database that the client's URI names.
        """
        self._table = table
        self._targets: dict[str, PostgresInbox | MongoInbox] = {}

    def once(
        self,
        connection: Handle,
        event_id: str | UUID,
        consumer_group: str,
        *,
        entity_id: str | None = None,
        entity_version: int | None = None,
    ) -> Once:
        """Marks the event as processed by the group; `with … as first` says whether it was not processed before.

        With an asyncio connection, `async with`. The marker is committed or rolled back with the transaction that the
        connection is in; without one, NotInTransaction is raised. `entity_id` and `entity_version` are only stored.
        """
        marker = checked_marker(event_id, consumer_group, entity_id, entity_version)
        driver = driver_for(connection)
        return Once(self._target(driver.database), driver, connection, marker)

    def ddl(self, database: Database = "postgres") -> str:
        """Returns the SQL, or the commands for mongosh, that create table or collection. They may run again."""
        return self._target(database).ddl()

    def create(self, connection: Handle) -> Any:  # noqa: ANN401 - None, or an awaitable
        """Creates table or collection if it is missing. With an asyncio connection, `await` it.

        In Postgres it is part of the caller's transaction, if there is one; in MongoDB it never is.
        """
        driver = driver_for(connection)
        return perform(driver, self._target(driver.database).create(driver, connection))

    def prune(self, connection: Handle, *, older_than: timedelta, batch: int = BATCH) -> Any:  # noqa: ANN401
        """Deletes markers that were written longer ago; returns how many. With an asyncio connection, `await` it.

        An event that is delivered again after that is applied again. Each batch is one statement: with autocommit (in
        MongoDB without a transaction) each is committed by itself, otherwise all with the caller's transaction.
        """
        if not isinstance(older_than, timedelta) or older_than <= timedelta():
            raise ConfigError(
                f"older_than={older_than!r} is not possible",
                why="It is the age from which on markers are deleted, and not all markers may be deleted.",
                remedy="Write it like older_than=timedelta(days=30).",
            )
        if batch < 1:
            raise ConfigError(f"batch={batch} is not possible", why="It counts markers.", remedy="Give 1 or more.")
        driver = driver_for(connection)
        target = self._target(driver.database)
        return perform(driver, target.prune(driver, connection, older_than.total_seconds(), batch))

    def _target(self, database: Database) -> PostgresInbox | MongoInbox:
        found = self._targets.get(database)
        if found is None:
            found = PostgresInbox(self._table) if database == "postgres" else MongoInbox(self._table)
            self._targets[database] = found
        return found
