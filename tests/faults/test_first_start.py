"""The first start: its position, the rows it reads from the table, its privileges; killed and resumed."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from helpers import recovery as recovering
from helpers.shop import Shop
from helpers.tiers import mostly_slow
from tailrace import failpoints
from tailrace.errors import SourceUnavailable
from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.snapshot import Snapshot, TableReader
from tailrace.testkit.oracle import WriteOutcome, WrittenEvent
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import read_all
from tailrace.testkit.workload.orders import Mix

PAYLOAD = '{"order": "o", "revision": 1, "amount": 1, "currency": "EUR"}'


@pytest.fixture(params=mostly_slow(["16", "18"], ["16"]))
def either(request: pytest.FixtureRequest) -> Shop:
    shop: Shop = request.getfixturevalue("shop" if request.param == "16" else "shop18")
    return shop


def right(shop: Shop) -> None:
    for writer in shop.writers:
        writer.stop()
    verdict = shop.caught_up()
    assert verdict.ok, verdict


def test_start_now_publishes_no_older_rows(shop: Shop) -> None:
    writer = shop.writer()
    older = {entry.id for _ in range(5) for entry in writer.transaction(rollback=False)}
    shop.start()
    newer = {entry.id for _ in range(5) for entry in writer.transaction(rollback=False)}
    wait_until(lambda: newer.isdisjoint(shop.verdict().missing), 60, what="the new events")
    verdict = shop.verdict()
    assert set(verdict.missing) == older
    verdict.missing.clear()
    assert verdict.ok, verdict


def test_start_beginning_while_others_write(either: Shop) -> None:
    """Between the last row of the table and the first of the log there is no gap, and no row is in both."""
    shop = either
    shop.configure(source={"start": "beginning"}, limits={"batch_records": 50})
    mix = Mix(savepoint=0.5, rollback=0.2)
    for writer in (shop.writer(mix=mix), shop.writer(mix=mix)):
        for _ in range(50):
            writer.transaction()
        writer.start(rate=150)
    shop.start()
    wait_until(lambda: shop.positions()[-1].progress[0] == 2, 60, what="the end of the table")
    right(shop)


class Session:
    """A transaction that is held open while the slot is created; its events are recorded as written on commit."""

    def __init__(self, shop: Shop, name: str) -> None:
        self._connection = psycopg.connect(shop.dsn)
        self._written = shop.writer().written
        self._entries: list[WrittenEvent] = []
        self._name = name
        self.xid = int(self._connection.execute("SELECT pg_current_xact_id()::text").fetchone()[0])  # type: ignore[index]

    def insert(self) -> None:
        statement = (
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
            "VALUES (gen_random_uuid(), 'order', %s, 'OrderPlaced', %s) RETURNING id::text"
        )
        row = self._connection.execute(statement, (self._name, PAYLOAD)).fetchone()
        assert row is not None
        self._entries.append(WrittenEvent(row[0], self._name, len(self._entries), True, WriteOutcome.COMMITTED))

    def insert_in_savepoints(self) -> None:
        """Rows of subtransactions, nested and consecutive, have their own transaction ids; one is rolled back."""
        self._connection.execute("SAVEPOINT one")
        self.insert()
        self._connection.execute("SAVEPOINT two")
        self.insert()
        self._connection.execute("RELEASE one")
        self._connection.execute("SAVEPOINT three")
        self.insert()
        gone = self._entries.pop()
        self._written.append(gone._replace(outcome=WriteOutcome.ROLLED_BACK))
        self._connection.execute("ROLLBACK TO three")

    def commit(self) -> None:
        self._connection.commit()
        self._written.extend(self._entries)
        self._connection.close()


def waits_for(shop: Shop, session: Session) -> None:
    """Waits until the slot's creation waits for this transaction to end."""
    wait_until(
        lambda: shop.execute(
            "SELECT 1 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND transactionid::text = %s",
            str(session.xid),
        ),
        20,
        what=f"waiting for transaction {session.xid}",
    )


