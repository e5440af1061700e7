"""Where Postgres shows that an event is published.

The replication slot: the connector confirms a position to Postgres only after the Kafka transaction with the events
before it is committed. So an event is published (or dead-lettered) once the slot's `confirmed_flush_lsn` has reached
the end of its transaction. That end is not known exactly. The end of the log after the commit is a safe bound: later
writes of other sessions delay the answer until the connector has passed them, too.

Delivery marks: a column of the row, or the view of the watermark. These also distinguish published
events from dead letters.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.errors import EventDeadLettered, ReceiptUnavailable
from tailrace.outbox.writer.polling import Check
from tailrace.outbox.writer.requests import PARAMETER, Query, Steps
from tailrace.outbox.writer.rows import RowLayout
from tailrace.outbox.writer.table import ColumnInfo, exists_condition
from tailrace.sql_names import quote, split_table

UNDEFINED = frozenset({"42703", "42P01", "3F000"})
"""SQLSTATE: no such column, table or schema."""

SLOT_CONDITION = f"""\
slot_type = 'logical' AND database = current_database()
  AND CASE WHEN CAST({PARAMETER} AS text) IS NULL THEN slot_name LIKE 'tailrace\\_%'
      ELSE slot_name = CAST({PARAMETER} AS text) END"""
"""The slot of the pipeline. Its two parameters are both the slot's name, or NULL for any slot of Tailrace."""
_SLOTS = f"""\
SELECT slot_name, active, confirmed_flush_lsn >= CAST(CAST({PARAMETER} AS text) AS pg_lsn), wal_status
FROM pg_replication_slots WHERE {SLOT_CONDITION}"""  # noqa: S608 - markers of parameters


DEAD = {"status": "failed", "delivery_status": "dlq"}
"""The value of a status column of a row that is dead-lettered."""


class DeliveryEvidence(NamedTuple):
    """The facts about a pipeline that show delivery: its name, its slot, and the kind of its marks."""

    pipeline: str | None
    slot: str | None
    marks: str

    @classmethod
    def of(cls, pipeline: str | None, slot: str | None, marks: str) -> DeliveryEvidence:
        return cls(pipeline, slot or (None if pipeline is None else f"tailrace_{_plain(pipeline)}"), marks)

    def relation(self, table: str) -> str:
        """Returns the table or view that has the marks."""
        if self.marks == "rows":
            return table
        return f"{quote(split_table(table)[0])}.{quote(f'tailrace_{_plain(self.pipeline)}_marks')}"


def is_confirmed(end: str, slot: str | None) -> Check:
    """Returns a check whether the slot is confirmed up to `end`."""

    def check() -> Steps[str | None]:
        rows = yield Query(_SLOTS, (end, slot, slot))
        if len(rows) != 1:
            raise _no_slot(slot, [str(row[0]) for row in rows])
        name, active, reached, wal_status = rows[0]
        if reached:
            return None
        if wal_status == "lost":
            return f"the slot {name} is lost"
        if not active:
            return f"nobody reads the slot {name}: the connector is not running"
        return f"the slot {name} is not confirmed up to {end} yet"

    return check


def is_marked(
    event_id: str, evidence: DeliveryEvidence, table: str, layout: RowLayout, id_column: str, id_type: ColumnInfo
) -> Check:
    """Returns a check whether the event is marked as published."""
    if layout.mark is None or (evidence.marks == "watermark" and evidence.pipeline is None):
        raise ReceiptUnavailable(
            "it is not known which column or view marks the event as published",
            why="Row marks need a layout with a mark column, a watermark the name of the pipeline.",
            remedy='Give Outbox(pipeline="…"), or leave out marks: the slot shows it, too.',
        )
    column, wanted = layout.mark
    relation = evidence.relation(table)
    done = exists_condition(relation, id_column, id_type, f" AND lower(CAST({quote(column)} AS text)) = '{wanted}'")
    dead = exists_condition(relation, id_column, id_type, f" AND {dead_condition(column)}")

    def check() -> Steps[str | None]:
        try:
            [(is_done, is_dead)] = yield Query(f"SELECT {done}, {dead}", (event_id, event_id))
        except Exception as error:
            if sqlstate(error) in UNDEFINED:
                raise ReceiptUnavailable(
                    f"there is no {relation} with a column {column}",
                    why="The pipeline has not written marks of this kind here.",
                    remedy="Give Outbox(marks=…) as the pipeline's settings have it, and start the pipeline once.",
                ) from error
            raise
        if is_dead and not is_done:
            raise dead_lettered()
        return None if is_done else f"{relation} does not say {column} = {wanted}"

    return check


def dead_condition(column: str) -> str:
    """Returns the SQL condition that a row, marked in this column, is dead-lettered."""
    if column == "processed":  # the view also shows here that an event waits behind a parked key
        return "error NOT LIKE 'waiting: %'"
    return f"{quote(column)} = '{DEAD[column]}'"


def dead_lettered() -> EventDeadLettered:
    return EventDeadLettered(
        "the event was dead-lettered",
        why="The connector could not publish it, and has marked it as failed.",
        remedy="Look at it with `tailrace dlq list`, then redrive or discard it.",
    )


def sqlstate(error: BaseException | None) -> str | None:
    """Returns the SQLSTATE of a driver's error, also if SQLAlchemy or Django have wrapped it."""
    seen = 0
    while error is not None and seen < 5:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if isinstance(state, str):
            return state
        error, seen = getattr(error, "orig", None) or error.__cause__, seen + 1
    return None


def _plain(pipeline: str | None) -> str:
    return (pipeline or "").replace("-", "_")


def _no_slot(slot: str | None, found: list[str]) -> ReceiptUnavailable:
    if not found:
        return ReceiptUnavailable(
            f"there is no replication slot {slot or 'whose name begins with tailrace_'} for this database",
            why="The slot shows what is published, and no pipeline has created one.",
            remedy="Start the pipeline, or name it in Outbox(pipeline=…).",
        )
    return several_slots(found)


def several_slots(found: list[str]) -> ReceiptUnavailable:
    return ReceiptUnavailable(
        f"several pipelines read this database: {', '.join(sorted(found))}",
        why="Each slot shows only what its own pipeline has published.",
        remedy="Name the pipeline that reads this outbox in Outbox(pipeline=…).",
    )
