"""The inbox on Postgres with every driver: a marker is committed with the effects of its event, or neither is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import django.db.transaction
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from helpers.inbox_blocks import once
from helpers.outbox_drivers import (
    POSTGRES_CLIENTS,
    AsyncSqlAlchemySession,
    Django,
    PostgresClient,
    Psycopg,
    RollBack,
    SqlAlchemySession,
    resolved,
    rolled_back,
)
from tailrace.errors import ConfigError, InboxUnfit, MarkerInvalid, NotInTransaction, TransactionEnded
from tailrace.inbox import Inbox
from tailrace.testkit.stack import PostgresServer, wait_until

EFFECT = "INSERT INTO effects (event) VALUES ('{}')"
SOON = timedelta(microseconds=1)


@pytest.fixture(scope="module")
def dsn(postgres: PostgresServer) -> Iterator[str]:
    """A database for all tests of this file; each has its own events."""
    name = "test_inbox"
    found = postgres.create_database(name)
    with psycopg.connect(found) as connection:
        connection.execute("CREATE TABLE effects (id serial PRIMARY KEY, event text NOT NULL)")
        Inbox().create(connection)
    yield found
    with postgres.connect() as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def event() -> str:
    return str(uuid4())


def stored(dsn: str, event: str) -> tuple[int, int]:
    """Returns how many markers and effects an event has."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT (SELECT count(*) FROM processed_events WHERE event_id = %(event)s),"
            " (SELECT count(*) FROM effects WHERE event = %(event)s)",
            {"event": event},
        ).fetchone()
    assert row
    return row[0], row[1]


def is_waiting(dsn: str) -> bool:
    """Returns whether a session waits for the transaction of another one."""
    with psycopg.connect(dsn) as connection:
        return bool(
            connection.execute(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ).fetchall()
        )


every_driver = pytest.mark.parametrize("kind", POSTGRES_CLIENTS, ids=lambda kind: kind.__name__)


@every_driver
def test_marker_and_effects_share_their_fate(kind: type[PostgresClient], dsn: str, event: str) -> None:
    async def test() -> None:
        service, inbox = kind(dsn), Inbox()

        async def apply(handle: Any) -> bool:
            async with once(inbox, service.is_async, handle, event, entity_id="o-1", entity_version=7) as first:
                if first:
                    await service.sql(handle, EFFECT.format(event))
            return first

        assert await rolled_back(service.transaction(), apply) is True
        assert stored(dsn, event) == (0, 0)
        async with service.transaction() as handle:
            assert await apply(handle) is True
            assert await apply(handle) is False  # in the same transaction
        async with service.transaction() as handle:
            assert await apply(handle) is False
            async with once(inbox, service.is_async, handle, event, "another group") as first:
                assert first is True
        assert stored(dsn, event) == (2, 1)
        await service.close()

    asyncio.run(test())
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT consumer_group, entity_id, entity_version, processed_at BETWEEN now() - interval '1 min' AND now() "
            "FROM processed_events WHERE event_id = %s ORDER BY consumer_group DESC",
            [event],
        ).fetchall()
    assert found == [("g", "o-1", 7, True), ("another group", None, None, True)]


@every_driver
def test_an_error_that_the_caller_swallows_leaves_neither(kind: type[PostgresClient], dsn: str, event: str) -> None:
    """The savepoint is rolled back; what the transaction did before and after it is committed."""

    async def test() -> None:
        service, inbox = kind(dsn), Inbox()

        async def fail(handle: Any, statement: str) -> None:
            async with once(inbox, service.is_async, handle, event) as first:
                assert first
                await service.sql(handle, EFFECT.format(event))
                await service.sql(handle, statement)
                raise RuntimeError("own error")

        async with service.transaction() as handle:
            await service.sql(handle, EFFECT.format(f"{event} before"))
            for statement in (EFFECT.format(event), "SELECT 1 / 0"):  # an error of ours, and one of the database
                with pytest.raises(Exception, match=r"own error|division by zero"):
                    await fail(handle, statement)
            await service.sql(handle, EFFECT.format(f"{event} after"))
        assert stored(dsn, event) == (0, 0)
        assert stored(dsn, f"{event} before") == stored(dsn, f"{event} after") == (0, 1)
        async with service.transaction() as handle, once(inbox, service.is_async, handle, event) as first:
            assert first
        await service.close()

    asyncio.run(test())