def test_transactions_that_span_the_snapshot(either: Shop) -> None:
    """Killed while reading the table; the next session decides by each row's transaction id whether to publish it.

    Creating a slot waits twice for transactions that are under way. One that begins during the second wait is running
    when the snapshot is taken: its rows come from the log, whenever it commits.
    """
    shop = either
    shop.configure(source={"start": "beginning"}, limits={"batch_records": 10})
    writer = shop.writer(mix=Mix(savepoint=0.5, rollback=0.3))
    for _ in range(30):
        writer.transaction()
    first = Session(shop, "first")
    first.insert_in_savepoints()
    connector = shop.start(kill=f"{failpoints.TABLE_ROWS_READ}:3", wait=False)
    waits_for(shop, first)
    second = Session(shop, "second")
    second.insert_in_savepoints()
    first.commit()
    waits_for(shop, second)
    spanning, ending = Session(shop, "spanning"), Session(shop, "ending")
    for session in (spanning, ending):
        session.insert()
        session.insert_in_savepoints()
    # A later transaction id that is committed puts theirs among those that the snapshot lists.
    writer.transaction(rollback=False)
    second.commit()
    assert connector.ended() == -9
    ending.commit()
    for _ in range(10):
        writer.transaction()
    stored = shop.positions()[-1]
    assert stored.table_read is not None
    assert stored.table_read.rows > 0
    snapshot = Snapshot.parse(stored.table_read.snapshot)
    assert {spanning.xid, ending.xid} <= snapshot.running
    assert not {first.xid, second.xid} & snapshot.running
    # The server's own answer for each row; all transaction ids are of one epoch here.
    truth = shop.execute(
        "SELECT xmin::text, pg_visible_in_snapshot(xmin::text::xid8, %s::pg_snapshot), "
        "pg_snapshot_xmax(pg_current_snapshot())::text FROM outbox",
        stored.table_read.snapshot,
    )
    assert {visible for _, visible, _ in truth} == {True, False}
    for xid, visible, before in truth:
        assert snapshot.contains(int(xid), before=int(before)) is visible, xid
    spanning.insert()
    resumed = shop.start(wait=False)
    resumed.says('"running"')
    spanning.commit()
    right(shop)


def test_rows_with_null_sort_keys_are_published(shop: Shop) -> None:
    """NULL sorts last and is not greater than anything: a resumed read must not leave such rows out."""
    shop.execute("ALTER TABLE outbox ALTER COLUMN created_at DROP NOT NULL")
    shop.configure(source={"start": "beginning"}, limits={"batch_records": 10})
    # Each key only once, because rows without a time come behind all others.
    writer = shop.writer(keys=100_000, mix=Mix(rollback=0, invalid=0))
    for _ in range(40):
        writer.transaction(1)
    shop.execute("UPDATE outbox SET created_at = NULL WHERE id IN (SELECT id FROM outbox LIMIT 20)")
    for at in (2, 4):
        assert shop.start(kill=f"{failpoints.AFTER_COMMIT}:{at - 1}").ended() == -9
    shop.start()
    right(shop)


def test_a_table_rewritten_before_its_first_read_is_complete(shop: Shop) -> None:
    """VACUUM FULL keeps the rows' transaction ids: it continues. ALTER TABLE does not: a recovery does the rest."""
    shop.configure(source={"start": "beginning"}, limits={"batch_records": 10})
    writer = shop.writer(keys=100_000, mix=Mix(rollback=0, invalid=0))
    for _ in range(60):
        writer.transaction(1)
    assert shop.start(kill=f"{failpoints.TABLE_ROWS_READ}:3").ended() == -9
    before = len(shop.published())
    shop.execute("VACUUM FULL outbox")
    shop.execute("GRANT SELECT ON outbox TO PUBLIC")
    assert shop.start(kill=f"{failpoints.TABLE_ROWS_READ}:3").ended() == -9
    seen = len(shop.published())
    assert 0 < before < seen < 60
    writer.transaction(1)
    shop.execute("ALTER TABLE outbox ADD COLUMN v uuid DEFAULT gen_random_uuid()")
    shop.execute("VACUUM FULL outbox")
    writer.transaction(1)
    shop.start(wait=False).failed("TableRewritten")
    planned = recovering.plan(shop)
    assert (planned["case"]["code"], planned["missed"], planned["undecided"]) == ("TableRewritten", 62 - seen, 0), (
        planned
    )
    assert recovering.apply(shop)["published"] == 62 - seen
    shop.start()
    writer.transaction(1)
    recovering.right(shop)


def test_a_table_rewritten_between_the_snapshot_and_its_read(shop: Shop) -> None:
    """With the older snapshot the table would look empty."""
    shop.insert(PAYLOAD)
    with psycopg.connect(shop.dsn) as holder, PgConnection(shop.dsn, replication=False, timeout=30) as link:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ((name,),) = holder.execute("SELECT pg_export_snapshot()").fetchall()
        shop.execute("ALTER TABLE outbox ADD COLUMN v uuid DEFAULT gen_random_uuid()")
        start = LsnPosition(LogIdentity("1", 1, "d", "s", "public.outbox", "p"), 1, 1)
        with pytest.raises(SourceUnavailable, match="rewritten"):
            TableReader(link, "public.outbox", order_by=["id"], timestamp=None, start=start, exported=name)


def test_rows_that_are_older_than_kafka_keeps_records(shop: Shop) -> None:
    """Kafka deletes by the record's timestamp: with that of an old commit it would delete them unread."""
    shop.configure(source={"start": "beginning"}, outbox={"columns": {"timestamp": "created_at"}})
    shop.writer(mix=Mix(rollback=0, invalid=0)).transaction(5)
    shop.execute("UPDATE outbox SET created_at = now() - interval '40 days'")
    shop.start()
    right(shop)
    for message in read_all(shop.kafka.bootstrap, [shop.topic]):
        created_ms = int(dict(message.headers() or [])["timestamp"])
        assert message.timestamp()[1] - created_ms > 39 * DAY_MS


