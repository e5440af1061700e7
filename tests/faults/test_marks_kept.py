"""Row marks in the cases where a published row could stay without its mark, or a row get a mark that is not true."""

from __future__ import annotations

import uuid

import psycopg
import pytest

from faults.test_marks_rows import all_marked, marked, row  # noqa: F401 - a fixture
from faults.test_marks_watermark import commits_later
from faults.test_redrive import VALID
from helpers.shop import Shop
from tailrace import failpoints
from tailrace.testkit.stack import wait_until


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
    wait_until(lambda: row(shop, event)[0], 30, what="the mark of an event from before the kill")


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
    wait_until(lambda: row(shop, event)[0], 20, what="the mark")
    assert connector.stop() == 0


def test_marks_of_rows_with_an_id_of_fixed_length(marked: Shop) -> None:  # noqa: F811
    shop = marked
    shop.execute("ALTER TABLE outbox ALTER id TYPE char(36)")
    shop.start()
    event = shop.insert(VALID)
    wait_until(lambda: row(shop, event)[0], 20, what="the mark")


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
    last = shop.insert(VALID)
    wait_until(lambda: row(shop, last)[0], 60, what="the last mark")
    assert skipped not in {seen.id for seen in shop.published()}
    assert row(shop, skipped) == (False, False, None)
