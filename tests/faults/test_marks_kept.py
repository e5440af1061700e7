"""Row marks in the cases where a published row could stay without its mark, or a row get a mark that is not true."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import psycopg
import pytest

from faults.test_marks_mongo import documents
from faults.test_marks_rows import COLUMNS, all_marked, marked, row  # noqa: F401 - a fixture
from faults.test_marks_watermark import commits_later
from faults.test_mongo_offsets import delete, own_offsets_topic
from faults.test_redrive import VALID
from helpers.shop import SCHEMA, Shop, close_shop, open_shop
from helpers.users import Users
from tailrace import failpoints
from tailrace.testkit.stack import KafkaBroker, PostgresServer, wait_until


@pytest.mark.parametrize("marks", ["watermark", "rows"])
def test_marks_with_a_sequence_check(marked: Shop, marks: str) -> None:  # noqa: F811
    """The records of the numbers are in the batches of the events, and are no events."""
    shop = marked
    shop.configure(marks=marks, rules={"sequence": {"number": "payload#/revision"}})
    connector = shop.start()
    event = shop.insert(VALID)
    wait_until(lambda: [seen.id for seen in shop.published()] == [event], 60, what="the event")
    if marks == "rows":
        all_marked(shop)
    assert connector.stop() == 0, connector.log


@pytest.mark.slow
def test_marks_that_are_behind_while_a_transaction_with_a_savepoint_runs(marked: Shop) -> None:  # noqa: F811
    shop = marked
    shop.start().stop()
    late, commit = commits_later(shop, savepoint=True)
    event = shop.insert(VALID)
    assert shop.start(kill=failpoints.AFTER_COMMIT).ended() == -9
    shop.start()
    other = shop.insert(VALID)
    wait_until(lambda: row(shop, other)[0], 60, what="a mark that is written while the transaction runs")
    commit()
    last = shop.insert(VALID)
    wait_until(lambda: row(shop, last)[0] and row(shop, late)[0], 60, what="the last mark")
    wait_until(lambda: row(shop, event)[0], 60, what="the mark of an event from before the kill")


def test_a_row_that_is_published_before_its_transaction_is_visible(marked: Shop) -> None:  # noqa: F811
    """A transaction that waits for a synchronous standby is in the log, and its rows are not visible."""
    shop = marked
    connector = shop.start()
    first = shop.insert(VALID)
    wait_until(lambda: row(shop, first)[0], 60, what="the first mark")
    # Other sessions do not wait.
    for statement in ("SET synchronous_commit = 'local'", "SET synchronous_standby_names = 'absent'"):
        shop.execute(f"ALTER SYSTEM {statement}")
    shop.execute("SELECT pg_reload_conf()")
    event = str(uuid.uuid4())
    try:
        with psycopg.connect(shop.dsn, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = 'on'")
            connection.pgconn.send_query(
                b"INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES "
                b"('%s', 'order', 'k', 'OrderPlaced', '%s')" % (event.encode(), VALID.encode())
            )
            wait_until(lambda: event in {seen.id for seen in shop.published()}, 60, what="the event")
            assert shop.execute("SELECT FROM outbox WHERE id = %s", event) == []
            second = shop.insert(VALID)
            wait_until(lambda: row(shop, second)[0], 60, what="a later mark")
            shop.execute("ALTER SYSTEM RESET synchronous_standby_names")
            shop.execute("SELECT pg_reload_conf()")
            connection.pgconn.get_result()
            connection.pgconn.get_result()
    finally:
        shop.execute("ALTER SYSTEM RESET synchronous_standby_names")
        shop.execute("ALTER SYSTEM RESET synchronous_commit")
        shop.execute("SELECT pg_reload_conf()")
    wait_until(lambda: row(shop, event)[0], 60, what="the mark")
    assert connector.stop() == 0


def test_marks_of_rows_with_an_id_of_fixed_length(marked: Shop) -> None:  # noqa: F811
    shop = marked
    shop.execute("ALTER TABLE outbox ALTER id TYPE char(36)")
    shop.start()
    event = shop.insert(VALID)
    wait_until(lambda: row(shop, event)[0], 60, what="the mark")


def test_rows_that_adopt_skips_are_not_marked(marked: Shop) -> None:  # noqa: F811
    shop = marked
    connector = shop.start()
    event = shop.insert(VALID)
    wait_until(lambda: row(shop, event)[0], 60, what="the first mark")
    assert connector.stop() == 0
    shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
    skipped = shop.insert(VALID)
    shop.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", shop.slot)
    shop.start("--adopt")
    ((before,),) = shop.execute("SELECT pg_current_wal_lsn()")
    last = shop.insert(VALID)
    # Stored only when no mark is missing any more.
    wait_until(lambda: shop.execute("SELECT FROM tailrace_watermark WHERE lsn > %s", before), 60, what="the marks")
    assert row(shop, last)[0]
    assert skipped not in {seen.id for seen in shop.published()}
    assert row(shop, skipped) == (False, False, None)


def test_an_explanation_that_the_database_cannot_store(
    postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path
) -> None:
    """It contains what a rule or a schema contains, in any encoding of the database."""
    shop = open_shop(postgres, kafka, tmp_path, encoding="LATIN1")
    try:
        shop.execute("ALTER TABLE outbox ADD sent boolean DEFAULT false, ADD sent_at timestamptz, ADD problem text")
        rule = "def check(event):\n    return 'no\\0' if event.payload['amount'] == 2 else None\n"
        (tmp_path / "odd_rule.py").write_text(rule)
        properties: dict[str, object] = {**SCHEMA["properties"], "currency": {"enum": ["EUR", "€"]}}  # type: ignore[dict-item]
        (shop.folder / "schemas" / "OrderPlaced" / "1.json").write_text(
            json.dumps({**SCHEMA, "properties": properties})
        )
        shop.configure(
            marks="rows",
            outbox={"mark_columns": COLUMNS},
            # A rule that is too slow on a busy machine would reject the valid event, too.
            rules={"checks": {"*": ["odd_rule:check"]}, "folder": str(tmp_path), "timeout": 10},
        )
        shop.start()
        values = {**json.loads(VALID)}
        bad = [shop.insert(json.dumps({**values, **odd})) for odd in ({"currency": "USD"}, {"amount": 2})]
        event = shop.insert(VALID)
        wait_until(lambda: row(shop, event)[0] and all(row(shop, each)[2] for each in bad), 60, what="the marks")
        assert [row(shop, each)[2].count("?") for each in bad] == [1, 1]
    finally:
        close_shop(shop)


@pytest.mark.slow
def test_documents_that_adopt_skips_are_not_marked(users: Users) -> None:
    """The stored position is lost, and what was inserted meanwhile is still in the oplog."""

    def add_and_mark(revision: int) -> str:
        """Inserts an event and waits until the state says that no mark is missing."""
        with users.client() as client:
            now = client.admin.command("ping")["operationTime"]
            event = users.insert("k", revision)

            def is_complete() -> bool:
                state = client[users.database].tailrace_marks.find_one({"_id": users.name}) or {}
                return tuple(state.get("marked", ()))[:2] > (now.time, now.inc)

            wait_until(is_complete, 60, what="the marks")
        return event

    topic = own_offsets_topic(users)
    users.configure(marks="rows")
    connector = users.start()
    add_and_mark(1)
    assert connector.stop() == 0
    delete(users, topic)
    skipped = users.insert("k", 2)
    users.start("--adopt")
    last = add_and_mark(3)
    assert skipped not in {seen.id for seen in users.published()}
    assert documents(users)[last]["status"] == "published"
    assert documents(users)[skipped].get("status") != "published"
