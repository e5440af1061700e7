"""Retention of outbox rows on real servers: nothing is deleted that somebody may need, and all the rest is."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition

from faults.test_marks_rows import all_marked, marked  # noqa: F401 - a fixture
from helpers import warm_processes as warm
from helpers.command import Tailrace
from helpers.service import Service
from helpers.shop import Shop
from tailrace import failpoints
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all

VALID = '{"order": "a", "revision": 1, "amount": 1.50, "currency": "EUR"}'
INVALID = '{"order": "a", "revision": 1, "amount": "much", "currency": "EUR"}'
OLD = (
    "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, created_at) "
    "SELECT gen_random_uuid(), 'order', 'k' || n %% 7, 'OrderPlaced', %s::jsonb, "
    "now() - interval '200 days' + n * interval '1 second' FROM generate_series(1, %s) n RETURNING id::text"
)


@pytest.fixture(autouse=True)
def alone(shop: Shop) -> None:
    """A separate offsets topic, because retention reads all positions on it."""
    shop.configure(kafka={"offsets_topic": f"{shop.name}.offsets"})


def old_rows(shop: Shop, count: int, payload: str = VALID) -> list[str]:
    return [str(row[0]) for row in shop.execute(OLD, payload, count)]


def arrived(service: Service, *events: str, topic: str = "") -> None:
    place = [topic or service.topic]
    wait_until(
        lambda: {header(each, "id") for each in read_all(service.kafka.bootstrap, place)} >= set(events),
        120,
        what="the records",
    )


def settled(shop: Shop) -> str:
    """Waits until the pipeline has stored a position behind everything written."""
    event = shop.insert(VALID, key="fresh")
    arrived(shop, event)
    return event


def confirm(shop: Shop, *ids: str, **produced: Any) -> None:
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    failed: list[object] = []
    for event_id in ids:
        producer.produce(
            f"{shop.name}.confirmed",
            **{"key": event_id, "value": b"{}", **produced},
            on_delivery=lambda error, _: failed.append(error),
        )
    assert producer.flush(30) == 0
    assert failed == [None] * len(ids)


def confirmed_by(shop: Shop, **settings: Any) -> None:
    """Configures retention by confirmations, without a delay."""
    shop.kafka.create_topic(f"{shop.name}.confirmed", 2)
    shop.configure(retention={"confirmations": {"topic": f"{shop.name}.confirmed", "delay": 0, **settings}})


@pytest.mark.slow
def test_rows_are_deleted_by_age_only_if_they_are_published(shop: Shop, tailrace: Tailrace) -> None:
    shop.configure(retention={"after": "90d", "batch_rows": 7})
    refused = tailrace("retention", "plan", shop.file, code=2)
    assert "no stored position" in refused["what"]
    connector = shop.start()
    old, new, bad = old_rows(shop, 40), shop.insert(VALID), old_rows(shop, 3, INVALID)
    arrived(shop, *old, new)
    last = settled(shop)
    planned = tailrace("retention", "plan", shop.file)
    assert (planned["rows"], planned["in_outbox"]) == (40, 45)
    assert {name: count for name, count in planned["kept"].items() if count} == {"too_young": 2, "dead_lettered": 3}
    assert planned["first_ms"] < planned["last_ms"]
    assert len(shop.in_outbox()) == 45
    assert not shop.execute("SELECT to_regclass('tailrace_purged')")[0][0]
    # Rows that the pipeline has not passed stay, although they are old.
    assert connector.stop() == 0
    behind = old_rows(shop, 5)
    planned = tailrace("retention", "plan", shop.file)
    assert planned["kept"]["not_published"] >= 5
    assert any("has not caught up" in note for note in planned["notes"])
    assert tailrace("retention", "apply", shop.file)["rows"] <= 40
    assert shop.in_outbox() >= {*behind, *bad, new, last}
    # Deletes are not published, and the pipeline goes on.
    shop.start()
    arrived(shop, *behind)
    fresh = settled(shop)
    assert tailrace("retention", "apply", shop.file)["kept"]["dead_lettered"] == 3
    assert shop.in_outbox() == {*bad, new, last, fresh}
    assert shop.execute("SELECT sum(rows)::int FROM tailrace_purged WHERE pipeline = %s", shop.name) == [(45,)]
    assert sorted(each.id for each in shop.published()) == sorted([*old, *behind, new, last, fresh])
    # The others know that rows were purged on purpose.
    result = tailrace("verify", shop.file)
    assert (result["clean"], result["missing"], result["only_on_kafka"]) == (True, 0, 45)
    assert any("45 rows were deleted by retention" in note for note in result["notes"])
    planned = tailrace("replay", "plan", shop.file, "--from", "201d", "--from-table", "--shadow", ".shadow")
    assert planned["figures"]["events"] == 6
    assert any("45 rows of that time were deleted by retention" in note for note in planned["notes"])
    tailrace("dlq", "discard", shop.file, "--key", "k*", "--why", "test data", "--yes")
    assert tailrace("retention", "apply", shop.file)["rows"] == 3


@pytest.mark.slow
def test_confirmed_rows_are_deleted_after_the_delay(shop: Shop, tailrace: Tailrace) -> None:
    confirmed_by(shop, time="at")
    shop.start()
    first, second, third, bad = (shop.insert(payload) for payload in (VALID, VALID, VALID, INVALID))
    arrived(shop, first, second, third)
    arrived(shop, bad, topic=shop.letters)
    settled(shop)
    plan, apply = ("retention", "plan", shop.file), ("retention", "apply", shop.file)
    assert tailrace(*plan)["kept"]["not_confirmed"] == 4
    # Unknown, twice, of no type that the id has, tombstones, and for a dead letter.
    unknown = "00000000-0000-0000-0000-000000000000"
    confirm(
        shop,
        second.upper(),
        second,
        unknown,
        bad,
        "nobody",
        "\udcff".encode("utf-8", "surrogatepass").decode("latin-1"),
    )
    confirm(shop, third, value=None)
    planned = tailrace(*plan)
    assert (planned["rows"], planned["kept"]["not_confirmed"], planned["kept"]["dead_lettered"]) == (1, 3, 1)
    assert any("no confirmations" in note for note in planned["notes"])
    assert tailrace(*apply)["rows"] == 1
    assert second not in shop.in_outbox()
    assert {first, third, bad} <= shop.in_outbox()
    assert tailrace(*apply)["rows"] == 0
    scheduled = {row[0] for row in shop.execute("SELECT event_id FROM tailrace_confirmations")}
    assert scheduled == {unknown, bad}
    # A confirmation of the future counts then; a later one of the same event moves its time.
    confirm(shop, first, value=b'{"at": 4000000000}')
    applied = tailrace(*apply)
    assert (applied["rows"], first in shop.in_outbox()) == (0, True)
    assert tailrace(*plan)["kept"]["confirmed_recently"] == 1
    confirm(shop, first, value=b'{"at": 1000000000000}')
    assert tailrace(*apply)["rows"] == 0
    # Unknown ones are forgotten after a time; that of a row stays.
    shop.configure(
        retention={"confirmations": {"topic": f"{shop.name}.confirmed", "delay": 0, "keep_unknown": 0, "time": "at"}}
    )
    assert tailrace(*apply)["forgotten"] == 1
    assert {row[0] for row in shop.execute("SELECT event_id FROM tailrace_confirmations")} == {first, bad}


def test_confirmations_of_blocks_with_a_time(shop: Shop, tailrace: Tailrace) -> None:
    confirmed_by(shop, id="block.events", time="block.at", delay="1d")
    shop.start()
    events = [shop.insert(VALID) for _ in range(4)]
    arrived(shop, *events)
    settled(shop)
    for at, names in (("2026-01-01T00:00:00Z", events[:1]), (1_767_225_600, events[1:2]), (None, events[2:])):
        confirm(shop, "any", value=json.dumps({"block": {"events": names, "at": at}}))
    for value in (
        b"{",
        b"[]",
        b'{"block": {"events": [true]}}',
        json.dumps({"block": {"events": events, "at": "soon"}}),
    ):
        confirm(shop, "any", value=value)
    applied = tailrace("retention", "apply", shop.file)
    assert applied["rows"] == 2
    assert sum("no confirmations" in note for note in applied["notes"]) >= 3
    assert shop.in_outbox() >= set(events[2:])
    assert not shop.in_outbox() & set(events[:2])


@pytest.mark.slow
def test_a_topic_of_confirmations_that_is_missing_or_created_again(shop: Shop, tailrace: Tailrace) -> None:
    confirmed_by(shop)
    shop.start()
    events = [shop.insert(VALID) for _ in range(3)]
    arrived(shop, *events)
    settled(shop)
    confirm(shop, events[0], events[0], events[0], partition=0)
    assert tailrace("retention", "apply", shop.file)["rows"] == 1
    topic = f"{shop.name}.confirmed"
    admin = shop.kafka.admin()
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, 30)
    refused = tailrace("retention", "apply", shop.file, code=3)
    assert (refused["error"], "no row is deleted" in refused["why"]) == ("TopicMissing", True)
    shop.kafka.create_topic(topic, 2)
    confirm(shop, events[1], partition=0)
    applied = tailrace("retention", "apply", shop.file)
    assert (applied["rows"], "created again" in str(applied["notes"])) == (1, True)


@pytest.mark.parametrize("kill", failpoints.RETAINING)
def test_killed_at_every_step(shop: Shop, tailrace: Tailrace, kill: str) -> None:
    confirmed_by(shop)
    shop.configure(retention={"batch_rows": 10})
    shop.start()
    events = [shop.insert(VALID) for _ in range(25)]
    arrived(shop, *events)
    last = settled(shop)
    confirm(shop, *events)
    warm.killed("retention", "apply", shop.file, at=kill)
    left = len(shop.in_outbox() - {last})
    assert left == {failpoints.RETENTION_COMMITTED: 15}.get(kill, 25)
    if kill != failpoints.RETENTION_SCHEDULED:
        # The record is exactly what is gone, in both directions.
        assert shop.execute("SELECT coalesce(sum(rows), 0)::int FROM tailrace_purged") == [(25 - left,)]
        assert shop.execute("SELECT count(*)::int FROM tailrace_confirmations") == [(left,)]
    assert tailrace("retention", "apply", shop.file)["rows"] == left
    assert shop.in_outbox() == {last}
    assert shop.execute("SELECT sum(rows)::int FROM tailrace_purged") == [(25,)]
    assert shop.execute("SELECT count(*)::int FROM tailrace_confirmations") == [(0,)]


@pytest.mark.slow
def test_two_runs_at_once_and_a_row_that_is_locked(shop: Shop, tailrace: Tailrace) -> None:
    shop.configure(retention={"after": "90d", "batch_rows": 20})
    shop.start()
    old = old_rows(shop, 400)
    arrived(shop, *old)
    last = settled(shop)
    with psycopg.connect(shop.dsn) as other:
        other.execute("SELECT FROM outbox WHERE id = %s FOR UPDATE", (old[0],))
        with ThreadPoolExecutor() as pool:
            runs = list(pool.map(lambda _: warm.run("retention", "apply", str(shop.file), "--json"), range(2)))
        assert [each.returncode for each in runs] == [0, 0], runs
        results = [json.loads(each.stdout) for each in runs]
        left = shop.in_outbox()
        assert old[0] in left
        assert sum(each["rows"] for each in results) + len(left) == 401
        assert any(each["kept"]["locked"] for each in results)
    while tailrace("retention", "apply", shop.file)["rows"]:
        pass
    assert shop.in_outbox() == {last}
    assert shop.execute("SELECT sum(rows)::int FROM tailrace_purged") == [(400,)]


@pytest.mark.slow
def test_run_repeats_and_survives_a_restart(shop: Shop, tailrace: Tailrace) -> None:
    confirmed_by(shop, delay=2)
    shop.start()
    events = [shop.insert(VALID) for _ in range(2)]
    arrived(shop, *events)
    confirm(shop, events[0])
    command = [*warm.TAILRACE, "retention", "run", str(shop.file), "--tick", "1", "--json"]
    running = warm.Process(command, output=shop.folder / "run.log")
    try:
        wait_until(lambda: events[0] not in shop.in_outbox(), 60, what="the end of the first row")
        running.kill()
        running.wait()
        confirm(shop, events[1])
        running = warm.Process(command, output=shop.folder / "again.log")
        wait_until(lambda: events[1] not in shop.in_outbox(), 60, what="the end of the second row")
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
    finally:
        if running.poll() is None:
            running.kill()


@pytest.mark.slow
def test_a_long_transaction_keeps_rows_that_were_written_since(shop: Shop, tailrace: Tailrace) -> None:
    """Their transaction ids do not show which of them the pipeline has passed."""
    shop.configure(retention={"after": "90d"})
    shop.start()
    before = old_rows(shop, 3)
    arrived(shop, *before)
    with psycopg.connect(shop.dsn) as other:
        other.execute("CREATE TABLE busy ()")
        since = old_rows(shop, 4)
        arrived(shop, *since)
        wait_until(lambda: "a transaction is open" in str(tailrace("retention", "plan", shop.file)["notes"]), 30)
        applied = tailrace("retention", "apply", shop.file)
        assert applied["rows"] == 3
        assert shop.in_outbox() == set(since)
        assert tailrace("retention", "plan", shop.file)["kept"]["not_published"] == 4
    settled(shop)
    assert tailrace("retention", "apply", shop.file)["rows"] == 4


@pytest.mark.parametrize("marks", ["rows", pytest.param("watermark", marks=pytest.mark.slow)])
def test_rows_with_delivery_marks(marked: Shop, tailrace: Tailrace, marks: str) -> None:  # noqa: F811
    """A mark gives a row a new transaction; a row without its mark stays until it has one."""
    shop = marked
    shop.configure(marks=marks, retention={"after": 0})
    connector = shop.start()
    good, bad = [shop.insert(VALID) for _ in range(5)], shop.insert(INVALID)
    arrived(shop, *good)
    arrived(shop, bad, topic=shop.letters)
    if marks == "rows":
        all_marked(shop)
    tailrace("retention", "apply", shop.file)
    arrived(shop, last := shop.insert(VALID))
    wait_until(lambda: tailrace("retention", "apply", shop.file) and shop.in_outbox() <= {bad, last}, 60)
    assert bad in shop.in_outbox()
    assert connector.stop() == 0, connector.log


@pytest.mark.slow
def test_parked_rows_stay_and_a_recovery_finds_nothing_missing(shop: Shop, tailrace: Tailrace) -> None:
    shop.configure(retention={"after": 0}, on_invalid="park")
    connector = shop.start()
    good = [shop.insert(VALID, key="good") for _ in range(5)]
    bad, waiting = shop.insert(INVALID, key="bad"), [shop.insert(VALID, key="bad") for _ in range(2)]
    arrived(shop, *good)
    arrived(shop, bad, topic=shop.letters)
    last = settled(shop)
    applied = tailrace("retention", "apply", shop.file)
    assert (applied["kept"]["dead_lettered"], applied["kept"]["parked"]) == (1, 2)
    assert shop.in_outbox() == {bad, *waiting}
    assert connector.stop() == 0
    # The log is lost: nothing that was deleted counts as missed, and what was missed is published once.
    shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
    missed = shop.insert(VALID, key="good")
    planned = tailrace("recover", "plan", shop.file)
    assert (planned["missed"], planned["undecided"]) == (1, 0)
    tailrace("recover", "apply", shop.file, "--yes")
    shop.start()
    arrived(shop, missed)
    assert sorted(each.id for each in shop.published()) == sorted([*good, last, missed])


@pytest.mark.slow
def test_dead_letters_that_expire_keep_their_rows(shop: Shop, tailrace: Tailrace) -> None:
    """The topic deletes a dead letter by age: the row is the only copy of its event."""
    shop.configure(retention={"after": "90d"})
    shop.start()
    seen, good = old_rows(shop, 1, INVALID), old_rows(shop, 2)
    arrived(shop, *good)
    arrived(shop, *seen, topic=shop.letters)
    settled(shop)
    assert tailrace("retention", "apply", shop.file)["rows"] == 2
    _delete_letters(shop)
    assert tailrace("retention", "apply", shop.file)["kept"]["dead_lettered"] == 1
    # These expire before any run of retention has seen them.
    unseen, good = old_rows(shop, 1, INVALID), old_rows(shop, 2)
    arrived(shop, *good)
    arrived(shop, *unseen, topic=shop.letters)
    settled(shop)
    _delete_letters(shop)
    applied = tailrace("retention", "apply", shop.file)
    assert (applied["rows"], applied["kept"]["dead_letters_expired"]) == (0, 3)
    assert any("--accept-expired-dead-letters" in note for note in applied["notes"])
    assert tailrace("retention", "apply", shop.file, "--accept-expired-dead-letters")["rows"] == 3
    assert shop.in_outbox() >= set(seen)
    assert tailrace("retention", "plan", shop.file)["kept"]["dead_letters_expired"] == 0


def _delete_letters(shop: Shop) -> None:
    admin = shop.kafka.admin()
    for deleted in admin.delete_records([TopicPartition(shop.letters, 0, -1)]).values():
        deleted.result(30)
