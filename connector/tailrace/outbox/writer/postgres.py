"""Adds events to an outbox table in Postgres, and waits until an event is published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from tailrace.errors import (
    EventExists,
    EventInvalid,
    LayoutMismatch,
    NotCommitted,
    NotInTransaction,
    ReceiptUnavailable,
    TailraceError,
)
from tailrace.outbox.layouts import ColumnMap
from tailrace.outbox.writer.event import PreparedEvent
from tailrace.outbox.writer.evidence import UNDEFINED, DeliveryEvidence, is_confirmed, is_marked, sqlstate
from tailrace.outbox.writer.payload import PayloadWriter
from tailrace.outbox.writer.polling import poll
from tailrace.outbox.writer.pressure import PostgresPressure, Pressure
from tailrace.outbox.writer.requests import Query, Steps
from tailrace.outbox.writer.rows import RowLayout
from tailrace.outbox.writer.table import (
    InsertPlan,
    Table,
    catalog_query,
    exists_condition,
    read_catalog,
    require_columns,
)
from tailrace.sql_names import quote_table

UNIQUE_VIOLATION = "23505"
ABORTED = "25P02"
FORBIDDEN = "42501"


class PostgresOutbox:
    """The steps of the writer for one table. The table is inspected before the first event, and after an error."""

    def __init__(self, name: str, layout: RowLayout, columns: ColumnMap, payloads: PayloadWriter) -> None:
        self._name = name
        self._layout = layout
        self._columns = columns
        self._payloads = payloads
        self._pressure = PostgresPressure(name, layout, columns)
        self._table: Table | None = None
        self._present: tuple[Table | None, list[str]] = (None, [])
        self._plans: dict[tuple[Any, ...], InsertPlan] = {}

    def add(self, events: Sequence[PreparedEvent], *, many: bool) -> Steps[int]:
        """Inserts the events with one statement; returns how many were inserted."""
        table = self._table
        if table is None:
            table = yield from self._inspect()
        for event in events:
            if event.id_given:
                self._require_id(event.id, table)
        rows = [self._row(event, table) for event in events]
        if many and any(row.keys() != rows[0].keys() for row in rows):
            columns = dict.fromkeys(column for row in rows for column in row)
            rows = [{column: row.get(column) for column in columns} for row in rows]
        # With a fresh id there is nothing to repeat.
        skip_existing = self._layout.repeatable and any(event.id_given for event in events)
        key = (*rows[0], many, skip_existing)
        plan = self._plans.get(key) or self._plan(key, table, rows[0], many=many, skip_existing=skip_existing)
        statement = plan.statement(rows)
        try:
            added: int = yield statement
        except Exception as error:
            self._forget()
            if (ours := self._translated(error)) is not None:
                raise ours from error
            raise
        return added

    def exists(self, event_id: str) -> Steps[bool]:
        table = self._table
        if table is None:
            table = yield from self._inspect()
        self._require_id(event_id, table)
        condition = exists_condition(self._name, self._columns.id, table[self._columns.id])
        found = yield Query(f"SELECT {condition}", (event_id,))
        return bool(found[0][0])

    def wait(self, event_id: str, evidence: DeliveryEvidence, *, timeout: float | None) -> Steps[None]:
        """Returns when the event is published. Raises NotCommitted, ReceiptUnavailable or NotPublishedYet."""
        table = self._table
        if table is None:
            table = yield from self._inspect()
        end = yield from self._committed(event_id, table)
        if evidence.marks == "none":
            yield from poll(is_confirmed(end, evidence.slot), timeout)
        else:
            id_type = table[self._columns.id]
            yield from poll(is_marked(event_id, evidence, self._name, self._layout, self._columns.id, id_type), timeout)

    def pressure(self, evidence: DeliveryEvidence) -> Steps[Pressure]:
        table = self._table
        if table is None:
            table = yield from self._inspect()
        return (yield from self._pressure.steps(evidence, table))

    def _inspect(self) -> Steps[Table]:
        try:
            rows = yield catalog_query(self._name)
        except Exception as error:
            if (ours := self._translated(error)) is not None:
                raise ours from error
            raise
        table = read_catalog(self._name, rows)
        if self._columns.id not in table:
            require_columns(self._name, table, [self._columns.id], {})
        self._table = table
        return table

    def _require_id(self, event_id: str, table: Table) -> None:
        """Raises EventInvalid if the id is not of its column's type: the server's error would abort the transaction."""
        if table[self._columns.id].type != "uuid":
            return
        try:
            UUID(event_id)
        except ValueError:
            raise EventInvalid(
                f"the id {event_id[:100]!r} is not a UUID",
                why=f"The column {self._columns.id!r} of {self._name} has the type uuid.",
                remedy="Give a UUID, leave it to the writer, or make the column text.",
            ) from None

    def _forget(self) -> None:
        """The table may have changed, or the connection is another role's: inspect it again before the next event."""
        self._table = None
        self._plans.clear()

    def _row(self, event: PreparedEvent, table: Table) -> dict[str, Any]:
        columns = self._columns
        row = self._layout.row(event, columns)
        optional = self._layout.optional(event, columns)
        inspected, present = self._present
        if inspected is not table:
            present = [name for name in optional if name in table]
            self._present = table, present
        for name in present:
            if optional[name] is not None:  # otherwise the column's default counts
                row[name] = optional[name]
        for name in self._layout.given:
            if optional[name] is not None and name not in table:
                require_columns(self._name, table, [name], {name: "The event has a value for it"})
        if event.extra:
            for name in event.extra:
                if name not in table:
                    require_columns(self._name, table, [name], {name: "The event's extra names it"})
            row.update(event.extra)
        payload = table.get(columns.payload)
        if event.payload is not None and payload is not None and payload.type == "jsonb":
            self._payloads.check_jsonb(event.payload)
        return row

    def _plan(
        self, key: tuple[Any, ...], table: Table, row: dict[str, Any], *, many: bool, skip_existing: bool
    ) -> InsertPlan:
        layout = self._layout
        require_columns(self._name, table, [*row, *layout.counted], {})
        plan = layout.plan(self._name, table, row, id_column=self._columns.id, many=many, skip_existing=skip_existing)
        self._plans[key] = plan
        return plan

    def _translated(self, error: Exception) -> TailraceError | None:
        """Returns an error of ours for what a service can fix; None if the driver's own error says it best."""
        state = sqlstate(error)
        if state in UNDEFINED:
            return LayoutMismatch(
                f"{self._name} has changed: {_first_line(error)}",
                why="The table is inspected before the first event, and again after this error.",
                remedy="Roll back and repeat the transaction.",
            )
        if state == ABORTED:
            return NotInTransaction(
                "the event was not added: the transaction is aborted",
                why="Because of an earlier error, Postgres accepts no further statement in it.",
                remedy="Roll back, and repeat the whole transaction.",
            )
        if state == UNIQUE_VIOLATION:
            return EventExists(
                f"{self._name} has an event with this id already",
                why="An id names one event. Postgres has aborted the transaction.",
                remedy="Let the writer make the id; or roll back, and ask outbox.exists(connection, id) first.",
            )
        return None

    def _committed(self, event_id: str, table: Table) -> Steps[str]:
        """Returns the end of the log after the commit. Raises NotCommitted if there was none."""
        condition = exists_condition(self._name, self._columns.id, table[self._columns.id])
        try:
            [(is_writing, end, exists)] = yield Query(
                "SELECT pg_current_xact_id_if_assigned() IS NOT NULL, CAST(pg_current_wal_insert_lsn() AS text), "
                + condition,
                (event_id,),
            )
        except Exception as error:
            if sqlstate(error) == FORBIDDEN:
                raise ReceiptUnavailable(
                    f"the role may not read {self._name}",
                    why="Without that it is unknown whether the event was committed or rolled back.",
                    remedy=f"GRANT SELECT ON {quote_table(self._name)} to the service's role.",
                ) from error
            raise
        if is_writing:
            raise NotCommitted(
                "wait() was called inside a transaction that has written something",
                why="If that is the transaction of the event, waiting would never end.",
                remedy="Call wait() after the commit, or give it another connection.",
            )
        if not exists:
            raise NotCommitted(
                "the event is not in the outbox",
                why="Its transaction is not committed yet, it was rolled back, or the row was deleted since.",
                remedy="Call wait() only after a commit, and keep rows until then.",
            )
        return str(end)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
