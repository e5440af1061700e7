"""The Postgres store: the store contract, connections, schemas, and errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from helpers.store_contract import StoreContract
from helpers.store_scenarios import P0, P1, Boom, Stores, again, in_loop, mark, marker, opened, still_waits
from tailrace.errors import AccessRefused, ConfigError, ProjectionError, StoreUnavailable, TransactionEnded
from tailrace.projections.core.store import EntityState, Partition
from tailrace.projections.postgres.effects import PostgresEffects
from tailrace.projections.postgres.store import PostgresStore
from tailrace.sql_names import quote, quote_table
from tailrace.testkit.stack import wait_until
from tailrace.testkit.stack.ports import free_port

THINGS = "CREATE TABLE IF NOT EXISTS things (key text PRIMARY KEY, value text NOT NULL)"
OURS = """
    SELECT pid, wait_event FROM pg_stat_activity
    WHERE application_name LIKE 'tailrace %' AND datname = current_database()
"""
KIT = {"tailrace_offsets", "tailrace_markers", "tailrace_entities", "tailrace_waiting", "tailrace_horizon"}


class PostgresStores:
    def __init__(self, dsn: str, schema: str = "", tables: str = THINGS) -> None:
        self.dsn = dsn
        self.schema = schema
        self.tables = tables

    def new(self) -> PostgresStore:
        return PostgresStore(self.dsn, schema=self.schema, tables=self.tables)

    def write(self, effects: PostgresEffects, key: str, value: str) -> None:
        effects.upsert("things", {"key": key}, {"value": value})

    async def written(self) -> dict[str, str]:
        table = quote_table(f"{quote(self.schema or 'public')}.things")
        return dict(self.ask(f"SELECT key, value FROM {table}"))

    async def cut(self) -> None:
        self.ask(f"SELECT pg_terminate_backend(pid) FROM ({OURS}) AS ours")

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def stores(database: str) -> PostgresStores:
    return PostgresStores(database)


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def stores(self, database: str) -> Stores:
        return PostgresStores(database, schema='Read "Models"')


def tables_of(stores: PostgresStores, schema: str) -> set[str]:
    return {name for (name,) in stores.ask(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'")}


@in_loop
async def test_a_schema_holds_all_tables_and_public_is_still_readable(database: str) -> None:
    stores = PostgresStores(database, schema="views")
    stores.ask("CREATE TABLE public.rates (currency text); INSERT INTO rates VALUES ('EUR')")
    async with opened(stores) as store, store.transaction(P0) as transaction:
        assert await transaction.effects.fetch_one("SELECT currency FROM rates") == {"currency": "EUR"}
    assert tables_of(stores, "views") == KIT | {"things"}
    assert tables_of(stores, "public") == {"rates"}


@in_loop
async def test_a_schema_is_swapped_under_a_running_worker(database: str) -> None:
    stores, rebuilt = PostgresStores(database, schema="views"), PostgresStores(database, schema="views_new")
    async with opened(stores) as store:
        for offset in range(12):  # until its statements are prepared
            async with store.transaction(P0) as transaction:
                await transaction.position()
                stores.write(transaction.effects, "old", str(offset))
                await transaction.advance(offset)
        async with opened(rebuilt) as other, other.transaction(P0) as transaction:
            await transaction.position()
            rebuilt.write(transaction.effects, "new", "a")
            await transaction.advance(1000)
        stores.ask("BEGIN; ALTER SCHEMA views RENAME TO views_old; ALTER SCHEMA views_new RENAME TO views; COMMIT")
        async with store.transaction(P0) as transaction:
            assert await transaction.position() == 1000
            stores.write(transaction.effects, "newer", "b")
        assert await stores.written() == {"new": "a", "newer": "b"}


@in_loop
async def test_a_superseded_rebuild_writes_to_no_other_schema(database: str) -> None:
    """Its schema is gone, and the next one in the search path has tables of the same names."""

    async def caught_up(positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
        return positions

    public = PostgresStores(database)
    old = PostgresStore(database, schema="shop", tables=THINGS)
    new = old.shadow()
    async with opened(public):
        await new.open("orders")
        async with new.transaction(P0) as transaction:
            await transaction.position()
            await transaction.advance(1)
        assert await old.swap("orders", caught_up)
        for partition in (P0, P1):
            with pytest.raises(ProjectionError, match="shop__next") as caught:
                async with new.transaction(partition) as transaction:
                    await transaction.position()
            assert not new.is_transient(caught.value)
        await new.close()
    assert public.ask("SELECT * FROM tailrace_offsets") == []
    assert public.ask("SELECT next_offset FROM shop.tailrace_offsets") == [(1,)]


@in_loop
async def test_many_workers_open_at_once(database: str) -> None:
    stores = PostgresStores(database, "views", f"{THINGS}; CREATE TABLE IF NOT EXISTS more ()")
    workers = [stores.new() for _ in range(8)]
    try:
        await asyncio.gather(*(worker.open("orders") for worker in workers))
    finally:
        await asyncio.gather(*(worker.close() for worker in workers))
    assert tables_of(stores, "views") == KIT | {"things", "more"}


@in_loop
async def test_a_role_without_create_uses_existing_tables(database: str) -> None:
    owner = PostgresStores(database, schema="views")
    role = database.split("dbname=")[1].split(maxsplit=1)[0]
    async with opened(owner):
        pass
    owner.ask(f"""
        CREATE ROLE {role} LOGIN PASSWORD 'secret-word'; GRANT USAGE ON SCHEMA views TO {role};
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA views TO {role}""")
    try:
        limited = make_conninfo(database, user=role, password="secret-word")
        async with opened(PostgresStores(limited, schema="views", tables="")) as store:
            assert await mark(store, marker("a")) == {"a"}
        with pytest.raises(AccessRefused, match="permission denied") as caught:
            await PostgresStore(limited, schema="elsewhere").open("orders")
        assert "secret-word" not in str(caught.value)
    finally:
        owner.ask(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def commits_itself(store: PostgresStore) -> None:
    async with store.transaction(P0) as transaction:
        await transaction.position()
        await transaction.advance(8)
        with contextlib.suppress(psycopg.Error):
            await transaction.effects.execute("COMMIT AND CHAIN")


@in_loop
async def test_tables_of_an_earlier_version_are_upgraded(database: str) -> None:
    owner = PostgresStores(database, schema="views")
    role = database.split("dbname=")[1].split(maxsplit=1)[0]
    async with opened(owner) as store, store.transaction(P0) as transaction:
        await transaction.position()
        await transaction.advance(7)
    owner.ask("ALTER TABLE views.tailrace_offsets DROP COLUMN unfinished")
    owner.ask(f"""
        CREATE ROLE {role} LOGIN PASSWORD 'secret-word'; GRANT USAGE ON SCHEMA views TO {role};
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA views TO {role}""")
    try:
        limited = make_conninfo(database, user=role, password="secret-word")
        with pytest.raises(AccessRefused, match="of an earlier version") as caught:
            await PostgresStore(limited, schema="views").open("orders")
        # The statement of the remedy upgrades the table, and so does a start as the owner.
        for do in (lambda: owner.ask(caught.value.remedy.split(": ", 1)[1]), lambda: None):
            do()
            async with opened(owner) as store:
                async with store.transaction(P0) as transaction:
                    assert await transaction.position() == 7
                    await transaction.advance(7)
                with pytest.raises(TransactionEnded):
                    await commits_itself(store)
                assert await store.positions() == {P0: 7}
            async with opened(PostgresStores(limited, schema="views", tables="")) as store:
                assert await store.positions() == {P0: 7}
            owner.ask("ALTER TABLE views.tailrace_offsets DROP CONSTRAINT tailrace_no_commit_by_handlers")
    finally:
        owner.ask(f"DROP OWNED BY {role}; DROP ROLE {role}")


@in_loop
async def test_errors_on_open_have_a_remedy_and_show_no_secret(database: str) -> None:
    cases: list[tuple[str, str, type[Exception]]] = [
        (make_conninfo(database, password="secret-word"), "", AccessRefused),
        (make_conninfo(database, dbname="nowhere"), "", AccessRefused),
        (make_conninfo(database, port=free_port(), password="secret-word"), "", StoreUnavailable),
        ("postgresql://me:secret-word%zz@localhost/x", "", ConfigError),
        ("host=localhost secret-word", "", ConfigError),
        (database, "CREATE TABEL x ()", ConfigError),
    ]
    for dsn, tables, kind in cases:
        store = PostgresStore(dsn, tables=tables)
        with pytest.raises(kind) as caught:
            await store.open("orders")
        assert "secret-word" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert store.is_transient(caught.value) == (kind is StoreUnavailable)
        await store.close()


@in_loop
async def test_sessions_are_durable_bounded_and_named(database: str) -> None:
    eager = make_conninfo(
        database, options="-c synchronous_commit=off -c default_transaction_isolation=serializable -c lock_timeout=7s"
    )
    async with opened(PostgresStores(eager), "my orders") as store, store.transaction(P0) as transaction:
        for setting, value in {
            "synchronous_commit": "on",
            "transaction_isolation": "read committed",
            "lock_timeout": "7s",
            "idle_in_transaction_session_timeout": "5min",
            "application_name": "tailrace my orders",
        }.items():
            assert await transaction.effects.fetch_one("SELECT current_setting(%s) AS it", [setting]) == {"it": value}


@in_loop
async def test_a_killed_backend_is_a_transient_error(stores: PostgresStores) -> None:
    async def work() -> None:
        async with store.transaction(P0) as transaction:
            await transaction.position()
            await transaction.advance(5)
            stores.write(transaction.effects, "row", "lost")
            await transaction.effects.execute("SELECT pg_sleep(600)")

    async with opened(stores) as store:
        task = asyncio.create_task(work())
        sleeping = f"{OURS} AND wait_event = 'PgSleep'"
        await asyncio.to_thread(wait_until, lambda: bool(stores.ask(sleeping)), 60, what="the statement")
        await stores.cut()
        with pytest.raises(psycopg.OperationalError) as caught:
            await task
        assert store.is_transient(caught.value)
        assert await store.positions() == {}
        assert await stores.written() == {}


@in_loop
async def test_after_a_transient_error_no_old_session_is_used(stores: PostgresStores) -> None:
    together = asyncio.Barrier(4)

    async def work(number: int) -> None:
        async with store.transaction(Partition("orders", number)) as transaction:
            await transaction.position()
            await together.wait()

    async with opened(stores) as store:
        await asyncio.gather(*(work(number) for number in range(4)))
        await stores.cut()
        with pytest.raises(psycopg.OperationalError) as caught:
            await mark(store, marker("a"))
        assert store.is_transient(caught.value)
        await asyncio.gather(*(work(number) for number in range(4)))


@in_loop
async def test_there_are_as_many_sessions_as_concurrent_transactions(stores: PostgresStores) -> None:
    async with opened(stores) as store:
        for number in range(20):
            await mark(store, marker(str(number)), partition=Partition("orders", number))
        assert len(stores.ask(OURS)) == 1


@in_loop
async def test_a_deadlock_is_solved_by_a_retry(stores: PostgresStores) -> None:
    together = asyncio.Barrier(2)
    met: set[Partition] = set()

    async def work(partition: Partition, *keys: str) -> None:
        async with store.transaction(partition) as transaction:
            await transaction.position()
            for key in keys:
                await transaction.effects.execute("UPDATE things SET value = value || 'x' WHERE key = %s", [key])
                if partition not in met:
                    met.add(partition)
                    await together.wait()

    async with opened(stores) as store:
        stores.ask("INSERT INTO things VALUES ('a', ''), ('b', '')")
        await asyncio.gather(
            again(store, lambda: work(P0, "a", "b")),
            again(store, lambda: work(P1, "b", "a")),
        )
        assert await stores.written() == {"a": "xx", "b": "xx"}


@pytest.mark.parametrize(
    ("make", "transient"),
    [
        (psycopg.errors.SerializationFailure, True),
        (psycopg.errors.LockNotAvailable, True),
        (psycopg.errors.CrashShutdown, True),
        (psycopg.errors.TooManyConnections, True),
        (psycopg.errors.ReadOnlySqlTransaction, True),
        (psycopg.errors.ConnectionTimeout, True),
        (psycopg.errors.UniqueViolation, False),
        (psycopg.errors.NumericValueOutOfRange, False),
        (psycopg.errors.UndefinedTable, False),
        (psycopg.errors.QueryCanceled, False),
        (psycopg.errors.InFailedSqlTransaction, False),
    ],
)
def test_which_errors_are_transient(make: Callable[[str], Exception], transient: bool) -> None:
    assert PostgresStore("").is_transient(make("it failed")) is transient


@in_loop
async def test_a_transaction_whose_handler_ignored_an_error_is_not_committed(stores: PostgresStores) -> None:
    async with opened(stores) as store:
        with pytest.raises(psycopg.errors.InFailedSqlTransaction, match="ignored an error") as caught:  # noqa: PT012
            async with store.transaction(P0) as transaction:
                await transaction.position()
                await transaction.advance(1)
                with pytest.raises(psycopg.errors.DivisionByZero):
                    await transaction.effects.execute("SELECT 1 / 0")
        assert not store.is_transient(caught.value)
        assert await store.positions() == {}


@in_loop
async def test_a_handler_cannot_end_the_transaction(stores: PostgresStores) -> None:
    async with opened(stores) as store:
        with pytest.raises(psycopg.ProgrammingError, match="forbidden"):  # noqa: PT012
            async with store.transaction(P0) as transaction:
                await transaction.position()
                await transaction.advance(1)
                await (await transaction.effects.connection()).commit()
        with pytest.raises(RuntimeError, match="rolled"):  # noqa: PT012
            async with store.transaction(P0) as transaction:
                await transaction.position()
                await transaction.advance(1)
                raise psycopg.Rollback
        assert await store.positions() == {}


@in_loop
async def test_a_constraint_that_is_checked_at_commit(database: str) -> None:
    late = "value text REFERENCES things DEFERRABLE INITIALLY DEFERRED"
    stores = PostgresStores(database, tables=f"CREATE TABLE IF NOT EXISTS things (key text PRIMARY KEY, {late})")
    async with opened(stores) as store:
        with pytest.raises(psycopg.errors.ForeignKeyViolation):  # noqa: PT012
            async with store.transaction(P0) as transaction:
                await transaction.position()
                await transaction.advance(1)
                stores.write(transaction.effects, "a", "nobody")
                await transaction.flush()
        assert await store.positions() == {}


@in_loop
async def test_an_entity_in_two_partitions_has_one_writer_at_a_time(stores: PostgresStores) -> None:
    async def late() -> dict[str, EntityState]:
        async with store.transaction(P1) as transaction:
            await transaction.position()
            return await transaction.entities(["o-1"])

    async with opened(stores) as store:
        async with store.transaction(P0) as transaction:
            await transaction.save_entities({"o-1": EntityState(1, deleted=False)})
        async with store.transaction(P0) as transaction:
            await transaction.position()
            await transaction.entities(["o-1"])
            task = asyncio.create_task(late())
            assert await still_waits(task)
            await transaction.save_entities({"o-1": EntityState(2, deleted=False)})
        assert await task == {"o-1": EntityState(2, deleted=False)}


@in_loop
async def test_pruning_does_not_wait_for_a_transaction_nor_delete_its_markers(stores: PostgresStores) -> None:
    async with opened(stores) as store:
        await mark(store, marker("a", 10), marker("b", 10))
        with pytest.raises(Boom):  # noqa: PT012
            async with store.transaction(P0) as transaction:
                await transaction.position()
                assert await transaction.mark([marker("a", 10), marker("c", 10)]) == {"c"}
                assert await store.prune(100, 10) == 1
                assert await transaction.horizon() == 100
                raise Boom
        assert await mark(store, marker("a", 10), marker("b", 10)) == {"b"}
