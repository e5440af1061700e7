"""Markers in a table of Postgres.

The marker is inserted inside a savepoint, in the caller's transaction. If the body raises, the savepoint is rolled
back: neither marker nor effects are left, even if the caller catches the error and commits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from hashlib import blake2b

from tailrace.errors import InboxUnfit, NotInTransaction, TransactionEnded
from tailrace.inbox.calls import DriverCall, perform
from tailrace.inbox.libraries import Library, library_of, own_handle
from tailrace.inbox.marker import ProcessedEvent
from tailrace.inbox.refusals import not_in_transaction, transaction_ended
from tailrace.outbox.writer.drivers.base import Driver
from tailrace.outbox.writer.evidence import UNDEFINED, sqlstate
from tailrace.outbox.writer.requests import PARAMETER, Handle, InsertRows, Query, Steps
from tailrace.sql_names import NAME_BYTES, quote, quote_table, split_table

NO_UNIQUE_INDEX = "42P10"
_NOT_IN_TRANSACTION = frozenset({"25P01", "25P02"})
"""SQLSTATE: no transaction, and a transaction that is aborted."""
_DDL = """\
-- One row for each event that a consumer group has processed, written in the transaction of its effects.
CREATE TABLE IF NOT EXISTS {table} (
    consumer_group text COLLATE "C" NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    entity_id text,
    entity_version bigint,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, event_id)
);
CREATE INDEX IF NOT EXISTS {index} ON {table} (processed_at);
"""


class PostgresInbox:
    """The statements of one table, `table` or `schema.table`."""

    def __init__(self, table: str) -> None:
        self._name = table
        self._table = quote_table(table)
        self._insert = (
            f"INSERT INTO {self._table} (consumer_group, event_id, entity_id, entity_version) "  # noqa: S608 - quoted
            f"VALUES ({PARAMETER}, {PARAMETER}, {PARAMETER}, {PARAMETER}) "
            "ON CONFLICT (consumer_group, event_id) DO NOTHING"
        )

    @contextmanager
    def once(self, driver: Driver, connection: Handle, marker: ProcessedEvent) -> Iterator[bool]:
        """Yields whether the event is new, inside a savepoint."""
        library, connection = library_of(driver), own_handle(connection)
        block = SavepointBlock(library, connection)
        try:
            perform(driver, self._begin(driver, library, connection))
            with library.savepoint(connection):
                first = perform(driver, self._mark(driver, marker))
                with block.body():
                    yield first
        except Exception as error:
            if (ours := block.translated(error)) is not None:
                raise ours from error
            raise

    @asynccontextmanager
    async def once_async(self, driver: Driver, connection: Handle, marker: ProcessedEvent) -> AsyncIterator[bool]:
        """Yields whether the event is new, inside a savepoint."""
        library, connection = library_of(driver), own_handle(connection)
        block = SavepointBlock(library, connection)
        try:
            await perform(driver, self._begin(driver, library, connection))
            async with library.savepoint(connection):
                first = await perform(driver, self._mark(driver, marker))
                with block.body():
                    yield first
        except Exception as error:
            if (ours := block.translated(error)) is not None:
                raise ours from error
            raise

    def _begin(self, driver: Driver, library: Library, connection: Handle) -> Steps[None]:
        """Makes sure that the connection is in a transaction: a savepoint alone would not begin one."""
        driver.require_transaction()
        if library.begins_later(connection):
            # As an INSERT would be, it is refused with autocommit.
            yield DriverCall(lambda: driver.execute(InsertRows("SELECT 1")))

    def _mark(self, driver: Driver, marker: ProcessedEvent) -> Steps[bool]:
        """Inserts the marker; waits for another transaction that has inserted it. Returns whether it was new."""
        try:
            inserted: int = yield DriverCall(lambda: driver.execute(InsertRows(self._insert, marker)))
        except Exception as error:
            state = sqlstate(error)
            if state in UNDEFINED or state == NO_UNIQUE_INDEX:
                raise InboxUnfit(
                    f"{self._name} is missing, or has no unique index on consumer_group and event_id",
                    why="Markers are the rows of this table, and the index makes them unique.",
                    remedy="Create it with Inbox.create(connection), or run the statements of Inbox.ddl().",
                ) from error
            raise
        return inserted == 1

    def ddl(self) -> str:
        return _DDL.format(table=self._table, index=quote(_index_name(self._name)))

    def create(self, driver: Driver, connection: Handle) -> Steps[None]:
        """Creates the table in the caller's transaction. Consumers that start together wait for each other."""
        key = int.from_bytes(blake2b(self._table.encode(), digest_size=8).digest(), signed=True)
        tag = "$do$"
        while tag in self._table:  # a name may contain anything
            tag = f"{tag[:-1]}_$"
        block = f"DO {tag}\nBEGIN\nPERFORM pg_advisory_xact_lock({key});\n{self.ddl()}END {tag}"
        yield DriverCall(lambda: library_of(driver).execute(own_handle(connection), block))

    def prune(self, driver: Driver, connection: Handle, seconds: float, batch: int) -> Steps[int]:
        """Deletes old markers, one statement for each batch; returns how many."""
        delete = f"""\
WITH gone AS (
    DELETE FROM {self._table} WHERE (consumer_group, event_id) IN (
        SELECT consumer_group, event_id FROM {self._table}
        WHERE processed_at < now() - make_interval(secs => CAST({PARAMETER} AS double precision))
        ORDER BY processed_at LIMIT {batch})
    RETURNING 1)
SELECT count(*) FROM gone"""  # noqa: S608 - the name is quoted
        total = 0
        while True:
            ((deleted,),) = yield DriverCall(lambda: driver.execute(Query(delete, (seconds,))))
            total += int(deleted)
            if deleted < batch:
                return total


class SavepointBlock:
    """One block. How far it has come decides what an error of the database means."""

    def __init__(self, library: Library, connection: Handle) -> None:
        self._library = library
        self._connection = connection
        self._entered = self._ended = False

    @contextmanager
    def body(self) -> Iterator[None]:
        """Raises TransactionEnded if the body has ended the transaction, also if it then raises."""
        self._entered = True
        try:
            yield
        except Exception as error:
            if self._library.has_left(self._connection):
                self._ended = True
                raise transaction_ended() from error
            raise
        if self._library.has_left(self._connection):
            self._ended = True
            raise transaction_ended()

    def translated(self, error: Exception) -> Exception | None:
        """Returns our error for one of a driver; None for errors of the body, and all others."""
        if self._ended and not isinstance(error, TransactionEnded):  # the end of the savepoint has failed
            return transaction_ended()
        if not self._entered and (isinstance(error, NotInTransaction) or sqlstate(error) in _NOT_IN_TRANSACTION):
            return not_in_transaction(self._library.remedy)
        return None


def _index_name(table: str) -> str:
    """Index names are unique in a schema, so it contains the name of the table; a long one is shortened."""
    name = f"{split_table(table)[1]}_processed_at_idx"
    if len(name.encode()) > NAME_BYTES:
        name = f"inbox_{blake2b(name.encode(), digest_size=12).hexdigest()}_idx"
    return name