@every_driver
def test_autocommit_is_refused(kind: type[PostgresClient], dsn: str, event: str) -> None:
    async def test() -> None:
        service, inbox = kind(dsn), Inbox()
        async with service.autocommit() as handle:
            for _ in range(2):
                with pytest.raises(NotInTransaction, match="not marked") as refused:
                    async with once(inbox, service.is_async, handle, event):
                        pytest.fail("the body must not run")
                assert refused.value.remedy
        assert stored(dsn, event) == (0, 0)
        await service.close()

    asyncio.run(test())


@pytest.mark.parametrize("kind", [SqlAlchemySession, AsyncSqlAlchemySession])
def test_autocommit_of_a_session_that_has_begun_is_refused(kind: type[SqlAlchemySession], dsn: str, event: str) -> None:
    async def test() -> None:
        service, inbox = kind(dsn), Inbox()
        async with service.autocommit() as session:
            await service.sql(session, "SELECT 1")
            with pytest.raises(NotInTransaction):
                async with once(inbox, service.is_async, session, event):
                    pytest.fail("the body must not run")
        assert stored(dsn, event) == (0, 0)
        await service.close()

    asyncio.run(test())


def test_a_session_that_does_not_begin_by_itself_is_refused(dsn: str, event: str) -> None:
    service = SqlAlchemySession(dsn)
    with Session(service.engine, autobegin=False) as session:
        with pytest.raises(NotInTransaction), Inbox().once(session, event, "g"):
            pytest.fail("the body must not run")
        with session.begin(), Inbox().once(session, event, "g") as first:
            assert first
    assert stored(dsn, event) == (1, 0)
    service.engine.dispose()


@every_driver
def test_an_aborted_transaction_is_refused(kind: type[PostgresClient], dsn: str, event: str) -> None:
    async def test() -> None:
        service, inbox = kind(dsn), Inbox()

        async def work(handle: Any) -> None:
            with pytest.raises(Exception, match="division by zero"):
                await service.sql(handle, "SELECT 1 / 0")
            with pytest.raises(NotInTransaction):
                async with once(inbox, service.is_async, handle, event):
                    pytest.fail("the body must not run")

        await rolled_back(service.transaction(), work)
        await service.close()

    asyncio.run(test())


@every_driver
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_a_second_consumer_waits_for_the_first(kind: type[PostgresClient], commits: bool, dsn: str, event: str) -> None:
    """It sees first == False if the first one commits, and True if that rolls back."""
    seen: list[bool] = []

    def second() -> None:
        with psycopg.connect(dsn) as connection, Inbox().once(connection, event, "g") as first:
            seen.append(first)
            if first:
                connection.execute("INSERT INTO effects (event) VALUES (%s)", [event])

    async def test() -> None:
        service, inbox = kind(dsn), Inbox()
        other = threading.Thread(target=second)
        try:
            async with service.transaction() as handle:
                async with once(inbox, service.is_async, handle, event) as first:
                    assert first
                    await service.sql(handle, EFFECT.format(event))
                other.start()
                wait_until(lambda: is_waiting(dsn), 20, what="the second consumer to wait")
                assert seen == []
                if not commits:
                    raise RollBack
        except RollBack:
            pass
        other.join(20)
        assert seen == [not commits]
        assert stored(dsn, event) == (1, 1)
        await service.close()

    asyncio.run(test())


def test_consumers_with_several_events_in_different_orders(dsn: str, event: str) -> None:
    """They would wait for each other: Postgres ends one of them, and the other one goes on."""
    barrier = threading.Barrier(2)

    def process(events: list[str]) -> str:
        with psycopg.connect(dsn) as connection:
            try:
                for number, each in enumerate(events):
                    with Inbox().once(connection, each, "g"):
                        connection.execute("INSERT INTO effects (event) VALUES (%s)", [each])
                    if number == 0:
                        barrier.wait(20)
            except psycopg.errors.DeadlockDetected:
                connection.rollback()
                return "deadlock"
            return "done"

    events = [f"{event} 1", f"{event} 2"]
    with ThreadPoolExecutor(2) as consumers:
        assert sorted(consumers.map(process, [events, events[::-1]])) == ["deadlock", "done"]
    assert [stored(dsn, each) for each in events] == [(1, 1), (1, 1)]


def test_the_privileges_that_a_consumer_needs(dsn: str, event: str) -> None:
    with psycopg.connect(dsn) as connection:
        role = f"consumer_{uuid4().hex[:8]}"
        connection.execute(f"CREATE ROLE {role}")
        connection.execute(f"GRANT SELECT, INSERT ON processed_events TO {role}")
        connection.execute(f"SET LOCAL ROLE {role}")
        for expected in (True, False):
            with Inbox().once(connection, event, "g") as first:
                assert first is expected
        with pytest.raises(RollBack), Inbox().once(connection, f"{event} 2", "g"):
            raise RollBack
        with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
            Inbox().prune(connection, older_than=timedelta(days=1))
        connection.rollback()


