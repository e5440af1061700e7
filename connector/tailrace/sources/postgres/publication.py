"""The publication of the outbox: checks that it publishes the whole table, computes its fingerprint, creates it.

Only catalog tables are queried. The view pg_publication_tables opens every table of the publication: with FOR ALL
TABLES it waits for any locked table of the database, and the stream would stall.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from tailrace.errors import AccessRefused, LayoutMismatch, PublicationBroken
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sql_names import quote, quote_table, split_table

FIRST_OID = 16384
"""Tables with smaller OIDs are system tables."""


class Published(NamedTuple):
    """How the outbox is published."""

    fingerprint: str
    """A text that changes whenever rows may have been missed."""
    relation_id: int
    """The OID of the table, which a rename does not change."""
    direct: bool
    """The table itself is in the publication: the server then refuses to make it UNLOGGED, and it stays in the
    publication when it moves to another schema.
    """
    moved: int
    """The transaction (32 bits) that last moved the table to another schema, if it is published by schema; 0: none."""
    moves: bool
    """An UPDATE may move a row to another partition: see `rows_move`."""


# Whether publication `p` publishes table `c` under its own name: the rule of pg_publication_tables, without its locks.
# A partition is published under its own name unless pubviaroot is set and an ancestor is published; a partitioned table
# only if pubviaroot is set.
_MEMBER = """
(p.puballtables
 OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = {table}.oid)
 OR EXISTS (SELECT FROM pg_publication_namespace n WHERE n.pnpubid = p.oid AND n.pnnspid = {table}.relnamespace))
"""
_MEMBER_ANCESTOR = f"""
EXISTS (SELECT FROM pg_partition_ancestors(c.oid) t JOIN pg_class a ON a.oid = t.relid
        WHERE a.oid <> c.oid AND {_MEMBER.format(table="a")})
"""
PUBLISHES = f"""
(c.relpersistence = 'p' AND c.relkind IN ('r', 'p') AND CASE
    WHEN p.pubviaroot THEN {_MEMBER.format(table="c")} AND NOT {_MEMBER_ANCESTOR}
    WHEN c.relkind = 'r' THEN {_MEMBER.format(table="c")} OR {_MEMBER_ANCESTOR}
    ELSE false END)
"""
# SET SCHEMA renews the table's dependency on its schema, which is otherwise as old as the table.
_MOVED = """
(SELECT d.xmin FROM pg_depend d JOIN pg_attribute s ON s.attrelid = d.objid AND s.attnum = -1
 WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
   AND d.refclassid = 'pg_namespace'::regclass AND d.deptype = 'n' AND d.xmin <> s.xmin LIMIT 1)
"""


# The columns of partition keys, also in expressions (each depends on its table by an internal dependency), and a
# partition whose replica identity lacks the id. OFFSET 0 forces index lookups, as in unpublished_rows.
_MOVES = """
WITH RECURSIVE tree AS (
    SELECT c.oid, c.relkind, c.relreplident, c.relhassubclass
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2
    UNION ALL
    SELECT c.oid, c.relkind, c.relreplident, c.relhassubclass FROM tree t
    CROSS JOIN LATERAL (SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = t.oid OFFSET 0) i
    CROSS JOIN LATERAL (SELECT * FROM pg_class c WHERE c.oid = i.inhrelid LIMIT 1) c
    WHERE t.relhassubclass
)
SELECT (SELECT to_json(array_agg(DISTINCT k.attname)) FROM tree t CROSS JOIN LATERAL (
            SELECT a.attname FROM pg_depend d JOIN pg_attribute a ON a.attrelid = d.objid AND a.attnum = d.objsubid
            WHERE d.classid = 'pg_class'::regclass AND d.objid = t.oid AND d.objsubid > 0 AND d.deptype = 'i'
            AND d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid AND d.refobjsubid = 0 OFFSET 0) k
        WHERE t.relkind = 'p'),
       (SELECT min(t.oid::regclass::text) FROM tree t
        WHERE t.relkind = 'r' AND t.relreplident <> 'f' AND (
            SELECT true FROM pg_index x JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = ANY (x.indkey)
            WHERE x.indrelid = t.oid AND a.attname = $3
            AND CASE t.relreplident WHEN 'd' THEN x.indisprimary WHEN 'i' THEN x.indisreplident ELSE false END
            LIMIT 1) IS NULL)
