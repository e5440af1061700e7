"""What archiving deletes from a table of Postgres and what it leaves there, without a running pipeline."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tailrace.archive.object_store import ObjectStore
from tailrace.archive.postgres_outbox import PostgresArchiveOutbox
from tailrace.archive.repository import ArchiveRepository
from tailrace.archive.writer import ArchiveReport, ArchiveRun, RowSet
from tailrace.errors import LayoutMismatch
from tailrace.event import Row
from tailrace.outbox.layouts import ColumnMap, Layout
from tailrace.positions.postgres import LogIdentity, LsnPosition, TableRead
from tailrace.sources.postgres import catalog, table_sql
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.table_rescan import TableRescan
from tailrace.testkit.stack import PostgresServer, wait_until

BEFORE_MS = 1_000_000_000
ROWS = 20


class Table:
    """An outbox of rows 1 to 20, all old; `archive` runs the archiver over its current rows."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.options = PostgresOptions(dsn, "public.outbox", "slot", "publication", timestamp="created_at")
        self._folder = folder
        self.execute("CREATE TABLE outbox (id int PRIMARY KEY, payload jsonb, created_at timestamptz)")
        self.put(1, ROWS)

    def put(self, first: int, last: int) -> None:
        self.execute(
            "INSERT INTO outbox SELECT n, '{}', to_timestamp(n) FROM generate_series(%s::int, %s::int) n", first, last
        )

    def execute(self, statement: str, *parameters: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self.options.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    @property
    def ids(self) -> list[object]:
        return [row[0] for row in self.execute("SELECT id FROM outbox ORDER BY id")]

    def passed(self) -> LsnPosition:
        """A position behind all rows."""
        with PgConnection(self.options.conninfo, replication=True, timeout=30) as stream:
            server = catalog.identify(stream)
        ((now,),) = self.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text")
        log = LogIdentity(server.system_id, server.timeline, server.database, "slot", "public.outbox", "")
        return LsnPosition(log, server.lsn, 0, table_read=TableRead(f"{now}:{now}:"))

    @contextmanager
    def outbox(self) -> Iterator[PostgresArchiveOutbox]:
        outbox = PostgresArchiveOutbox(self.options, "orders")
        try:
            yield outbox
        finally:
            outbox.close()

    def archiving(
        self,
        outbox: PostgresArchiveOutbox,
        start: LsnPosition | None = None,
        *,
        before_ms: int = BEFORE_MS,
        keep: bool = False,
        held: RowSet | None = None,
    ) -> ArchiveRun:
        repository = ArchiveRepository(ObjectStore(f"file://{self._folder}", {}, "orders"), "orders", "public.outbox")
        return ArchiveRun(
            repository,
            outbox,
            held or set(),
            lambda row: ("0/1A:2", 1) if row.values[0] != b"7" else ("", 0),
            start=start or self.passed(),
            before_ms=before_ms,
            keep=keep,
        )

    def archive(
        self,
        start: LsnPosition | None = None,
        *,
        before_ms: int = BEFORE_MS,
        keep: bool = False,
        dry_run: bool = False,
    ) -> ArchiveReport:
        with self.outbox() as outbox:
            archiving = self.archiving(outbox, start, before_ms=before_ms, keep=keep)
            return archiving.look() if dry_run else archiving.run()


@pytest.fixture
def table(database: str, tmp_path: Path) -> Table:
    return Table(database, tmp_path)


def test_a_column_added_while_archiving_is_refused(table: Table) -> None:
    """The new column is filled before the rows are deleted, and is in no file."""
    with table.outbox() as outbox:
        archiving = table.archiving(outbox)
        table.archive(keep=True)
        table.execute("ALTER TABLE outbox ADD COLUMN note text")
        table.execute("UPDATE outbox SET note = 'of later' WHERE id = 3")
        archiving = table.archiving(outbox)
        with pytest.raises(LayoutMismatch, match="changed meanwhile"):
            archiving.run()
    assert len(table.ids) == ROWS
    result = table.archive()
    assert (result.finished, result.changed) == (ROWS - 1, 1)
    assert table.ids == [3]


def test_a_row_that_is_too_large_to_be_sent_stays(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's limit is 1 GB; this test uses a lower one."""
    monkeypatch.setattr(table_sql, "LIMIT", 1000)
    table.execute("ALTER TABLE outbox ALTER payload TYPE text")
    table.execute("UPDATE outbox SET payload = repeat('a', 2000) WHERE id = 3")
    assert sum(entry.rows for entry in table.archive().files) == ROWS - 1
    assert table.ids == [3]


@pytest.mark.parametrize("partitioned", [False, True])
def test_rows_that_were_put_back_are_new(table: Table, partitioned: bool) -> None:
    """Identical to the file, but put back: the pipeline has not passed it yet."""
    if partitioned:
        table.execute("ALTER TABLE outbox RENAME TO plain")
        table.execute("CREATE TABLE outbox (LIKE plain, PRIMARY KEY (id)) PARTITION BY RANGE (id)")
        for first, last in ((0, 5), (5, 100)):
            bounds = f"FROM ({first}) TO ({last})"
            table.execute(f"CREATE TABLE outbox_{first} PARTITION OF outbox FOR VALUES {bounds}")
        table.execute("INSERT INTO outbox SELECT * FROM plain")
    start = table.passed()
    assert table.archive(start).deleted == ROWS
    table.put(4, 6)
    result = table.archive(start, dry_run=True)
    assert (result.finished, result.later) == (0, 3)
    result = table.archive(start)
    assert (result.finished, result.later, result.changed) == (0, 3, 0)
    assert table.ids == [4, 5, 6]
    assert table.archive().finished == 3
    assert table.ids == []


def test_kept_rows_are_deleted_up_to_the_time_of_the_later_run(table: Table) -> None:
    """A later run deletes rows that were kept, but only up to its own --before."""
    assert table.archive(keep=True).rows == ROWS
    table.execute("UPDATE outbox SET payload = '{\"a\": 1}' WHERE id = 2")
    result = table.archive(before_ms=8000, dry_run=True)
    assert (result.rows, result.finished, result.changed, result.archived_before) == (0, 6, 1, 1)
    result = table.archive(before_ms=8000, dry_run=True, keep=True)
    assert (result.finished, result.archived_before) == (0, 7)
    assert len(table.ids) == ROWS
    result = table.archive(before_ms=8000)
    assert (result.finished, result.changed, result.archived_before) == (6, 1, 1)
    assert table.ids == [2, *range(8, ROWS + 1)]


def test_rows_that_the_database_refuses_to_delete_stay(table: Table) -> None:
    """Another table refers to a row, immediately or deferred, or a trigger raises: the other rows are deleted."""
    table.execute("CREATE TABLE attempts (event int REFERENCES outbox)")
    table.execute("INSERT INTO attempts VALUES (5)")
    table.execute("CREATE TABLE audits (event int REFERENCES outbox DEFERRABLE INITIALLY DEFERRED)")
    table.execute("INSERT INTO audits VALUES (11), (12)")
    table.execute(
        "CREATE FUNCTION objects() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'row % must stay', OLD.id; END $$"
    )
    table.execute(
        "CREATE TRIGGER objects BEFORE DELETE ON outbox FOR EACH ROW WHEN (OLD.id = 20) EXECUTE FUNCTION objects()"
    )
    result = table.archive()
    assert (result.rows, result.deleted, result.refused) == (ROWS, ROWS - 4, 4)
    assert table.ids == [5, 11, 12, 20]
    table.execute("DELETE FROM attempts")
    result = table.archive()
    assert (result.rows, result.finished, result.refused, result.archived_before) == (0, 1, 3, 3)


def test_rows_without_a_record_are_counted(table: Table) -> None:
    assert table.archive(dry_run=True).unplaced == 1
    assert table.archive().unplaced == 1


def test_rows_with_infinite_times_stay(table: Table) -> None:
    table.execute("UPDATE outbox SET created_at = '-infinity' WHERE id = 1")
    table.execute("UPDATE outbox SET created_at = 'infinity' WHERE id = 2")
    assert table.archive(keep=True).rows == ROWS - 2
    result = table.archive()
    assert (result.rows, result.finished) == (0, ROWS - 2)
    assert table.ids == [1, 2]
    assert table.archive().rows == 0
    # They do not prevent a read of the whole table either.
    source = TableRescan(table.options)
    source.open(table.passed(), lambda _: None)
    assert len(source.read(10, 1 << 20, 0).rows) == 2
    source.close()


@pytest.mark.parametrize("version", ["16", "18"])
def test_a_server_that_ends_idle_sessions(version: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """While files are uploaded, the session that reads the table is idle in its transaction."""
    server: PostgresServer = request.getfixturevalue("postgres" if version == "16" else "postgres18")
    name = f"idle_{uuid.uuid4().hex[:12]}"
    table = Table(server.create_database(name), tmp_path)
    limits = ["idle_in_transaction_session_timeout", "idle_session_timeout"]
    for limit in [*limits, "transaction_timeout"] if version == "18" else limits:
        table.execute(f"ALTER DATABASE {name} SET {limit} = '1s'")
    with table.outbox() as outbox, server.connect() as looking:
        rows = outbox.candidates(table.passed(), BEFORE_MS)
        next(rows)

        def idle() -> bool:
            found = looking.execute(
                "SELECT bool_and(clock_timestamp() - state_change > interval '1500 ms') FROM pg_stat_activity "
                "WHERE datname = %s AND application_name = 'tailrace'",
                (name,),
            ).fetchone()
            return found is None or found[0] is not False

        wait_until(idle, 30, what="sessions that are idle, or gone")
        assert len(list(rows)) == ROWS - 1
        assert outbox.counts([]) == {}
    with server.connect() as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')  # type: ignore[call-overload]


class PinsNothing:
    """Pins no row, but decodes each as the pipeline would."""

    def __init__(self, column: str) -> None:
        self._layout = Layout(ColumnMap(id="id", type="id", aggregate=None, key="id", payload=column))

    def __contains__(self, row: Row) -> bool:
        self._layout.read(row)
        return False


def test_a_column_that_was_renamed_since(table: Table) -> None:
    """Rows that were kept and changed stay and are reported; the run continues."""
    assert table.archive(keep=True).rows == ROWS
    table.execute("ALTER TABLE outbox RENAME COLUMN payload TO body")
    table.put(ROWS + 1, ROWS + 1)
    with table.outbox() as outbox:
        result = table.archiving(outbox, held=PinsNothing("body")).run()
    assert (result.rows, result.deleted, result.finished, result.changed) == (1, 1, 0, ROWS)
    table.execute("ALTER TABLE outbox RENAME COLUMN id TO event")
    table.options = replace(table.options, order_by=("event",))
    with pytest.raises(LayoutMismatch, match=r"rows/00000001-\w+\.parquet: .* has no column 'event'"):
        table.archive()
