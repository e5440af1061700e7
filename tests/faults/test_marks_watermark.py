"""Delivery marks with `marks: watermark`: a view that says which rows are published, without changing a row."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from faults.test_redrive import INVALID, VALID, allow_any_amount, dlq
from helpers.parking import BAD, ask, good, letters
from helpers.shop import Connector, Shop
from tailrace import failpoints
from tailrace.testkit.stack import wait_until


def marks(shop: Shop) -> dict[str, tuple[bool, str | None]]:
    """Returns (processed, error) of every row, by id."""
    found = shop.execute(f"SELECT id, processed, error FROM tailrace_{shop.name}_marks")
    return {str(event): (processed, error) for event, processed, error in found}


def started(shop: Shop) -> Connector:
    """Starts the connector and waits until the view exists."""
    connector = shop.start()
    wait_until(lambda: shop.execute("SELECT to_regclass(%s)", f"tailrace_{shop.name}_marks")[0][0], 60, what="the view")
    return connector


def processed(shop: Shop, *events: str) -> None:
    """Waits until the view says that these events are published."""
    wait_until(
        lambda: all(marks(shop)[event][0] for event in events) or not shop.connectors[-1].running,
        60,
        what=f"the watermark; the connector logged:\n{shop.connectors[-1].log}",
    )
    assert all(marks(shop)[event][0] for event in events), shop.connectors[-1].log


def commits_later(shop: Shop, *, savepoint: bool) -> tuple[str, Callable[[], None]]:
    """Inserts an event in a transaction that stays open; returns its id and a function that commits it."""
    connection = psycopg.connect(shop.dsn)
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS first_write ON COMMIT DROP AS SELECT 1")
    if savepoint:
        connection.execute("SAVEPOINT part")
    row = connection.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
        "VALUES (gen_random_uuid(), 'order', 'k', 'OrderPlaced', %s) RETURNING id",
        [VALID],
    ).fetchone()
    if savepoint:
        connection.execute("RELEASE part")
    assert row is not None

    def commit() -> None:
        connection.commit()
        connection.close()

    return str(row[0]), commit


def test_the_watermark_follows_when_an_older_transaction_ends_without_an_event(shop: Shop) -> None:
    shop.configure(marks="watermark")
    started(shop)
    with psycopg.connect(shop.dsn) as connection:
        connection.execute("CREATE TABLE other AS SELECT 1")
        connection.execute("SAVEPOINT part")
        connection.execute("CREATE TABLE another AS SELECT 1")
        event = shop.insert(VALID)
        wait_until(lambda: [seen.id for seen in shop.published()] == [event], 60, what="the event")
        (end,) = shop.execute("SELECT pg_current_wal_lsn()")[0]
        wait_until(
            lambda: shop.execute("SELECT FROM tailrace_watermark WHERE lsn >= %s", end), 60, what="the watermark"
        )
        assert marks(shop)[event] == (False, None)
        connection.rollback()
    processed(shop, event)


@pytest.mark.parametrize("savepoint", [False, True], ids=["plain", "savepoint"])
def test_a_row_that_commits_after_the_watermark_is_not_processed(shop: Shop, *, savepoint: bool) -> None:
    """Its transaction id is lower than that of a processed row, or that of a subtransaction which no snapshot lists."""
    shop.configure(marks="watermark")
    connector = started(shop)
    late, commit = commits_later(shop, savepoint=savepoint)
    early = shop.insert(VALID)
    if savepoint:
        # Nothing newer than the open transaction is certain. Wait for a watermark that was taken after the event.
        (end,) = shop.execute("SELECT pg_current_wal_lsn()")[0]
        wait_until(
            lambda: shop.execute("SELECT FROM tailrace_watermark WHERE lsn >= %s AND snapshot IS NOT NULL", end),
            60,
            what="the watermark",
        )
        assert marks(shop)[early] == (False, None)
    else:
        processed(shop, early)
    connector.kill()
    commit()
    assert marks(shop)[late] == (False, None)
    started(shop)
    processed(shop, early, late)


def test_rows_from_before_the_first_start_are_not_processed(shop: Shop) -> None:
    before = shop.insert(VALID)
    shop.configure(marks="watermark")
    started(shop)
    after = shop.insert(VALID)
    processed(shop, after)
    assert marks(shop)[before] == (False, None)
    shop.execute("UPDATE outbox SET traceparent = 'edited' WHERE id = %s", after)
    newer = shop.insert(VALID)
    processed(shop, newer, after)
    assert {seen.id for seen in shop.published()} == {after, newer}


def test_a_first_read_is_marked_when_it_is_complete(shop: Shop) -> None:
    shop.configure(marks="watermark", source={"start": "beginning"})
    existing = [shop.insert(VALID) for _ in range(3)]
    started(shop)
    processed(shop, *existing)


def test_dead_letters_have_their_error_until_they_are_redriven(shop: Shop) -> None:
    shop.configure(marks="watermark")
    started(shop)
    bad, good_one = shop.insert(INVALID), shop.insert(VALID)
    processed(shop, good_one)
    done, error = marks(shop)[bad]
    assert not done
    assert error is not None
    assert error.startswith("schema_validation_failed: ")
    assert "much" in error
    allow_any_amount(shop)
    code, reported = dlq(shop, "redrive", "--all-open", "--yes")
    assert code == 0, reported
    processed(shop, bad)
    assert marks(shop)[bad] == (True, None)


@pytest.mark.parametrize(
    "point",
    [
        failpoints.MARKS_WRITTEN,
        pytest.param(failpoints.MARKS_PENDING, marks=pytest.mark.slow),
        pytest.param(failpoints.MARKS_COMMITTED, marks=pytest.mark.slow),
    ],
)
def test_killed_while_the_watermark_is_written(shop: Shop, point: str) -> None:
    """A dead letter of the killed run is not taken for a published row."""
    shop.configure(marks="watermark")
    shop.start().stop()
    connector = shop.start(kill=f"{point}:3")
    bad = []
    while connector.running:
        bad.append(shop.insert(INVALID))
    assert connector.ended() == -9
    started(shop)
    last = shop.insert(VALID)
    processed(shop, last)
    found = marks(shop)
    assert [found[event][0] for event in bad] == [False] * len(bad)
    assert all(found[event][1] for event in bad)


@pytest.mark.slow
def test_events_that_wait_behind_a_parked_key_are_not_processed(parking: Shop) -> None:
    parking.configure(marks="watermark")
    started(parking)
    bad = parking.insert(BAD, key="a")
    behind = parking.insert(good(1), key="a")
    other = parking.insert(good(1), key="b")
    processed(parking, other)
    assert not marks(parking)[bad][0]
    assert not marks(parking)[behind][0]
    ask(parking, letters(parking)[0], "redrive", good(9))
    processed(parking, bad, behind)


def test_no_privilege_to_create_the_tables_is_reported_and_publishing_goes_on(shop: Shop) -> None:
    shop.execute(f"CREATE ROLE limited_{shop.name} LOGIN REPLICATION PASSWORD 'only-for-tests'")
    shop.execute(f"GRANT SELECT ON outbox TO limited_{shop.name}")
    shop.execute(f"CREATE PUBLICATION \"tailrace_{shop.name}\" FOR TABLE outbox WITH (publish = 'insert')")
    dsn = psycopg.conninfo.make_conninfo(shop.dsn, user=f"limited_{shop.name}", password="only-for-tests")
    shop.configure(marks="watermark", source={"postgres": dsn})
    connector = shop.start()
    event = shop.insert(VALID)
    wait_until(lambda: event in {seen.id for seen in shop.published()}, 60, what="the event")
    connector.says('"MarksRefused"')
    assert "GRANT CREATE ON SCHEMA" in connector.log
    shop.execute(f"GRANT CREATE ON SCHEMA public TO limited_{shop.name}")
    view = f"tailrace_{shop.name}_marks"
    wait_until(lambda: shop.execute("SELECT to_regclass(%s)", view)[0][0], 60, what="the view")
    processed(shop, event)
