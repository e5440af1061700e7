"""The SQL of delivery marks in Postgres: the tables of the watermark, its view, and the statements of row marks. Pure.

Two small tables stand beside the outbox, in its schema. `tailrace_watermark` has one row per pipeline: every row of
`snapshot` that `begun` does not show is published, or is in `tailrace_undelivered`: the open dead letters, and the
events that wait behind a parked key. A pipeline that starts over (`--adopt`) gets another row and keeps the old one;
`generation` is the hash of `begun`, which may be too long for an index.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tailrace.outbox.marks.columns import STREAMS, Assignments, MarkColumns, Value
from tailrace.sql_names import quote, quote_table, split_table

WATERMARK = "tailrace_watermark"
UNDELIVERED = "tailrace_undelivered"
WRAP = 1 << 32
"""Rows store the lower 32 bits of the id of their transaction."""
WAITING = "waiting"
"""The reason of an event that waits behind a parked key."""


def beside(table: str, name: str) -> str:
    """Returns the quoted name of a relation in the schema of the outbox."""
    return f"{quote(split_table(table)[0])}.{quote(name)}"


def view_name(table: str, pipeline: str) -> str:
    return beside(table, f"tailrace_{pipeline.replace('-', '_')}_marks")


def tables_ddl(table: str) -> list[str]:
    """Returns the statements that create the two tables; they may be repeated."""
    return [
        f"CREATE TABLE IF NOT EXISTS {beside(table, WATERMARK)} (pipeline text, generation text, begun text NOT NULL, "
        "outbox text NOT NULL, "
        "system_id text NOT NULL, marks text NOT NULL, snapshot pg_snapshot, lsn pg_lsn NOT NULL, "
        "at timestamptz NOT NULL DEFAULT now(), "
        "PRIMARY KEY (pipeline, generation))",
        f"CREATE TABLE IF NOT EXISTS {beside(table, UNDELIVERED)} (pipeline text, event_id text, "
        "position text NOT NULL, reason text NOT NULL, error text NOT NULL, at timestamptz NOT NULL DEFAULT now(), "
        "PRIMARY KEY (pipeline, event_id))",
    ]


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def array(values: Iterable[str]) -> str:
    """Returns the text form of an array."""
    return "{" + ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values) + "}"


def constant(value: str | bool) -> str:
    return literal(value) if isinstance(value, str) else str(value).lower()


def shows(snapshot: str, xmin: str) -> str:
    """Returns the condition that a snapshot shows a row which the current one shows, from the row's `xmin`.

    Only transactions from the oldest one that the snapshot lists to the newest one now can be later than it, so the id
    is extended to the first of these with the same lower 32 bits. An id that matches none of them is an old one.
    """
    base = f"pg_snapshot_xmin({snapshot})::text::bigint"
    full = f"({base} + mod({xmin}::text::bigint - mod({base}, {WRAP}) + {WRAP}, {WRAP}))"
    return (
        f"({xmin}::text::bigint < 3 OR {full} >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint "
        f"OR pg_visible_in_snapshot({full}::text::xid8, {snapshot}))"
    )


def passed(table: str, pipeline: str, xmin: str = "o.xmin") -> str:
    """Returns the condition that the watermark has passed a row of the outbox `o`."""
    return (
        f"EXISTS (SELECT FROM {beside(table, WATERMARK)} w WHERE w.pipeline = {literal(pipeline)} "  # noqa: S608
        f"AND w.outbox = {literal(table)} "
        "AND w.system_id = (SELECT system_identifier::text FROM pg_control_system()) "
        f"AND w.snapshot IS NOT NULL AND {shows('w.snapshot', xmin)} "
        f"AND (w.begun = '' OR NOT {shows('w.begun::pg_snapshot', xmin)}))"
    )


def view_ddl(
    table: str,
    pipeline: str,
    id_column: str,
    columns: MarkColumns | None,
    present: Collection[str],
    selected: str = "true",
) -> str:
    """Returns the statement that creates the view: the id of each row and the mark columns of the layout.

    `present` are the columns of the table. `selected` is the condition for rows that a first read has not left out. The
    view uses no other columns than these, so that it blocks no change of others.
    """
    columns = columns or STREAMS
    own = [name for name in columns.names if name in present]
    parts = [f"o.{quote(id_column)}", *(f"{_derived(name, columns, own)} AS {quote(name)}" for name in columns.names)]
    is_done = f"({selected}) AND {passed(table, pipeline)}"
    return (
        f"CREATE OR REPLACE VIEW {view_name(table, pipeline)} AS SELECT {', '.join(parts)} "  # noqa: S608 - quoted
        # The names in a condition must not be taken for columns of the other table.
        f"FROM (SELECT {', '.join(map(quote, dict.fromkeys([id_column, *own])))}, "
        f"{is_done} AS is_done FROM {quote_table(table)} o) o LEFT JOIN {beside(table, UNDELIVERED)} u "
        f"ON u.pipeline = {literal(pipeline)} AND u.event_id = o.{quote(id_column)}::text"
    )


def _derived(name: str, columns: MarkColumns, own: Collection[str]) -> str:
    """Returns the expression of a mark column in the view; `own` are those that the table has."""
    kept = f"o.{quote(name)}" if name in own else None
    is_dead = f"u.reason <> '{WAITING}'"
    if name == columns.status:
        waiting = constant(columns.waiting)
        return (
            f"CASE WHEN {is_dead} THEN {constant(columns.failed)} WHEN u.reason IS NOT NULL THEN {waiting} "
            f"WHEN o.is_done THEN {constant(columns.done)} ELSE {kept or waiting} END"
        )
    if name == columns.error:
        # Of an event behind a parked key, it says that it waits.
        return f"coalesce(u.reason || ': ' || u.error, {kept or 'NULL'})"
    values = {columns.published.get(name), columns.dead_lettered.get(name)}
    if Value.PLUS_ONE in values:
        status = f"o.{quote(columns.status)}" if columns.status in own else "NULL"
        # A row that has its mark already has counted it.
        counted = [f"({is_dead} AND {status} IS DISTINCT FROM {constant(columns.failed)})"]
        if name in columns.published:
            counted.append(f"(u.reason IS NULL AND o.is_done AND {status} IS DISTINCT FROM {constant(columns.done)})")
        return f"coalesce({kept or 'NULL'}, 0) + CASE WHEN {' OR '.join(counted)} THEN 1 ELSE 0 END"
    if name in columns.dead_lettered:
        # When a single row was published is not known, but when it was dead-lettered is.
        at = f"CASE WHEN {is_dead} THEN u.at END"
        known = [kept or "NULL", at] if Value.FIRST in values else [at, kept or "NULL"]
        return f"coalesce({', '.join(known)})"
    return kept or "NULL::timestamptz"


def save_watermark(table: str) -> str:
    """Parameters: pipeline, begun, table, system id, kind of marks, snapshot or NULL (keeps the stored one), LSN."""
    return (
        f"INSERT INTO {beside(table, WATERMARK)} AS w (pipeline, generation, begun, outbox, "  # noqa: S608
        "system_id, marks, snapshot, lsn) VALUES ($1, md5($2), $2, $3, $4, $5, $6::pg_snapshot, $7::pg_lsn) "
        "ON CONFLICT (pipeline, generation) DO UPDATE SET "
        "outbox = excluded.outbox, system_id = excluded.system_id, marks = excluded.marks, "
        "snapshot = coalesce(excluded.snapshot, w.snapshot), lsn = excluded.lsn, at = now() "
        # An older instance that is about to end must not set it back.
        "WHERE excluded.lsn >= w.lsn OR excluded.system_id <> w.system_id OR excluded.marks <> w.marks"
    )


def read_watermark(table: str) -> str:
    """Parameters: pipeline, table, system id. The last one written comes first."""
    return (
        f"SELECT begun, marks, snapshot, lsn FROM {beside(table, WATERMARK)} "  # noqa: S608 - quoted
        "WHERE pipeline = $1 AND outbox = $2 AND system_id = $3 ORDER BY at DESC LIMIT 1"
    )


def save_undelivered(table: str) -> str:
    """Parameters: pipeline, and arrays of ids, positions, reasons and errors."""
    return (
        f"INSERT INTO {beside(table, UNDELIVERED)} AS u (pipeline, event_id, position, reason, error) "  # noqa: S608
        "SELECT DISTINCT ON (k.id) $1, k.id, k.position, k.reason, k.error "
        "FROM unnest($2::text[], $3::text[], $4::text[], $5::text[]) WITH ORDINALITY "
        "AS k (id, position, reason, error, n) "
        "ORDER BY k.id, k.n DESC ON CONFLICT (pipeline, event_id) DO UPDATE SET position = excluded.position, "
        "reason = excluded.reason, error = excluded.error, at = now() "
        "WHERE (u.position, u.reason, u.error) IS DISTINCT FROM (excluded.position, excluded.reason, excluded.error)"
    )


def remove_undelivered(table: str, column: str) -> str:
    """Parameters: pipeline, and an array of ids or positions, whichever `column` is. Returns the ids."""
    return (
        f"DELETE FROM {beside(table, UNDELIVERED)} WHERE pipeline = $1 AND {column} = ANY ($2::text[]) "  # noqa: S608
        "RETURNING event_id"
    )


def remove_waiting(table: str) -> str:
    """Parameters: pipeline, and an array of the ids that stay. Returns the ids of the others."""
    return (
        f"DELETE FROM {beside(table, UNDELIVERED)} WHERE pipeline = $1 AND reason = '{WAITING}' "  # noqa: S608
        "AND NOT event_id = ANY ($2::text[]) RETURNING event_id"
    )


def mark_published(table: str, id_column: str, id_type: str, columns: MarkColumns) -> str:
    """Parameter: an array of ids. A row that is marked as published stays as it is."""
    return (
        f"UPDATE {quote_table(table)} AS o SET {_assigned(columns.published, 'NULL')} "  # noqa: S608 - quoted
        f"WHERE o.{quote(id_column)} = ANY ($1::{id_type}[]) AND {pending(columns)}"
    )


def absent_rows(table: str, id_column: str, id_type: str) -> str:
    """Parameter: an array of ids. Returns those that no row has."""
    return (
        f"SELECT k.id FROM unnest($1::text[]) AS k (id) WHERE NOT EXISTS (SELECT FROM {quote_table(table)} o "  # noqa: S608
        f"WHERE o.{quote(id_column)} = k.id::{id_type})"
    )


def mark_dead_lettered(table: str, id_column: str, id_type: str, columns: MarkColumns) -> str:
    """Parameters: arrays of ids and of errors. A row that has this mark, or is published, stays as it is."""
    unchanged = f"o.{quote(columns.error)} IS DISTINCT FROM k.error" if columns.error else "true"
    if columns.failed != columns.waiting:
        unchanged = f"o.{quote(columns.status)} IS DISTINCT FROM {constant(columns.failed)}"
    return (
        f"UPDATE {quote_table(table)} AS o SET {_assigned(columns.dead_lettered, 'k.error')} "  # noqa: S608 - quoted
        f"FROM unnest($1::{id_type}[], $2::text[]) AS k (id, error) "
        f"WHERE o.{quote(id_column)} = k.id AND {pending(columns)} AND {unchanged}"
    )


def copy_dead_lettered(table: str, copies: str, id_column: str, id_type: str, shared: Iterable[str]) -> str:
    """Parameters: arrays of ids, positions, reasons and errors. Copies each row once for each of its dead letters.

    `copies` is the suffix of the table of dead letters (layout `storage`); `shared` are the columns that both have.
    """
    schema, name = split_table(table)
    names = ", ".join(map(quote, shared))
    values = ", ".join(f"o.{quote(each)}" for each in shared)
    return (
        f"INSERT INTO {quote(schema)}.{quote(name + copies)} "  # noqa: S608 - quoted
        f"({names}, dlq_id, dlq_reason, failure_details, original_outbox_id) SELECT {values}, "
        "'dlq_' || md5(k.id::text || ' ' || k.position), k.reason, "
        f"jsonb_build_object('explanation', k.error, 'position', k.position), o.{quote(id_column)} "
        f"FROM {quote_table(table)} o, unnest($1::{id_type}[], $2::text[], $3::text[], $4::text[]) "
        f"AS k (id, position, reason, error) WHERE o.{quote(id_column)} = k.id ON CONFLICT (dlq_id) DO NOTHING"
    )


def note_redriven(table: str, copies: str) -> str:
    """Parameter: an array of ids. Notes in the copies of these rows that their events were published later."""
    schema, name = split_table(table)
    return (
        f"UPDATE {quote(schema)}.{quote(name + copies)} SET recovery_instructions = recovery_instructions || "  # noqa: S608
        "jsonb_build_object('replayed_at', now()) WHERE original_outbox_id = ANY ($1::text[]) "
        "AND NOT recovery_instructions ? 'replayed_at'"
    )


def pending(columns: MarkColumns) -> str:
    """Returns the condition that a row of the outbox `o` is not marked as published."""
    return f"o.{quote(columns.status)} IS DISTINCT FROM {constant(columns.done)}"


def unmarked_rows(
    table: str, pipeline: str, id_column: str, columns: MarkColumns, since: str, until: str, selected: str = "true"
) -> str:
    """Returns the query for rows that are published but not marked: those of `until` that `since` does not show.

    Both are snapshots in text form; `since` may be empty. `selected` is the condition for rows that a first read has
    not left out.
    """
    later = f"AND NOT {shows(f'{literal(since)}::pg_snapshot', 'o.xmin')} " if since else ""
    return (
        f"SELECT o.{quote(id_column)}::text FROM {quote_table(table)} o WHERE {pending(columns)} AND ({selected}) "  # noqa: S608 - quoted
        f"AND {shows(f'{literal(until)}::pg_snapshot', 'o.xmin')} {later}"
        f"AND NOT EXISTS (SELECT FROM {beside(table, UNDELIVERED)} u WHERE u.pipeline = {literal(pipeline)} "
        f"AND u.event_id = o.{quote(id_column)}::text)"
    )


def _assigned(assignments: Assignments, error: str) -> str:
    values = {Value.NOW: "now()", Value.NOTHING: "NULL", Value.ERROR: error}

    def written(column: str, value: Value | str | bool) -> str:
        if isinstance(value, str | bool):
            return constant(value)
        if value is Value.FIRST:
            return f"coalesce(o.{column}, now())"
        return f"coalesce(o.{column}, 0) + 1" if value is Value.PLUS_ONE else values[value]

    return ", ".join(f"{quote(name)} = {written(quote(name), value)}" for name, value in assignments.items())