def test_sort_keys_that_are_not_unique_are_refused(shop: Shop) -> None:
    """A page that ends between rows with equal keys could skip some of them."""
    shop.configure(source={"start": "beginning", "order_by": ["created_at"]})
    shop.start(wait=False).failed("LayoutMismatch")


def test_failover_slots(either: Shop) -> None:
    """Postgres 17 and newer have them."""
    either.configure(source={"failover": True})
    if either.postgres.version == "16":
        either.start(wait=False).failed("ConfigError", exit_code=2)
        return
    either.start()
    assert either.execute("SELECT failover FROM pg_replication_slots WHERE slot_name = %s", either.slot) == [(True,)]


DAY_MS = 86_400_000
PASSWORD = "correct-horse-battery"


@pytest.fixture
def role(shop: Shop) -> Iterator[str]:
    """A role with exactly the rights that `tailrace init` prints."""
    name = f"tailing_{shop.name}"
    who = sql.Identifier(name)
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        for statement in (
            "CREATE ROLE {} LOGIN REPLICATION NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD {}",
            "GRANT USAGE ON SCHEMA public TO {}",
            "GRANT SELECT ON outbox TO {}",
        ):
            connection.execute(sql.SQL(statement).format(who, sql.Literal(PASSWORD)))
    shop.configure(source={"postgres": make_conninfo(shop.dsn, user=name, password=PASSWORD)})
    yield name
    shop.close()
    shop.execute(f"DROP OWNED BY {name}")
    shop.execute(f"DROP ROLE {name}")


def publish(shop: Shop) -> None:
    shop.execute(f"CREATE PUBLICATION {shop.slot} FOR TABLE outbox WITH (publish = 'insert')")


@pytest.mark.usefixtures("role")
def test_the_privileges_that_init_prints_are_enough(shop: Shop) -> None:
    publish(shop)
    shop.configure(source={"start": "beginning"})
    writer = shop.writer()
    for _ in range(10):
        writer.transaction()
    shop.start()
    for _ in range(10):
        writer.transaction()
    right(shop)


def test_rows_without_a_time_are_published_in_transaction_order(shop: Shop) -> None:
    """Their ids are random; killed in between, it is resumed in the same order."""
    shop.settings["outbox"] = {}
    shop.configure(source={"start": "beginning"}, limits={"batch_records": 10})
    written = [shop.insert(PAYLOAD) for _ in range(40)]
    assert shop.start(kill=f"{failpoints.TABLE_ROWS_READ}:3").ended() == -signal.SIGKILL
    assert 0 < len(shop.published()) < len(written)
    shop.start()
    written.append(shop.insert(PAYLOAD))
    wait_until(lambda: len(shop.published()) >= len(written), 60, what="all rows")
    assert [seen.id for seen in shop.published()] == written


@pytest.mark.usefixtures("role")
def test_a_missing_privilege_to_create_the_publication_is_reported(shop: Shop) -> None:
    connector = shop.start(wait=False)
    connector.failed("AccessRefused")
    assert "CREATE PUBLICATION" in connector.log
    assert shop.confirmed_lsn() is None


@pytest.mark.usefixtures("role")
def test_rows_hidden_by_a_policy_are_an_error(shop: Shop) -> None:
    """The log ignores row security; a table read that applies it would leave rows out silently."""
    publish(shop)
    shop.execute("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
    shop.execute("CREATE POLICY mine ON outbox FOR SELECT USING (aggregateid = 'mine')")
    shop.configure(source={"start": "beginning"})
    shop.writer().transaction(rollback=False)
    shop.start(wait=False).failed("AccessRefused")


def test_a_wrong_password_is_refused_and_not_shown(shop: Shop, role: str) -> None:
    """Row 35: refused at once; neither password is ever shown."""
    wrong = "incorrect-zebra"
    shop.configure(source={"postgres": make_conninfo(shop.dsn, user=role, password=wrong)})
    connector = shop.start(wait=False)
    connector.failed("AccessRefused")
    assert wrong not in connector.log


def test_privileges_lost_while_running_stop_the_pipeline(shop: Shop, role: str) -> None:
    """Row 35: the password is rotated and the session ends: waiting does not help."""
    publish(shop)
    connector = shop.start()
    shop.execute(f"ALTER ROLE {role} PASSWORD 'another-one-by-now'")
    connector.process.send_signal(signal.SIGSTOP)
    shop.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", shop.slot)
    connector.process.send_signal(signal.SIGCONT)
    connector.failed("AccessRefused")
    assert PASSWORD not in connector.log