def test_a_consumer_does_not_wait_longer_than_it_wants(dsn: str, event: str) -> None:
    """With lock_timeout, the caller may go on with other events in the same transaction."""
    inbox = Inbox()
    with psycopg.connect(dsn) as one, psycopg.connect(dsn) as other:
        with inbox.once(one, event, "g"):
            pass
        other.execute("SET LOCAL lock_timeout = '20ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable), inbox.once(other, event, "g"):
            pytest.fail("the body must not run")
        with inbox.once(other, f"{event} next", "g") as first:
            assert first
    assert stored(dsn, event) == stored(dsn, f"{event} next") == (1, 0)


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_strict_isolation_level_asks_for_another_attempt(isolation: str, dsn: str, event: str) -> None:
    """The marker of a transaction that was committed after the snapshot is a serialization failure."""
    inbox = Inbox()
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = getattr(psycopg.IsolationLevel, isolation.replace(" ", "_"))
        for attempt in range(2):
            try:
                connection.execute("SELECT count(*) FROM effects")
                if attempt == 0:
                    with psycopg.connect(dsn) as other, inbox.once(other, event, "g"):
                        pass
                with inbox.once(connection, event, "g") as first:
                    assert (attempt, first) == (1, False)
            except psycopg.errors.SerializationFailure:
                assert attempt == 0
                connection.rollback()


@every_driver
@pytest.mark.parametrize("then_raises", [False, True], ids=["", "and raises"])
def test_a_body_that_commits_is_reported(kind: type[PostgresClient], then_raises: bool, dsn: str, event: str) -> None:
    async def test() -> None:
        service, inbox = kind(dsn), Inbox()
        reported = False

        async def commit(handle: Any) -> None:
            async with once(inbox, service.is_async, handle, event):
                await resolved(handle.commit() if "SqlAlchemy" in kind.__name__ else service.sql(handle, "COMMIT"))
                if then_raises:
                    raise RuntimeError("own error")

        # The driver's own block, whose transaction is gone, may raise as well.
        with suppress(Exception):
            async with service.transaction() as handle:
                with pytest.raises(TransactionEnded):
                    await commit(handle)
                reported = True
        assert reported
        with suppress(Exception):
            await service.close()

    asyncio.run(test())


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_psycopg_refuses_the_end_of_the_transaction_in_the_body(end: str, dsn: str, event: str) -> None:
    refused = pytest.raises(psycopg.ProgrammingError, match="forbidden")
    with psycopg.connect(dsn) as connection, refused, Inbox().once(connection, event, "g"):
        getattr(connection, end)()
    assert stored(dsn, event) == (0, 0)


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effects"
    id: Mapped[int] = mapped_column(primary_key=True)
    event: Mapped[str]


def test_objects_of_a_session(dsn: str, event: str) -> None:
    """A failed body takes its objects out of the session, so that nothing of them is flushed later."""
    service, inbox = SqlAlchemySession(dsn), Inbox()

    def fail(value: str | None, error: Exception) -> None:
        with inbox.once(session, event, "g"):
            session.add(Effect(event=event))
            session.flush()
            session.add(Effect(event=value))
            session.flush()
            session.add(Effect(event=event))
            raise error

    with Session(service.engine) as session, session.begin():
        session.add(Effect(event=f"{event} before"))
        with pytest.raises(RollBack):
            fail(event, RollBack())
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            fail(None, RollBack())
        with inbox.once(session, f"{event} after", "g") as first:
            assert first
            session.add(Effect(event=f"{event} after"))
    assert stored(dsn, event) == (0, 0)
    assert stored(dsn, f"{event} before") == (0, 1)
    assert stored(dsn, f"{event} after") == (1, 1)
    service.engine.dispose()


def test_a_scoped_session(dsn: str, event: str) -> None:
    service = SqlAlchemySession(dsn)
    session = sqlalchemy.orm.scoped_session(sqlalchemy.orm.sessionmaker(service.engine))
    Inbox("scoped").create(session)
    with Inbox().once(session, event, "g") as first:
        assert first
    session.commit()
    session.remove()
    service.engine.dispose()
    assert stored(dsn, event) == (1, 0)


def test_the_connection_of_another_thread_is_refused_by_django(dsn: str, event: str) -> None:
    async def test() -> None:
        service = Django(dsn)
        async with service.transaction() as connection:
            copy = connection.copy()
            copy.set_autocommit(False)
            with pytest.raises(ConfigError, match="not the one"), Inbox().once(copy, event, "g"):
                pytest.fail("the body must not run")
            copy.close()
        await service.close()

    asyncio.run(test())


def test_with_and_async_with_are_told_apart(dsn: str, event: str) -> None:
    async def test() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            with pytest.raises(ConfigError, match="does not fit"), Inbox().once(connection, event, "g"):
                pass
        with psycopg.connect(dsn) as blocking, pytest.raises(ConfigError, match="does not fit"):
            async with Inbox().once(blocking, event, "g"):
                pass

    asyncio.run(test())


def test_a_cancelled_task_leaves_no_marker(dsn: str, event: str) -> None:
    """A caller that catches the timeout and commits has neither marker nor effects."""

    async def hang(connection: psycopg.AsyncConnection[Any]) -> None:
        async with Inbox().once(connection, event, "g") as first:
            assert first
            await connection.execute(EFFECT.format(event))
            await asyncio.Event().wait()

    async def test() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await connection.execute(EFFECT.format(f"{event} before"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(hang(connection), 0.05)
            await connection.commit()

    asyncio.run(test())
    assert stored(dsn, event) == (0, 0)
    assert stored(dsn, f"{event} before") == (0, 1)


@pytest.mark.parametrize("kind", [kind for kind in POSTGRES_CLIENTS if kind.is_async], ids=lambda kind: kind.__name__)
def test_a_task_that_is_cancelled_while_it_waits_for_another_consumer(
    kind: type[PostgresClient], dsn: str, event: str
) -> None:
    """It leaves no marker. The caller may go on in its transaction, which SQLAlchemy has given up with the task."""
    goes_on = "SqlAlchemy" not in kind.__name__

    async def mark(service: PostgresClient, handle: Any) -> None:
        async with once(Inbox(), service.is_async, handle, event):
            pytest.fail("the body must not run")

    async def test() -> None:
        service = kind(dsn)
        async with await psycopg.AsyncConnection.connect(dsn) as first, service.transaction() as handle:
            async with Inbox().once(first, event, "g"):
                pass
            await service.sql(handle, EFFECT.format(f"{event} before"))
            waiting = asyncio.create_task(mark(service, handle))
            async with asyncio.timeout(20):
                while not await asyncio.to_thread(is_waiting, dsn):
                    pass
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await first.rollback()
            with nullcontext() if goes_on else pytest.raises(sqlalchemy.exc.PendingRollbackError):
                await service.sql(handle, EFFECT.format(f"{event} after"))
            if not goes_on:
                await handle.rollback()
        await service.close()

    asyncio.run(test())
    assert stored(dsn, event) == (0, 0)
    assert stored(dsn, f"{event} before") == stored(dsn, f"{event} after") == (0, int(goes_on))


def test_the_pipeline_mode_of_psycopg(dsn: str, event: str) -> None:
    with psycopg.connect(dsn) as connection, connection.pipeline():
        for expected in (True, False):
            with Inbox().once(connection, event, "g") as first:
                assert first is expected
    assert stored(dsn, event) == (1, 0)


@every_driver
def test_the_table_has_any_name_and_may_be_created_again(kind: type[PostgresClient], dsn: str, event: str) -> None:
    name = f'odd."pro:cessed %s {kind.__name__}"'
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS odd")

    async def test() -> None:
        service, inbox = kind(dsn), Inbox(name)
        async with service.transaction() as handle:
            with pytest.raises(InboxUnfit) as missing:
                async with once(inbox, service.is_async, handle, event):
                    pytest.fail("the body must not run")
            assert "Inbox.create" in missing.value.remedy
            for _ in range(2):
                await resolved(inbox.create(handle))
            async with once(inbox, service.is_async, handle, event) as first:
                assert first
        await service.close()

    asyncio.run(test())
    with psycopg.connect(dsn) as connection:
        connection.execute(Inbox(name).ddl())  # changes nothing
        with Inbox(name).once(connection, event, "g") as first:
            assert not first


def test_consumers_that_start_together_create_one_table(dsn: str) -> None:
    barrier = threading.Barrier(6)

    def create(_: int) -> None:
        with psycopg.connect(dsn) as connection:
            barrier.wait(20)
            Inbox("together").create(connection)

    with ThreadPoolExecutor(6) as consumers:
        list(consumers.map(create, range(6)))


def test_a_table_without_the_unique_index_is_refused(dsn: str, event: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS loose (LIKE processed_events)")
        with pytest.raises(InboxUnfit), Inbox("loose").once(connection, event, "g"):
            pytest.fail("the body must not run")


def test_ids_of_the_longest_size_and_of_any_characters(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        for event in ("ä" * 500, "\U0001f600' \" % %s $1 :x \\ \n", " ", "x" * 1000):
            for expected in (True, False):
                with Inbox().once(connection, event, "ß" * 127, entity_id="e" * 1000) as first:
                    assert first is expected
        for event in ("A", "a", "a "):  # compared as they are
            with Inbox().once(connection, event, "case") as first:
                assert first
        with pytest.raises(MarkerInvalid):
            Inbox().once(connection, "x" * 1001, "g")


@every_driver
def test_pruning(kind: type[PostgresClient], dsn: str) -> None:
    """In batches; with autocommit and in a transaction."""
    table = f"pruned_{kind.__name__.lower()}"
    with psycopg.connect(dsn) as connection:
        Inbox(table).create(connection)

    def fill() -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute(
                f"INSERT INTO {table} SELECT 'g', n::text, NULL, NULL, now() - n * interval '1 day' "
                "FROM generate_series(1, 40) n ON CONFLICT DO NOTHING"
            )

    def left() -> int:
        with psycopg.connect(dsn) as connection:
            return connection.execute(f"SELECT count(*), max(event_id::int) FROM {table}").fetchall()[0][0]

    @asynccontextmanager
    async def either(service: PostgresClient, autocommit: bool) -> AsyncIterator[Any]:
        async with service.autocommit() if autocommit else service.transaction() as handle:
            yield handle

    async def test() -> None:
        service, inbox = kind(dsn), Inbox(table)
        for autocommit in (True, False):
            fill()
            async with either(service, autocommit) as handle:
                assert await resolved(inbox.prune(handle, older_than=timedelta(days=9.5), batch=10)) == 31
                assert await resolved(inbox.prune(handle, older_than=timedelta(days=9.5), batch=10)) == 0
                assert left() == (9 if autocommit else 40)
            assert left() == 9
        await service.close()

    asyncio.run(test())


@pytest.mark.parametrize("age", [timedelta(), timedelta(days=-1), 30, None])
def test_an_age_that_would_delete_all_markers_is_refused(age: Any, dsn: str) -> None:
    with psycopg.connect(dsn) as connection, pytest.raises(ConfigError, match="older_than"):
        Inbox().prune(connection, older_than=age)


def test_a_pruned_event_is_applied_again(dsn: str, event: str) -> None:
    """The horizon: what docs/inbox.md warns of."""
    service = Psycopg(dsn)
    inbox = Inbox("horizon")
    with psycopg.connect(service.dsn, autocommit=True) as connection:
        inbox.create(connection)
        for expected in (True, True):
            with connection.transaction(), inbox.once(connection, event, "g") as first:
                assert first is expected
            assert inbox.prune(connection, older_than=SOON) == 1


def test_the_default_database_of_django(dsn: str, event: str) -> None:
    """`django.db.transaction` and `django.db.connection` stand for it."""

    async def test() -> None:
        service = Django(dsn)
        connections = service.connections
        connections.databases["default"] = connections.databases[Django.ALIAS]
        connections["default"] = connections.create_connection("default")
        inbox = Inbox()
        async with service.transaction():
            for handle in (django.db.transaction, django.db.connection):
                with pytest.raises(NotInTransaction), inbox.once(handle, event, "g"):
                    pytest.fail("the body must not run")
                with django.db.transaction.atomic():
                    inbox.create(handle)
                    with pytest.raises(RollBack), inbox.once(handle, event, "g"):
                        raise RollBack
                    with inbox.once(handle, f"{event} {handle!r}", "g") as first:
                        assert first
            django.db.connection.close()
        await service.close()

    asyncio.run(test())
    assert stored(dsn, event) == (0, 0)


def test_the_code_of_the_docs_works(database: str) -> None:
    """Runs the first code block of docs/inbox.md unchanged, except for the database; twice, as after a restart."""
    page = (Path(__file__).parents[2] / "docs" / "inbox.md").read_text()
    source = page.split("```python\n")[1].split("```")[0]
    assert source.count("postgresql://localhost/shop") == 1
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE accounts (id text PRIMARY KEY, cents bigint NOT NULL)")
        connection.execute("INSERT INTO accounts VALUES ('a-1', 0)")
        for _ in range(2):
            exec(source.replace("postgresql://localhost/shop", database), {})
        assert connection.execute("SELECT cents FROM accounts").fetchall() == [(1250,)]
