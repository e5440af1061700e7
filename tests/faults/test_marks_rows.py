"""Delivery marks with `marks: rows`: columns of each row, written behind the pipeline, never missed or published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.test_redrive import INVALID, VALID, allow_any_amount, dlq
from faults.test_row_movement import insert, once, partition
from helpers import recovery
from helpers.command import Tailrace
from helpers.shop import Shop
from helpers.standby import open_pair
from tailrace import failpoints
from tailrace.config.load import load_pipeline
from tailrace.errors import ConfigError, MarksRefused
from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.testkit.stack import KafkaBroker, wait_until
from tailrace.testkit.workload.writer import Mix
from tailrace.worker.marks.postgres import PostgresMarks
from tailrace.worker.wiring import wire

COLUMNS = {"processed": "sent", "processed_at": "sent_at", "error": "problem"}

# Marks fall behind at once, and are then found in the table.
SHORT_QUEUE = """
from tailrace.worker.marks import marker
marker.QUEUED = 3
from tailrace.cli import main
main()
"""


@pytest.fixture
def marked(shop: Shop) -> Shop:
    """A shop whose outbox has mark columns."""
    shop.execute(
        "ALTER TABLE outbox ADD sent boolean NOT NULL DEFAULT false, ADD sent_at timestamptz, ADD problem text"
    )
    shop.configure(marks="rows", outbox={"mark_columns": COLUMNS})
    return shop


def row(shop: Shop, event: str) -> tuple[Any, ...]:
    return shop.execute("SELECT sent, sent_at IS NOT NULL, problem FROM outbox WHERE id = %s", event)[0]


def all_marked(shop: Shop, condition: str = "true") -> None:
    """Waits until every row is marked as published or has a problem."""
    wait_until(
        lambda: (
            shop.execute(f"SELECT count(*) FROM outbox WHERE NOT sent AND problem IS NULL AND {condition}")[0][0] == 0
        ),
        60,
        what=f"the marks; the connector logged:\n{shop.connectors[-1].log}",
    )


@pytest.mark.slow
def test_marks_are_complete_after_kills_and_publish_nothing(marked: Shop) -> None:
    """kill -9 at every failpoint of marks, one after the other, and then a queue that overflows."""
    shop = marked
    shop.start().stop()
    writer = shop.writer(mix=Mix(invalid=0.2, savepoint=0.3))
    for point in failpoints.MARKING:
        connector = shop.start(kill=f"{point}:{1 if point == failpoints.MARKS_CATCHING_UP else 2}")
        while connector.running:
            writer.transaction()
        assert connector.ended() == -9, connector.log
        if point == failpoints.MARKS_COMMITTED:
            # The next run has something to catch up with.
            shop.start(kill=f"{failpoints.AFTER_COMMIT}:2")
            while shop.connectors[-1].running:
                writer.transaction()
    script = shop.folder / "short_queue.py"
    script.write_text(SHORT_QUEUE)
    connector = shop.start(program=[str(script)])
    for _ in range(20):
        writer.transaction()
    verdict = shop.caught_up()
    assert verdict.ok, verdict
    all_marked(shop)
    letters = {seen.id for seen in shop.dead_lettered()}
    found = shop.execute("SELECT id::text, sent, sent_at IS NOT NULL, problem IS NULL FROM outbox")
    assert {event for event, sent, *_ in found if not sent} == letters
    assert all(sent == at == clean for _, sent, at, clean in found)
    assert connector.stop() == 0
    assert shop.verdict().ok


def test_rows_that_are_not_published_are_not_marked_and_edits_publish_nothing(marked: Shop) -> None:
    shop = marked
    before, by_hand = shop.insert(VALID), shop.insert(VALID)
    shop.start()
    bad, event = shop.insert(INVALID), shop.insert(VALID)
    all_marked(shop, f"id NOT IN ('{before}', '{by_hand}')")
    assert row(shop, before) == (False, False, None)
    sent, _, problem = row(shop, bad)
    assert (sent, str(problem).startswith("schema_validation_failed: ")) == (False, True)
    shop.execute("UPDATE outbox SET sent = true WHERE id = %s", by_hand)
    shop.execute("UPDATE outbox SET traceparent = 'edited' WHERE id IN (%s, %s)", before, event)
    last = shop.insert(VALID)
    wait_until(lambda: row(shop, last)[0], 60, what="the last mark")
    assert row(shop, by_hand) == (True, False, None)
    assert row(shop, before) == (False, False, None)
    assert [seen.id for seen in shop.published()].count(event) == 1
    assert {seen.id for seen in shop.published()} == {event, last}
    # A redrive clears the error.
    allow_any_amount(shop)
    assert dlq(shop, "redrive", "--all-open", "--yes")[0] == 0
    wait_until(lambda: row(shop, bad) == (True, True, None), 60, what="the mark of the redriven event")


def test_a_first_read_and_a_later_switch_to_row_marks(marked: Shop) -> None:
    """Rows that were published before marks were on are marked, too."""
    shop = marked
    existing = [shop.insert(VALID) for _ in range(3)]
    left_out = shop.insert(VALID, key="old")
    shop.configure(source={"start": "beginning", "start_where": "aggregateid <> 'old'"}, marks="watermark")
    connector = shop.start()
    wait_until(lambda: len(shop.published()) == 3, 60, what="the events")
    view = f"tailrace_{shop.name}_marks"
    wait_until(lambda: shop.execute("SELECT to_regclass(%s)", view)[0][0], 60, what="the view")
    wait_until(lambda: len(shop.execute(f"SELECT FROM {view} WHERE sent")) == 3, 60, what="the watermark")
    assert shop.execute(f"SELECT sent FROM {view} WHERE id = %s", left_out) == [(False,)]
    assert connector.stop() == 0
    assert not any(row(shop, event)[0] for event in existing)
    shop.configure(marks="rows")
    shop.start()
    all_marked(shop, f"id <> '{left_out}'")
    assert row(shop, left_out) == (False, False, None)
    assert len(shop.published()) == 3


def test_a_locked_table_and_a_missing_privilege_delay_marks_and_not_events(marked: Shop, tailrace: Tailrace) -> None:
    shop = marked
    role = f"limited_{shop.name}"
    shop.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'only-for-tests'")
    shop.execute(f"GRANT SELECT ON outbox TO {role}; GRANT CREATE ON SCHEMA public TO {role}")
    shop.execute(f"CREATE PUBLICATION \"tailrace_{shop.name}\" FOR TABLE outbox WITH (publish = 'insert')")
    shop.configure(source={"postgres": psycopg.conninfo.make_conninfo(shop.dsn, user=role, password="only-for-tests")})
    connector = shop.start()
    event = shop.insert(VALID)
    connector.says('"MarksRefused"')
    assert "GRANT UPDATE" in connector.log
    checked = {check["name"]: check for check in tailrace("check", shop.file)["checks"]}
    assert (checked["marks"]["state"], "GRANT UPDATE" in checked["marks"]["remedy"]) == ("WARN", True), checked
    wait_until(lambda: len(shop.published()) == 1, 60, what="the event")
    shop.execute(f"GRANT UPDATE (sent, sent_at, problem) ON outbox TO {role}")
    all_marked(shop)
    checked = {check["name"]: check for check in tailrace("check", shop.file)["checks"]}
    assert checked["marks"]["state"] == "OK", checked
    assert connector.stop() == 0
    late = shop.insert(VALID)
    with psycopg.connect(shop.dsn) as holder:
        holder.execute("LOCK TABLE outbox IN SHARE MODE")
        connector = shop.start()
        wait_until(lambda: {seen.id for seen in shop.published()} == {event, late}, 60, what="the event")
        connector.says("lock timeout")
        assert not row(shop, late)[0]
    all_marked(shop)
    assert connector.running


@pytest.mark.slow
def test_commands_that_read_transaction_ids_stay_right(marked: Shop, tailrace: Tailrace, tmp_path: Path) -> None:
    """A mark changes the transaction id of its row: `verify`, `recover` and the archive take it as evidence."""
    shop = marked
    (tmp_path / "cold").mkdir()
    shop.configure(
        kafka={"offsets_topic": f"{shop.name}.offsets"},
        archive={"url": f"file://{tmp_path / 'cold'}"},
    )
    connector = shop.start()
    shop.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, created_at) SELECT gen_random_uuid(), "
        "'order', 'k', 'OrderPlaced', %s::jsonb, now() - interval '200 days' FROM generate_series(1, 20)",
        VALID,
    )
    recent = shop.insert(VALID)
    all_marked(shop)
    assert connector.stop() == 0
    found = tailrace("verify", shop.file)
    assert (found["missing"], found["duplicated"]) == (0, 0), found
    shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
    missed = shop.insert(VALID)
    found = recovery.plan(shop)
    assert (found["missed"], found["left_out"]["passed"]) == (1, 21), found
    recovery.apply(shop)
    shop.start()
    all_marked(shop)
    assert [seen.id for seen in shop.published()].count(missed) == 1
    assert len(shop.published()) == 22
    written = tailrace("archive", "write", shop.file, "--before", "100 d")
    assert (written["rows"], written["deleted"]) == (20, 20), written
    assert {str(event) for (event,) in shop.execute("SELECT id FROM outbox")} == {recent, missed}


@pytest.mark.slow
def test_a_standby_takes_no_marks(kafka: KafkaBroker, tmp_path: Path) -> None:
    with open_pair("16", kafka, tmp_path) as pair:
        shop = pair.shop
        pair.standby.caught_up()
        database = wire(load_pipeline(shop.file)).database
        pair.proxy.point_at(pair.standby.host, pair.standby.port)
        pair.proxy.cut()
        store = PostgresMarks(database, shop.name, None, rows=False)  # type: ignore[arg-type]
        began = LsnPosition(LogIdentity("1", 1, shop.name, shop.slot, "public.outbox", ""), 1, 0)
        with pytest.raises(MarksRefused, match="standby"):
            store.open(began)
        store.close()


def test_row_marks_need_columns(shop: Shop) -> None:
    shop.configure(marks="rows")
    with pytest.raises(ConfigError, match="the layout debezium has none"):
        wire(load_pipeline(shop.file))


@pytest.mark.slow
def test_marks_that_move_rows_to_another_partition_publish_nothing(shop: Shop) -> None:
    """The status is the partition key, so each mark is logged as a DELETE and an INSERT."""
    partition(shop)
    shop.configure(marks="rows", outbox={"mark_columns": {"processed": "processed"}}, source={"on_change": "halt"})
    connector = shop.start()
    with psycopg.connect(shop.dsn) as connection:
        events = insert(connection, 30)
    wait_until(lambda: len(shop.execute("SELECT FROM outbox_done")) == 30, 60, what="the marks")
    once(shop, events)
    assert connector.stop() == 0
    shop.start()
    once(shop, [*events, shop.insert(VALID)])
