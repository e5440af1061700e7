"""Stores delivery marks in Postgres: the watermark, undelivered events, and row marks.

A probe is a snapshot, and an LSN read after it: everything that the snapshot shows is committed before that LSN. A
snapshot of `pg_current_snapshot` does not list the subtransactions (savepoints) of running transactions, and rows
contain the ids of these. So the part of the snapshot from its oldest running transaction on is used only if none of the
running transactions has subtransactions.

A transaction can be published before it is visible: the log contains it while its session still waits for a synchronous
standby. So a row that is not found is looked for again until all transactions of that time have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from tailrace import failpoints
from tailrace.dlq.undelivered import WAITING, Undelivered
from tailrace.errors import MarksRefused, TailraceError
from tailrace.outbox.marks import sql
from tailrace.outbox.marks.columns import MarkColumns
from tailrace.positions.base import Position
from tailrace.positions.first_read import FirstRead
from tailrace.positions.postgres import LsnPosition, format_lsn, parse_lsn
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.left_out import evaluable, not_left_out
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.snapshot import Snapshot
from tailrace.sql_names import quote, quote_table, split_table
from tailrace.worker.marks.store import Changes, Probe

SUBTRANSACTIONS = 160000
"""The first version of Postgres that shows which sessions have subtransactions."""
LOCK_TIMEOUT = "2s"
"""A locked table or row delays marks, not other sessions behind this one."""
STATEMENT_TIMEOUT = "60s"
SCAN_SECONDS = 3600.0
"""For finding unmarked rows without an index."""
PAGE = 1000
"""Rows marked in one transaction: locks are short."""
UNSEEN = 50_000
"""Rows that are looked for again. More are not there only if they were deleted."""


class PostgresMarks:
    """Implements `MarkStore`. Without `columns`, rows are not marked."""

    has_watermark = True

    def __init__(self, options: PostgresOptions, pipeline: str, columns: MarkColumns | None, *, rows: bool) -> None:
        """`columns` are the mark columns of the layout, for the view; with `rows` they are written."""
        self._options = options
        self._pipeline = pipeline
        self._columns = columns
        self._rows = rows
        self._link: PgConnection | None = None
        self._begun = ""
        self._marked = ""
        self._system_id = ""
        self._id_type = "text"
        self._selected = "true"
        self._copied_columns: list[str] = []
        self._behind_at: int | None = None
        """A transaction id that is later than all that were in the log when marks fell behind."""
        self._unseen: dict[str, Undelivered | None] = {}
        """Events whose rows were not found, by id; with the dead letter, if that is what became of them."""
        self._unseen_at = 0
        """A transaction id that is later than those of these rows."""
        self._held: tuple[tuple[int, ...], Probe | None] | None = None
        """The watermark that is stored when no row is looked for any more."""

    def open(self, began: Position) -> bool:
        self.close()
        self._behind_at, self._unseen, self._held = None, {}, None
        options = self._options
        link = self._link = PgConnection(options.address, replication=False, timeout=options.link_timeout + 60)
        link.query(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
        link.query(f"SET statement_timeout = '{STATEMENT_TIMEOUT}'")
        # Marks and their state are lost together, and the next start writes them again.
        link.query("SET synchronous_commit = off")
        ((standby, system_id),) = link.query(
            "SELECT pg_is_in_recovery(), (SELECT system_identifier FROM pg_control_system())"
        )
        if standby == "t":
            raise on_standby()
        self._system_id = str(system_id)
        assert isinstance(began, LsnPosition)  # noqa: S101 - of the same kind as the options
        self._selected = _selected(link, options.table, began.first_read)
        self._prepare(link)
        found = link.query(sql.read_watermark(options.table), [self._pipeline, options.table, self._system_id])
        begun, kind, snapshot, lsn = found[0] if found else (None, None, None, None)
        # A position without `begun` may have lost it (`--adopt`): rows from before the first start stay what they are.
        self._begun = began.begun or str(begun or "")
        is_known = found and begun == self._begun and (kind == "rows" or not self._rows)
        self._marked = str(snapshot or "") if is_known else ""
        return bool(is_known and lsn and parse_lsn(str(lsn)) >= began.lsn and began.cut is None and snapshot)

    def _prepare(self, link: PgConnection) -> None:
        """Creates tables and view, and reads what the statements need to know about the outbox."""
        options = self._options
        present = {
            str(name): str(kind)
            for name, kind in link.query(
                # Without a length: a cast to `character` would keep one character.
                "SELECT attname, format_type(atttypid, -1) FROM pg_attribute "
                "WHERE attrelid = format('%I.%I', $1::text, $2::text)::regclass AND attnum > 0 AND NOT attisdropped",
                list(split_table(options.table)),
            )
        }
        self._id_type = present.get(options.id_column, "text")
        if self._rows and self._columns is not None:
            self._require_writable(link, self._columns, present)
        table = options.table
        names = [sql.beside(table, name) for name in (sql.WATERMARK, sql.UNDELIVERED)]
        statements = [
            *sql.tables_ddl(table),
            sql.view_ddl(table, self._pipeline, options.id_column, self._columns, present.keys(), self._selected),
        ]
        names.append(sql.view_name(table, self._pipeline))
        found = link.query(
            "SELECT to_regclass(n) IS NULL FROM unnest($1::text[]) WITH ORDINALITY AS t (n, i) ORDER BY i",
            [sql.array(names)],
        )
        missing = [statement for statement, (lacks,) in zip(statements, found, strict=True) if lacks == "t"]
        try:
            for statement in missing:
                link.query(statement)
        except TailraceError as error:
            raise not_created(table, link, missing, error) from None

    def _require_writable(self, link: PgConnection, columns: MarkColumns, present: dict[str, str]) -> None:
        options = self._options
        if lacking := [name for name in columns.names if name not in present]:
            raise MarksRefused(
                f"{options.table} has no column {lacking[0]}",
                why="`marks: rows` writes it.",
                remedy="Add it to the table, name the table's own column in outbox.mark_columns, or set marks: "
                "watermark.",
            )
        if columns.copies is not None:
            self._copied_columns = self._require_copies(link, columns.copies, present)
        if options.halt_on_change and link.query(
            "SELECT 1 FROM pg_publication WHERE pubname = $1 AND pubupdate", [options.publication]
        ):
            raise MarksRefused(
                f"the publication {options.publication} sends updates, and source.on_change is `halt`",
                why="The pipeline would stop at its own marks. No marks are written; events are published.",
                remedy="Set source.on_change: ignore.",
            )
        ((may,),) = link.query(
            "SELECT bool_and(has_column_privilege(format('%I.%I', $1::text, $2::text), n, 'UPDATE')) "
            "FROM unnest($3::text[]) AS n",
            [*split_table(options.table), sql.array(columns.names)],
        )
        if may != "t":
            who = quote(link.pgconn.user.decode())
            names = ", ".join(map(quote, columns.names))
            raise MarksRefused(
                f"no UPDATE privilege on the mark columns of {options.table}",
                why="`marks: rows` writes them. Events are published all the same.",
                remedy=f"GRANT UPDATE ({names}) ON {quote_table(options.table)} TO {who}; or set marks: "  # noqa: S608
                "watermark.",
            )

    def _require_copies(self, link: PgConnection, suffix: str, present: dict[str, str]) -> list[str]:
        """Returns the columns that the outbox and its table of dead letters share."""
        schema, name = split_table(self._options.table)
        found = link.query(
            "SELECT attname, has_table_privilege(attrelid, 'INSERT') AND has_table_privilege(attrelid, 'UPDATE') "
            "FROM pg_attribute WHERE attrelid = to_regclass(format('%I.%I', $1::text, $2::text)) "
            "AND attnum > 0 AND NOT attisdropped",
            [schema, name + suffix],
        )
        if not found or found[0][1] != "t":
            raise MarksRefused(
                f"the table {schema}.{name}{suffix} is missing, or may not be written to",
                why="A dead-lettered row is copied there in the transaction of its mark. Events are published all the "
                "same.",
                remedy=f"Create it as `tailrace outbox ddl --layout storage` shows, and GRANT SELECT, INSERT, UPDATE "
                f"ON it TO {quote(link.pgconn.user.decode())}.",
            )
        return [str(column) for column, _ in found if str(column) in present]

    def end_of(self, position: Position) -> tuple[int, ...]:
        assert isinstance(position, LsnPosition)  # noqa: S101 - of the same kind as the options
        return (position.lsn,)

    def fell_behind(self) -> None:
        self._behind_at = None

    def store_baseline(self, position: Position) -> None:
        self.open(position)
        ((seen,),) = self._linked.query("SELECT pg_current_snapshot()")
        self._save_watermark(self._linked, self.end_of(position), Probe(str(seen), ()))

    def probe(self) -> Probe:
        link = self._linked
        if self._behind_at is None and self._rows:
            self._behind_at = self._new_transaction(link)
        seen = str(link.query("SELECT pg_current_snapshot()")[0][0])
        snapshot = Snapshot.parse(seen)
        if self._behind_at is None:
            self._behind_at = snapshot.xmax
        if snapshot.running and self._may_have_subtransactions(link):
            seen = f"{snapshot.xmin}:{snapshot.xmin}:"
        # Last, so that it lies behind the end of a transaction that ended before its subtransactions were looked for.
        ((end,),) = link.query("SELECT pg_current_wal_insert_lsn()")
        return Probe(seen, (parse_lsn(str(end)),), snapshot.xmin >= self._behind_at)

    def _new_transaction(self, link: PgConnection) -> int:
        return int(link.query("SELECT pg_current_xact_id()")[0][0] or 0)

    def _may_have_subtransactions(self, link: PgConnection) -> bool:
        if link.server_version < SUBTRANSACTIONS:
            return True
        ((found,),) = link.query(
            "SELECT EXISTS (SELECT FROM pg_stat_get_backend_idset() b, LATERAL pg_stat_get_backend_subxact(b) s "
            "WHERE s.subxact_count > 0 OR s.subxact_overflowed) OR EXISTS (SELECT FROM pg_prepared_xacts)"
        )
        return found == "t"

    def write(self, changes: Changes, position: Position | None, passed: Probe | None) -> None:
        link, columns = self._linked, self._columns if self._rows else None
        ids = changes.published
        if columns is not None:
            while len(ids) > PAGE:
                self._mark(link, columns, ids[:PAGE])
                ids = ids[PAGE:]
        link.query("BEGIN")
        self._save(link, changes.undelivered, look_again=True)
        if changes.released:
            self._remove(link, "event_id", changes.released)
        if columns is not None and ids:
            self._mark(link, columns, ids)
        if changes.redriven:
            self._republished(link, changes.redriven)
        if position is not None:
            self._save_watermark(link, self.end_of(position), passed)
        failpoints.reached(failpoints.MARKS_WRITTEN)
        link.query("COMMIT")
        failpoints.reached(failpoints.MARKS_COMMITTED)

    def _save_watermark(self, link: PgConnection, end: tuple[int, ...], passed: Probe | None) -> None:
        table = self._options.table
        if self._unseen:
            self._held = (end, passed or (self._held and self._held[1]))
            return
        if passed is not None:
            self._marked = passed.seen
        link.query(
            sql.save_watermark(table),
            [
                self._pipeline,
                self._begun,
                table,
                self._system_id,
                "rows" if self._rows else "watermark",
                # Without a probe that is passed, the last one stays; a new row has none yet.
                self._marked or None,
                format_lsn(end[0]),
            ],
        )

    def _mark(self, link: PgConnection, columns: MarkColumns, ids: Sequence[str]) -> None:
        options = self._options
        statement = sql.mark_published(options.table, options.id_column, self._id_type, columns)
        ((count,),) = link.query(
            f"WITH marked AS ({statement} RETURNING 1) SELECT count(*) FROM marked",  # noqa: S608 - quoted
            [sql.array(ids)],
        )
        if int(count or 0) < len(ids):
            self._note_unseen(link, dict.fromkeys(ids))

    def _note_unseen(self, link: PgConnection, events: Mapping[str, Undelivered | None]) -> None:
        """Notes those of the events whose rows are not found: not visible yet, or deleted."""
        options = self._options
        found = link.query(sql.absent_rows(options.table, options.id_column, self._id_type), [sql.array(events)])
        if found:
            self._unseen_at = self._new_transaction(link)
            for (event,) in found[: UNSEEN - len(self._unseen)]:
                self._unseen[str(event)] = events[str(event)]

    def retry_unseen(self) -> None:
        if not self._unseen or self._columns is None:
            return
        link, at = self._linked, self._unseen_at
        ((oldest,),) = link.query("SELECT pg_snapshot_xmin(pg_current_snapshot())")
        events, self._unseen = self._unseen, {}
        ids = [event for event, letter in events.items() if letter is None]
        for first in range(0, len(ids), PAGE):
            self._mark(link, self._columns, ids[first : first + PAGE])
        link.query("BEGIN")
        self._mark_failed(link, self._columns, [letter for letter in events.values() if letter is not None])
        link.query("COMMIT")
        self._unseen_at = at
        if int(oldest or 0) >= at:
            self._unseen = {}  # all transactions of that time have ended: these rows were deleted
        if self._held is not None and not self._unseen:
            (end, passed), self._held = self._held, None
            self._save_watermark(link, end, passed)

    def save_undelivered(self, undelivered: Sequence[Undelivered]) -> None:
        link = self._linked
        link.query("BEGIN")
        self._save(link, undelivered)
        link.query("COMMIT")

    def _save(self, link: PgConnection, undelivered: Sequence[Undelivered], *, look_again: bool = False) -> None:
        options = self._options
        if not undelivered:
            return
        undelivered = [each._replace(error=storable(each.error, link.codec)) for each in undelivered]
        link.query(
            sql.save_undelivered(options.table),
            [self._pipeline, *(sql.array(each[at] for each in undelivered) for at in range(4))],
        )
        failed = [each for each in undelivered if each.reason != WAITING]
        if self._rows and self._columns is not None and failed:
            self._mark_failed(link, self._columns, failed, look_again=look_again)

    def _mark_failed(
        self, link: PgConnection, columns: MarkColumns, failed: Sequence[Undelivered], *, look_again: bool = True
    ) -> None:
        options = self._options
        if not failed:
            return
        if look_again:
            self._note_unseen(link, {each.event_id: each for each in failed})
        link.query(
            sql.mark_dead_lettered(options.table, options.id_column, self._id_type, columns),
            [
                sql.array(each.event_id for each in failed),
                sql.array(f"{each.reason}: {each.error}" for each in failed),
            ],
        )
        if columns.copies is not None:
            link.query(
                sql.copy_dead_lettered(
                    options.table, columns.copies, options.id_column, self._id_type, self._copied_columns
                ),
                [sql.array(each[at] for each in failed) for at in range(4)],
            )

    def keep_waiting(self, event_ids: Sequence[str]) -> None:
        link = self._linked
        link.query("BEGIN")
        found = link.query(sql.remove_waiting(self._options.table), [self._pipeline, sql.array(event_ids)])
        ids = [str(event) for (event,) in found]
        if self._rows and self._columns is not None and ids:
            self._mark(link, self._columns, ids)
        link.query("COMMIT")

    def remove_redriven(self, positions: Sequence[str]) -> None:
        link = self._linked
        link.query("BEGIN")
        self._republished(link, positions)
        link.query("COMMIT")

    def _republished(self, link: PgConnection, positions: Sequence[str]) -> None:
        ids = self._remove(link, "position", positions)
        if self._rows and self._columns is not None and ids:
            self._mark(link, self._columns, ids)
            if self._columns.copies is not None:
                link.query(sql.note_redriven(self._options.table, self._columns.copies), [sql.array(ids)])

    def _remove(self, link: PgConnection, column: str, values: Sequence[str]) -> list[str]:
        found = link.query(sql.remove_undelivered(self._options.table, column), [self._pipeline, sql.array(values)])
        return [str(event) for (event,) in found]

    def has_undelivered(self) -> bool:
        ((found,),) = self._linked.query(
            f"SELECT EXISTS (SELECT FROM {sql.beside(self._options.table, sql.UNDELIVERED)} "  # noqa: S608 - quoted
            "WHERE pipeline = $1)",
            [self._pipeline],
        )
        return found == "t"

    def catch_up(self, passed: Probe, going: Callable[[], bool], pace: Callable[[float], None]) -> bool:
        link, options = self._linked, self._options
        if self._rows and self._columns is not None:
            link.query(f"SET statement_timeout = '{int(SCAN_SECONDS)}s'")
            query = sql.unmarked_rows(
                options.table,
                self._pipeline,
                options.id_column,
                self._columns,
                self._marked or self._begun,
                passed.seen,
                self._selected,
            )
            # The server keeps the ids, in a file if there are many: memory stays flat here.
            link.query(f"DECLARE unmarked NO SCROLL CURSOR WITH HOLD FOR {query}", timeout=SCAN_SECONDS)
            link.query(f"SET statement_timeout = '{STATEMENT_TIMEOUT}'")
            while page := link.query(f"FETCH {PAGE} FROM unmarked"):
                began = time.monotonic()
                self._mark(link, self._columns, [str(event) for (event,) in page])
                failpoints.reached(failpoints.MARKS_CATCHING_UP)
                pace(time.monotonic() - began)
                if not going():
                    return False
            link.query("CLOSE unmarked")
        self._save_watermark(link, passed.end, passed)
        return True

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    @property
    def _linked(self) -> PgConnection:
        assert self._link is not None  # noqa: S101 - `open` comes first
        return self._link


def _selected(link: PgConnection, table: str, first_read: FirstRead | None) -> str:
    """Returns the SQL condition for rows that the first read has not left out (source.start_where)."""
    known = evaluable(link, table, first_read, complete=True)
    if known is None or not known.snapshot:
        return "true"
    return not_left_out(known, sql.shows(f"{sql.literal(known.snapshot)}::pg_snapshot", "o.xmin"))


def storable(text: str, codec: str) -> str:
    """Returns the text with `?` for what a database of this encoding cannot store, such as text of a rule."""
    return text.replace("\0", "?").encode(codec, "replace").decode(codec)


def on_standby() -> MarksRefused:
    return MarksRefused(
        "source.postgres is a standby: no delivery mark can be written there",
        why="A standby is read-only.",
        remedy="Set marks: none, or name the primary in source.postgres.",
    )


def not_created(table: str, link: PgConnection, statements: Sequence[str], error: TailraceError) -> MarksRefused:
    schema, _ = split_table(table)
    who = quote(link.pgconn.user.decode())
    return MarksRefused(
        f"the tables or the view of delivery marks cannot be created beside {table}: {error.what}",
        why="Events are published all the same, without marks.",
        remedy=f"GRANT CREATE ON SCHEMA {quote(schema)} TO {who}; or run this as another role, and grant {who} SELECT, "
        f"INSERT, UPDATE and DELETE on the tables: {'; '.join(statements)};",
    )