"""


def rows_move(control: PgConnection, outbox: PostgresOptions) -> bool:
    """Returns whether an UPDATE may move rows to other partitions; raises if such moves could not be recognised.

    Postgres logs a move as a DELETE and an INSERT. The DELETE shows that the INSERT is not a new event. Columns of the
    event itself, such as its id, key or time, do not change: they move no rows.
    """
    ((names, without),) = control.query(_MOVES, [*split_table(outbox.table), outbox.id_column])
    mutable = sorted(set(json.loads(names or "[]")) - outbox.event_columns)
    if mutable and without is not None:
        raise PublicationBroken(
            f"rows of {outbox.table} can move between partitions by {', '.join(mutable)}, and {without} has no replica "
            f"identity with {outbox.id_column}",
            why="Postgres logs a move as a DELETE and an INSERT. Without the id of the deleted row it would be "
            "published as a new event.",
            remedy=f"Give {outbox.table} a primary key that contains {outbox.id_column}, or: "
            f"ALTER TABLE {without} REPLICA IDENTITY FULL;",
        )
    return bool(mutable)


def create_publication(publication: str, table: str, *, moves: bool = False) -> str:
    """Returns the CREATE PUBLICATION statement; a partitioned table is published as one table."""
    return (
        f"CREATE PUBLICATION {quote(publication)} FOR TABLE {quote_table(table)} "
        f"WITH (publish = '{_publish(moves)}', publish_via_partition_root = true)"
    )


def set_publish(publication: str, *, moves: bool) -> str:
    """Returns the statement that publishes only the needed operations."""
    return f"ALTER PUBLICATION {quote(publication)} SET (publish = '{_publish(moves)}');"


def _publish(moves: bool) -> str:
    return "insert, delete" if moves else "insert"


def ensure_publication(control: PgConnection, outbox: PostgresOptions, *, create: bool) -> None:
    """Creates the publication if it is missing and `create` is set; must run before the slot is created."""
    publication = outbox.publication
    if control.query("SELECT 1 FROM pg_publication WHERE pubname = $1", [publication]):
        return
    if outbox.messages is not None:
        statement, who = empty_publication(publication), "a role with CREATE on the database"
        why = "pgoutput needs a publication, although messages are in none."
    else:
        statement = create_publication(publication, outbox.table, moves=rows_move(control, outbox))
        who, why = "the owner of the table", "Only the owner of the table may publish it."
    if not create:
        raise PublicationBroken(
            f"there is no publication {publication}",
            why="source.create is false, so Tailrace does not create it.",
            remedy=f"As {who}: {statement};",
        )
    try:
        control.query(statement)
    except AccessRefused as error:
        raise AccessRefused(
            f"the publication {publication} is missing and cannot be created: {error.what}",
            why=why,
            remedy=f"As {who}: {statement};",
        ) from None


def empty_publication(publication: str) -> str:
    """Returns the statement for a publication without tables, which is all that messages need."""
    return f"CREATE PUBLICATION {quote(publication)}"


def require_empty(control: PgConnection, publication: str) -> Published:
    """Returns how messages are published; raises if the publication is missing or contains tables.

    Rows of tables would be read for nothing. Messages are sent with any publication, so a changed one has
    missed nothing.
    """
    rows = control.query(
        "SELECT p.puballtables OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid) "
        "OR EXISTS (SELECT FROM pg_publication_namespace n WHERE n.pnpubid = p.oid) "
        "FROM pg_publication p WHERE p.pubname = $1",
        [publication],
    )
    create = empty_publication(publication)
    if not rows:
        raise PublicationBroken(
            f"there is no publication {publication}",
            why="pgoutput needs one to decode the log, although messages are in none.",
            remedy=f"{create}; Do it at once: up to version 17 Postgres cannot decode changes of any table that are "
            "committed while it is missing. Messages are not missed.",
        )
    if rows[0][0] == "t":
        raise PublicationBroken(
            f"the publication {publication} contains tables",
            why="source.messages reads messages only: rows of these tables would be sent for nothing.",
            remedy=f"Name an empty publication in source.publication, or DROP PUBLICATION {quote(publication)}; "
            f"{create}; No message was missed.",
        )
    return Published("messages", 0, direct=True, moved=0, moves=False)


def contains(control: PgConnection, publication: str, table: str) -> bool:
    """Whether the publication exists and publishes the table under its own name."""
    return bool(
        control.query(
            "SELECT 1 FROM pg_publication p, pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace "  # noqa: S608 - ours
            f"WHERE p.pubname = $1 AND s.nspname = $2 AND c.relname = $3 AND {PUBLISHES}",
            [publication, *split_table(table)],
        )
    )


def read_published(control: PgConnection, outbox: PostgresOptions) -> Published:
    """Returns how the table is published; raises if it is not published completely.

    The fingerprint consists of the OIDs of the publication, of the table's entries in it (its own, its schema's, its
    ancestors') and of the table, and of the publication's `xmin`. Re-creating one of them changes its OID, and every
    ALTER PUBLICATION … SET changes the `xmin`.
    """
    publication, table = outbox.publication, outbox.table
    if outbox.messages is not None:
        return require_empty(control, publication)
    schema, name = split_table(table)
    rows = control.query(
        f"""
        SELECT p.oid, p.xmin, p.pubinsert, p.pubdelete, c.relkind, c.oid,
               (SELECT string_agg(m.oid::text, '+' ORDER BY m.oid) FROM (
                    SELECT r.oid FROM pg_publication_rel r WHERE r.prpubid = p.oid
                        AND (r.prrelid = c.oid OR r.prrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid)))
                    UNION ALL
                    SELECT n.oid FROM pg_publication_namespace n
                    WHERE n.pnpubid = p.oid AND n.pnnspid = c.relnamespace) m),
               EXISTS (SELECT FROM pg_publication_rel r
                       WHERE r.prpubid = p.oid AND r.prrelid = c.oid AND r.prqual IS NOT NULL),
               {PUBLISHES},
               EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid),
               CASE WHEN NOT p.puballtables THEN {_MOVED} END,
               c.relpersistence, p.pubviaroot
        FROM pg_publication p
        LEFT JOIN pg_class c ON c.relname = $3 AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $2)
        WHERE p.pubname = $1
        """,  # noqa: S608 - ours
        [publication, schema, name],
    )
    if not rows:
        statement = create_publication(publication, table, moves=rows_move(control, outbox))
        raise broken(f"there is no publication {publication}", f"{statement};")
    oid, version, inserts, deletes, kind, relation, memberships, filtered, published, direct, moved, *more = rows[0]
    if relation is None:
        raise PublicationBroken(
            f"there is no table {schema}.{name}",
            why="source.table is wrong, or the table was dropped, renamed or moved to another schema.",
            remedy="Correct source.table, or create the table: `tailrace init` writes the SQL. If it was renamed or "
            "moved back while the pipeline ran, `tailrace recover plan FILE` then finds what was missed.",
        )
    if published != "t":
        raise broken(*_unpublished(outbox, kind, *more))
    if inserts != "t":
        raise broken(
            f"the publication {publication} does not publish inserts",
            set_publish(publication, moves=False),
        )
    if filtered == "t":
        raise broken(
            f"the publication {publication} has a row filter on {schema}.{name}",
            f"ALTER PUBLICATION {quote(publication)} SET TABLE {quote_table(table)};",
        )
    moves = kind == "p" and rows_move(control, outbox)
    if moves and deletes != "t":
        raise PublicationBroken(
            f"the publication {publication} does not publish deletes, and rows of {schema}.{name} can move between "
            "partitions",
            why="Postgres logs a move as a DELETE and an INSERT. Without the DELETE the row would be published again.",
            remedy=f"{set_publish(publication, moves=True)} If the pipeline has run before, `tailrace recover plan "
            "FILE` then finds what was missed meanwhile; one start with --adopt continues without it. Deleted rows are "
            "never published.",
        )
    return Published(
        f"{oid}.{version}/{memberships or 0}/{relation}",
        int(relation),
        direct == "t",
        0 if direct == "t" else int(moved or 0),
        moves,
    )


def require_columns(control: PgConnection, outbox: PostgresOptions) -> None:
    """Raises LayoutMismatch if the log lacks columns of the event: generated ones, or ones not in the column list."""
    if outbox.messages is not None:
        return
    listed = "r.prattrs" if control.server_version >= 150000 else "NULL::int2vector"
    rows = control.query(
        f"""
        SELECT a.attname, a.attgenerated <> ''
        FROM pg_publication p
        JOIN pg_attribute a ON a.attrelid = to_regclass($2) AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = a.attrelid
        WHERE p.pubname = $1 AND a.attname IN (SELECT json_array_elements_text($3::json))
          AND CASE WHEN {listed} IS NOT NULL THEN NOT a.attnum = ANY ({listed})
                   ELSE a.attgenerated <> '' AND to_jsonb(p) ->> 'pubgencols' IS DISTINCT FROM 's' END
        ORDER BY a.attnum
        """,  # noqa: S608 - ours
        [outbox.publication, quote_table(outbox.table), json.dumps(sorted(outbox.event_columns))],
    )
    if rows:
        name, generated = rows[0]
        cause = "it is generated" if generated == "t" else "it is not in the publication's column list"
        raise LayoutMismatch(
            f"the log does not contain the column {name!r} of {outbox.table}: {cause}",
            why="outbox.columns uses it for the event, but rows would be sent without it.",
            remedy=f"Name another column in outbox.columns, or send all: ALTER PUBLICATION {quote(outbox.publication)} "
            f"SET TABLE {quote_table(outbox.table)}; a generated column must become an ordinary one.",
        )


def _unpublished(
    outbox: PostgresOptions, kind: str | None, persistence: str | None, via_root: str | None
) -> tuple[str, str]:
    """Returns why a table is not published, and the statement that fixes it."""
    publication, table = outbox.publication, quote_table(outbox.table)
    alter = f"ALTER PUBLICATION {quote(publication)}"
    if persistence != "p":
        return f"{table} is unlogged, so its rows are not in the log", f"ALTER TABLE {table} SET LOGGED;"
    if kind == "p" and via_root != "t":
        return (
            f"the publication {publication} publishes the partitions of {table} instead of the table",
            f"{alter} SET (publish_via_partition_root = true); if it does not contain it: {alter} ADD TABLE {table};",
        )
    return f"the publication {publication} does not contain {table}", f"{alter} ADD TABLE {table};"


def broken(problem: str, fix: str) -> PublicationBroken:
    """Returns the error for rows that are missing from the stream; `fix` is the statement that fixes it."""
    return PublicationBroken(
        problem,
        why="Rows that are not published are missing from the stream, without an error from the server.",
        remedy=f"{fix} Rows committed meanwhile are in the table, not in the stream: `tailrace recover plan FILE` "
        "finds them. To continue without them, start once with --adopt.",
    )
