"""Writes the event of a dead letter to the outbox again, as a new row: `tailrace dlq redrive --as-new`.

The new row has another id and the same sequence number; its metadata names the original as `replay_of`. One statement
adds it, with its entry in the WAL log, and notes it on the copy of the original in the table of dead letters. The id is
derived from the dead letter: so a command that is killed before it has resolved the dead letter adds nothing when it is
run again.
"""

from __future__ import annotations

from uuid import UUID, uuid5

from tailrace.dlq.dead_letter import FIRST, DeadLetter
from tailrace.errors import AccessRefused, ConfigError, Reason, Rejected
from tailrace.outbox.layouts import ColumnMap
from tailrace.outbox.specs import LAYOUTS, METADATA
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sql_names import beside, quote, quote_table

LAYOUT = "storage"
REPLAY_OF = "replay_of"
_NAMES = UUID("6c0a1d2e-7a5b-4f0e-9c53-0f6d1f6a7b11")
_FRESH = frozenset(
    {
        "created_at", "delivery_attempts", "delivery_status", "first_attempt_at", "last_attempt_at", "next_retry_at",
        "delivered_at",
    }
)  # fmt: skip
"""Columns of the layout that a new row does not take over: they have defaults."""


class NewRows:
    """Adds rows to an outbox of the layout `storage`, in Postgres."""

    def __init__(self, database: object, layout: str, columns: ColumnMap) -> None:
        """Raises ConfigError for an outbox of another layout."""
        if not isinstance(database, PostgresOptions) or layout != LAYOUT:
            raise ConfigError(
                "--as-new writes to an outbox of the layout `storage` in Postgres, and this pipeline has another",
                remedy="Redrive without --as-new: the event is then published with its own id.",
            )
        self._options = database
        self._columns = columns
        table = quote_table(database.table)
        renamed = {getattr(LAYOUTS[LAYOUT].columns, part): name for part, name in columns.parts()}
        taken = [renamed.get(each.name, each.name) for each in LAYOUTS[LAYOUT].table]
        own = {columns.id, columns.payload, METADATA, renamed.get("created_at", "created_at"), *_FRESH}
        copied = ", ".join(quote(name) for name in taken if name not in own)
        self._dead_letters, self._wal = beside(database.table, "_dlq"), beside(database.table, "_wal")
        self._statement = _STATEMENT.format(
            table=table,
            id=quote(columns.id),
            payload=quote(columns.payload),
            metadata=METADATA,
            copied=copied,
            replay_of=REPLAY_OF,
            dead_letters=self._dead_letters,
            wal=self._wal,
        )

    def add(self, letter: DeadLetter, payload: bytes | None) -> str:
        """Adds the row and returns its id; `payload` replaces that of the original. Raises Rejected if it cannot."""
        original = letter.event_id
        if original is None or FIRST in letter.details:
            why = "it is a row that could not be read" if original is None else "later events of its key wait behind it"
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"the dead letter cannot be written as a new row: {why}",
                remedy="Redrive it without --as-new.",
            )
        new = f"outbox_{uuid5(_NAMES, f'{original} {letter.position} {letter.id}').hex}"
        text = None if payload is None else payload.decode()
        try:
            with self._options.connect() as connection:
                ((found, _, _),) = connection.query(self._statement, [new, original, text])
        except AccessRefused as error:
            raise AccessRefused(
                error.what,
                why="The role of source.postgres must be allowed to add a row, and to note it in the WAL log and on "
                "its dead letter.",
                remedy=f"GRANT SELECT, INSERT ON {quote_table(self._options.table)} TO the role; GRANT INSERT ON "
                f"{self._wal} TO the role; GRANT SELECT, UPDATE ON {self._dead_letters} TO the role.",
            ) from None
        if found == "0":
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"the row {original} is neither in the outbox nor in {self._dead_letters}",
                remedy="Redrive it without --as-new: the dead letter has its payload.",
            )
        return new


_STATEMENT = """
WITH original AS (
    SELECT * FROM (
        SELECT {payload}, {metadata}, {copied} FROM {table} WHERE {id} = $2::text
        UNION ALL SELECT {payload}, {metadata}, {copied} FROM {dead_letters} WHERE original_outbox_id = $2::text
    ) AS either LIMIT 1
), added AS (
    INSERT INTO {table} ({id}, {payload}, {metadata}, {copied})
    SELECT $1::text, COALESCE($3::jsonb, {payload}), {metadata} || jsonb_build_object('{replay_of}', $2::text), {copied}
    FROM original WHERE NOT EXISTS (SELECT FROM {table} WHERE {id} = $1::text)
    RETURNING 1
), logged AS (
    INSERT INTO {wal} (wal_id, outbox_id, operation_type, wal_lsn, transaction_id)
    SELECT 'wal_' || gen_random_uuid(), $1::text, 'insert', pg_current_wal_insert_lsn(), pg_current_xact_id()::text
    FROM added
), noted AS (
    UPDATE {dead_letters}
    SET recovery_instructions =
        recovery_instructions || jsonb_build_object('replayed_at', now(), 'new_outbox_id', $1::text)
    WHERE original_outbox_id = $2::text AND recovery_instructions->>'new_outbox_id' IS DISTINCT FROM $1::text
        AND EXISTS (SELECT FROM original)
    RETURNING 1
)
SELECT (SELECT count(*) FROM original), (SELECT count(*) FROM added), (SELECT count(*) FROM noted)
"""
