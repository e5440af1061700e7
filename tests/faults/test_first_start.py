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


@pytest.fixture(params=["16", "18"])
def either(request: pytest.FixtureRequest) -> Shop:
    shop: Shop = request.getfixturevalue("shop" if request.param == "16" else "shop18")
    return shop


def right(shop: Shop) -> None:
    for writer in shop.writers:
        writer.stop()
    verdict = shop.caught_up()
    assert verdict.ok, verdict


def test_now_means_nothing_older(shop: Shop) -> None:
    writer = shop.writer()
    older = {entry.id for _ in range(5) for entry in writer.transaction(rollback=False)}
    shop.start()
    newer = {entry.id for _ in range(5) for entry in writer.transaction(rollback=False)}
    wait_until(lambda: newer.isdisjoint(shop.verdict().missing), 60, what="the new events")
    verdict = shop.verdict()
    assert set(verdict.missing) == older
    verdict.missing.clear()
    assert verdict.ok, verdict


def test_beginning_beside_writers(either: Shop) -> None:
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
    """A transaction that is held open across the slot's creation; its rows are in the ledger when it has committed."""

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
        """Rows of subtransactions, nested and one behind the other, have numbers of their own; one rolls back."""
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
    """The slot's creation waits for this transaction to end."""
    wait_until(
        lambda: shop.execute(
            "SELECT 1 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND transactionid::text = %s",
            str(session.xid),
        ),
        20,
        what=f"waiting for transaction {session.xid}",
    )


def test_transactions_that_span_the_snapshot(either: Shop) -> None:
    """Killed while the table is read; the next session must tell by each row's number whose it is to publish.

    Creating a slot waits twice for transactions that are under way. One that begins during the second wait is running
    when the snapshot is taken: its rows are the log's, whenever it commits.
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
    # A later number that is committed puts theirs among those the snapshot has to list.
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
    # What the server itself says of each row; all numbers are of one epoch here.
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


def test_sort_keys_that_may_be_null(shop: Shop) -> None:
    """NULL sorts last and is not greater than anything: a resumed reading must not leave such rows out."""
    shop.execute("ALTER TABLE outbox ALTER COLUMN created_at DROP NOT NULL")
    shop.configure(source={"start": "beginning"}, limits={"batch_records": 10})
    # No key twice, since rows without a time come behind all others.
    writer = shop.writer(keys=100_000, mix=Mix(rollback=0, invalid=0))
    for _ in range(40):
        writer.transaction(1)
    shop.execute("UPDATE outbox SET created_at = NULL WHERE id IN (SELECT id FROM outbox LIMIT 20)")
    for at in (2, 4):
        assert shop.start(kill=f"{failpoints.AFTER_COMMIT}:{at - 1}").ended() == -9
    shop.start()
    right(shop)


def test_a_table_rewritten_before_its_first_read_is_complete(shop: Shop) -> None:
    """VACUUM FULL keeps the rows' numbers: it goes on. ALTER TABLE does not: a recovery publishes exactly the rest."""
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
    told = recovering.plan(shop)
    assert (told["case"]["code"], told["missed"], told["undecided"]) == ("TableRewritten", 62 - seen, 0), told
    assert recovering.apply(shop)["published"] == 62 - seen
    shop.start()
    writer.transaction(1)
    recovering.right(shop)


def test_a_table_rewritten_between_the_snapshot_and_its_read(shop: Shop) -> None:
    """Under the older snapshot the table would be an empty one."""
    shop.insert(PAYLOAD)
    with psycopg.connect(shop.dsn) as holder, PgConnection(shop.dsn, replication=False, timeout=30) as link:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ((name,),) = holder.execute("SELECT pg_export_snapshot()").fetchall()
        shop.execute("ALTER TABLE outbox ADD COLUMN v uuid DEFAULT gen_random_uuid()")
        start = LsnPosition(LogIdentity("1", 1, "d", "s", "public.outbox", "p"), 1, 1)
        with pytest.raises(SourceUnavailable, match="rewritten"):
            TableReader(link, "public.outbox", order_by=["id"], timestamp=None, start=start, exported=name)


def test_rows_that_are_older_than_kafka_keeps_records(shop: Shop) -> None:
    """Kafka deletes by the record's timestamp: with that of a commit long ago, nobody would ever read them."""
    shop.configure(source={"start": "beginning"}, outbox={"columns": {"timestamp": "created_at"}})
    shop.writer(mix=Mix(rollback=0, invalid=0)).transaction(5)
    shop.execute("UPDATE outbox SET created_at = now() - interval '40 days'")
    shop.start()
    right(shop)
    for message in read_all(shop.kafka.bootstrap, [shop.topic]):
        told = int(dict(message.headers() or [])["timestamp"])
        assert message.timestamp()[1] - told > 39 * DAY_MS


def test_sort_keys_that_are_not_unique_are_refused(shop: Shop) -> None:
    """Rows with equal keys could be passed over where a page ends between them."""
    shop.configure(source={"start": "beginning", "order_by": ["created_at"]})
    shop.start(wait=False).failed("LayoutMismatch")


def test_failover_slots(either: Shop) -> None:
    """They came with Postgres 17."""
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
def test_the_least_rights_are_enough(shop: Shop) -> None:
    publish(shop)
    shop.configure(source={"start": "beginning"})
    writer = shop.writer()
    for _ in range(10):
        writer.transaction()
    shop.start()
    for _ in range(10):
        writer.transaction()
    right(shop)


def test_rows_without_a_time_come_in_the_order_of_their_transactions(shop: Shop) -> None:
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
def test_a_publication_that_only_the_owner_can_make(shop: Shop) -> None:
    connector = shop.start(wait=False)
    connector.failed("AccessRefused")
    assert "CREATE PUBLICATION" in connector.log
    assert shop.confirmed_lsn() is None


@pytest.mark.usefixtures("role")
def test_rows_hidden_by_a_policy_are_an_error(shop: Shop) -> None:
    """The log knows no policies; a table read that did would leave rows out silently."""
    publish(shop)
    shop.execute("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
    shop.execute("CREATE POLICY mine ON outbox FOR SELECT USING (aggregateid = 'mine')")
    shop.configure(source={"start": "beginning"})
    shop.writer().transaction(rollback=False)
    shop.start(wait=False).failed("AccessRefused")


def test_a_wrong_password(shop: Shop, role: str) -> None:
    """Row 35: refused at once, and neither password is ever shown."""
    wrong = "incorrect-zebra"
    shop.configure(source={"postgres": make_conninfo(shop.dsn, user=role, password=wrong)})
    connector = shop.start(wait=False)
    connector.failed("AccessRefused")
    assert wrong not in connector.log


def test_rights_lost_while_running(shop: Shop, role: str) -> None:
    """Row 35: the password is rotated, and the session ends: that does not heal by waiting."""
    publish(shop)
    connector = shop.start()
    shop.execute(f"ALTER ROLE {role} PASSWORD 'another-one-by-now'")
    connector.process.send_signal(signal.SIGSTOP)
    shop.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", shop.slot)
    connector.process.send_signal(signal.SIGCONT)
    connector.failed("AccessRefused")
    assert PASSWORD not in connector.log
