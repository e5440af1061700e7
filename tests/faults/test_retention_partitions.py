"""Retention that drops whole partitions of an outbox that is partitioned by day."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

from helpers import warm_processes as warm
from helpers.command import Tailrace
from helpers.shop import Shop
from tailrace import failpoints
from tailrace.retention.postgres_outbox import PostgresRetentionOutbox
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all

VALID = '{"order": "a", "revision": 1, "amount": 1.50, "currency": "EUR"}'
INVALID = '{"order": "a"}'
DAILY = """
DROP TABLE outbox;
CREATE TABLE outbox (
    id uuid, aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload jsonb,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (id, created_at)
) PARTITION BY RANGE (created_at);
CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM ('2020-01-01') TO ('2020-01-02');
CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES FROM ('2020-01-02') TO ('2020-01-03');
CREATE TABLE outbox_3 PARTITION OF outbox FOR VALUES FROM ('2020-01-03') TO ('2020-01-04');
CREATE TABLE outbox_now PARTITION OF outbox FOR VALUES FROM ('2020-01-04') TO ('2999-01-01');
CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT;
"""


@pytest.fixture
def daily(shop: Shop) -> Shop:
    shop.execute(DAILY)
    shop.configure(
        kafka={"offsets_topic": f"{shop.name}.offsets"},
        source={"order_by": ["created_at", "id"]},
        retention={"after": "30d", "partitions": "drop"},
    )
    return shop


def put(shop: Shop, day: int, count: int, payload: str = VALID) -> list[str]:
    found = shop.execute(
        "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'k', 'OrderPlaced', %s::jsonb, "
        "'2020-01-01'::timestamptz + %s * interval '1 day' - n * interval '1 second' FROM generate_series(1, %s) n "
        "RETURNING id::text",
        payload,
        day,
        count,
    )
    return [str(row[0]) for row in found]


def kept_locked(applied: dict[str, Any]) -> int:
    assert applied["rows"] == 0, applied
    return int(applied["kept"].get("locked", 0))


def arrived(shop: Shop, events: list[str]) -> None:
    wait_until(
        lambda: {header(each, "id") for each in read_all(shop.kafka.bootstrap, [shop.topic])} >= set(events),
        60,
        what="the records",
    )


def partitions(shop: Shop) -> list[str]:
    found = shop.execute(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'outbox'::regclass ORDER BY 1"
    )
    return [str(row[0]) for row in found]


@pytest.mark.slow
def test_only_complete_partitions_are_dropped(daily: Shop, tailrace: Tailrace) -> None:
    shop = daily
    connector = shop.start()
    first, second = put(shop, 1, 20), put(shop, 2, 20)
    bad = put(shop, 2, 1, INVALID)
    rest = put(shop, 0, 2)
    arrived(shop, [*first, *second, *rest, fresh := shop.insert(VALID)])
    planned = tailrace("retention", "plan", shop.file)
    assert (planned["rows"], planned["partitions"]) == (20, ["public.outbox_1", "public.outbox_3"])
    assert planned["kept"]["partition_not_complete"] == 20
    assert planned["kept"]["dead_lettered"] == 1
    assert planned["kept"]["too_young"] == 3
    # An open transaction has written to the table: nothing waits for it for long, and nothing is dropped.
    with psycopg.connect(shop.dsn) as other:
        other.execute("UPDATE outbox SET aggregateid = 'k' WHERE id = %s", (first[0],))
        # Before the pipeline's stored position has passed that write, the rows are not judged at all.
        wait_until(lambda: kept_locked(tailrace("retention", "apply", shop.file)) == 20, 60, what="the lock")
    assert len(partitions(shop)) == 5
    applied = tailrace("retention", "apply", shop.file)
    # The changed row has a new transaction, which the pipeline has passed only later.
    arrived(shop, [shop.insert(VALID)])
    again = tailrace("retention", "apply", shop.file)
    assert applied["rows"] + again["rows"] == 20
    assert partitions(shop) == ["outbox_2", "outbox_now", "outbox_rest"]
    assert shop.execute("SELECT rows::int FROM tailrace_purged") == [(20,)]
    assert shop.in_outbox() >= {*second, *bad, *rest, fresh}
    # The pipeline does not mind.
    arrived(shop, [shop.insert(VALID), *put(shop, 2, 3)])
    assert connector.running
    result = tailrace("verify", shop.file)
    assert (result["clean"], result["only_on_kafka"]) == (True, 20)


def test_a_partition_that_was_changed_after_it_was_judged_stays(daily: Shop) -> None:
    shop = daily
    events = put(shop, 1, 3)
    outbox = PostgresRetentionOutbox(
        PostgresOptions(shop.dsn, "public.outbox", "slot", "publication", timestamp="created_at"), shop.name
    )
    try:
        outbox.state.ensure()
        outbox.partitions.require_droppable()
        (first, *others) = outbox.partitions.old(1_600_000_000_000)
        assert (first.name, [each.name for each in others]) == (
            "public.outbox_1",
            ["public.outbox_2", "public.outbox_3"],
        )
        for change in (
            "UPDATE outbox SET aggregateid = 'other' WHERE id = %s",
            "DELETE FROM outbox WHERE id = %s",
            "INSERT INTO outbox SELECT gen_random_uuid(), 'order', %s, 'OrderPlaced', '{}', '2020-01-01T12:00Z'",
        ):
            judged = outbox.partitions.versions(first)
            shop.execute(change, events[0])
            assert not outbox.partitions.drop(first, judged, events, [1, 2, 3])
        judged = outbox.partitions.versions(first)
        assert judged.rows == 3
        assert shop.execute("SELECT count(*) FROM tailrace_purged") == [(0,)]
        assert outbox.partitions.drop(first, judged, events, [1_577_836_800_000] * 3)
    finally:
        outbox.close()
    assert shop.execute("SELECT day::text, rows::int FROM tailrace_purged") == [("2020-01-01", 3)]
    assert "outbox_1" not in partitions(shop)


def test_a_table_that_is_not_partitioned_by_time(shop: Shop, tailrace: Tailrace) -> None:
    shop.configure(kafka={"offsets_topic": f"{shop.name}.offsets"}, retention={"after": "30d", "partitions": "drop"})
    shop.start()
    arrived(shop, [shop.insert(VALID)])
    refused = tailrace("retention", "apply", shop.file, code=2)
    assert "not partitioned by ranges of created_at" in refused["what"]


@pytest.mark.parametrize("kill", failpoints.RETAINING)
def test_killed_around_a_drop(daily: Shop, tailrace: Tailrace, kill: str) -> None:
    """The next run finishes, nothing is dropped that is not confirmed, and each row is counted once."""
    shop = daily
    topic = f"{shop.name}.confirmed"
    shop.kafka.create_topic(topic, 1)
    shop.configure(retention={"partitions": "drop", "confirmations": {"topic": topic, "delay": 0}})
    shop.start()
    days = [put(shop, day, 5) for day in (1, 2, 3)]
    arrived(shop, [*(event for day in days for event in day), fresh := shop.insert(VALID)])
    kept = days[1]
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    for event in (*days[0], *kept[:-1], *days[2]):
        producer.produce(topic, key=event, value=b"{}")
    assert producer.flush(30) == 0
    warm.killed("retention", "apply", shop.file, at=kill)
    # The oldest partition comes first; a death before the commit drops nothing.
    dropped = kill == failpoints.RETENTION_COMMITTED
    assert ("outbox_1" in partitions(shop)) == (not dropped)
    assert shop.in_outbox() == {*kept, *days[2], fresh, *([] if dropped else days[0])}
    assert tailrace("retention", "apply", shop.file)["rows"] == (5 if dropped else 10)
    assert partitions(shop) == ["outbox_2", "outbox_now", "outbox_rest"]
    assert shop.in_outbox() == {*kept, fresh}
    assert shop.execute("SELECT sum(rows)::int FROM tailrace_purged") == [(10,)]
    left = {row[0] for row in shop.execute("SELECT event_id FROM tailrace_confirmations")}
    assert left == set(kept[:-1])
