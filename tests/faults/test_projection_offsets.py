"""Rebuilds, resets and start offsets: each test names a way to lose or repeat events."""

from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from helpers.projection import APP, Projected, Worker
from tailrace.testkit.stack import wait_until

DAY_MS = 86_400_000


# Rebuilds.


def test_a_rebuild_of_a_projection_that_started_with_the_latest_keeps_its_events(projected: Projected) -> None:
    projected.configure('start="latest", within=0.01')
    projected.start()
    wait_until(lambda: len(projected.execute("SELECT 1 FROM tailrace_offsets WHERE next_offset IS NOT NULL")) == 3, 60)
    projected.publish(*({"key": f"k-{n % 4}"} for n in range(40)))
    projected.caught_up()
    before = projected.state()
    rebuilder = projected.start("--rebuild", wait=False)
    rebuilder.ended(180)
    assert projected.state() == before, rebuilder.log


def test_a_rebuild_does_not_run_the_rest_of_the_app_a_second_time(projected: Projected) -> None:
    """An agent would read its topic again, in the rebuild's group."""
    agent = """
@app.agent(app.topic("elsewhere"))
async def other(stream):
    async for _ in stream:
        pass
"""
    projected.configure(more=agent)
    answer = projected.command("--rebuild")
    assert answer.returncode == 2, answer.stderr
    assert "agents, tasks or timers" in answer.stderr


def test_a_rebuild_refuses_to_drop_views_of_others(projected: Projected) -> None:
    projected.publish({"key": "k"})
    projected.start()
    projected.caught_up()
    view = f"public.report_{projected.name}"
    projected.execute(f"CREATE VIEW {view} AS SELECT key FROM {projected.name}.history")
    rebuilder = projected.start("--rebuild", wait=False)
    rebuilder.ended(180)
    assert projected.execute("SELECT to_regclass(%s) IS NOT NULL", view) == [(True,)], rebuilder.log


def test_a_rebuild_does_not_wait_for_positions_that_nobody_reads(projected: Projected) -> None:
    """Those of a topic that the projection has left, and of a deleted partition."""
    projected.publish(*({"key": f"k-{n % 4}"} for n in range(20)))
    live = projected.start()
    projected.caught_up()
    for topic, partition in ((f"{projected.topic}.before", 0), (projected.topic, projected.partitions)):
        projected.execute(
            "INSERT INTO tailrace_offsets (projection, topic, partition, next_offset) VALUES (%s, %s, %s, 7)",
            projected.name, topic, partition,
        )  # fmt: skip
    projected.execute("UPDATE history SET ids = ARRAY['wrong'] || ids")
    rebuilder = projected.start("--rebuild", wait=False)
    assert rebuilder.ended(180) == 0, rebuilder.log
    assert "do not exist any more" in rebuilder.log
    projected.caught_up()
    projected.publish({"key": "k-0"})
    projected.caught_up()
    assert live.running, live.log


def test_a_rebuild_of_other_topics_swaps_when_it_has_read_them(projected: Projected) -> None:
    """The old projection has no position there, but the rebuild must read them to their end."""
    projected.publish(*({"key": "k"} for _ in range(20)))
    projected.start()
    projected.caught_up()
    before = projected.state()
    projected.topic = f"{projected.topic}.v2"
    projected.kafka.create_topic(projected.topic, projected.partitions)
    projected.publish(*({"key": "k"} for _ in range(150)))
    after = projected.fold()
    # A slow handler: the queue always holds fewer events than a batch.
    slow = APP.replace("    await effects", "    await asyncio.sleep(0.03)\n    await effects")
    projected.configure(app=f"import asyncio\n{slow}")
    states: list[dict[str, list[str]]] = []

    def ended(rebuilder: Worker) -> bool:
        states.append(projected.state())
        return not rebuilder.running

    rebuilder = projected.start("--rebuild", wait=False)
    wait_until(lambda: ended(rebuilder), 180)
    assert rebuilder.ended(10) == 0, rebuilder.log
    assert projected.state() == after
    assert all(each in (before, after) for each in states), "never a part of it"


@pytest.mark.slow
def test_two_rebuilds_that_share_the_partitions_are_reported(projected: Projected) -> None:
    """Neither reads all partitions, so neither can swap."""
    impatient = "from tailrace.projections.rebuild import catch_up\ncatch_up.PATIENCE_SECONDS = 3"
    projected.configure("within=0.01, max_attempts=100_000", impatient)
    # Neither is done before the other has joined.
    projected.publish({"key": "k", "value": b'{"fail": true}'})
    both = [projected.start("--rebuild"), projected.start("--rebuild", wait=False)]
    wait_until(lambda: not all(each.running for each in both), 120, what="one of them to give up")
    gave_up = next(each for each in both if not each.running)
    assert gave_up.ended(10) == 3
    assert "ProjectionStalled" in gave_up.log
    assert "not assigned all partitions" in gave_up.log


# Resets and markers.


def test_a_reset_notices_that_the_marker_of_a_redriven_event_is_gone(projected: Projected) -> None:
    """Its record has the time of the redrive; its marker is pruned by the event's own time."""
    now = int(time.time() * 1000)
    headers = {"timestamp": str(now - 40 * DAY_MS), "tailrace.redriven": "0-0", "tailrace.redriven.for": projected.name}
    projected.publish({"key": "k", "timestamp": now, "headers": {"timestamp": str(now)}})
    projected.publish({"key": "k", "timestamp": now, "headers": headers})
    worker = projected.start()
    projected.caught_up()
    before = projected.state()
    assert worker.stop() == 0
    assert projected.command("--prune").returncode == 0
    answer = projected.command("--reset", "earliest", "--yes")
    projected.start()
    [last] = projected.publish({"key": "k"})
    wait_until(lambda: last in projected.state()["k"], 120, what="the event behind the reset")
    assert projected.state()["k"][:-1] == before["k"], answer.stdout


def test_records_without_an_id_in_a_re_created_topic_are_new_events(projected: Projected) -> None:
    """After a reset to earliest, the remedy of TopicReplaced."""
    projected.configure(
        more="""
@projection.on("Noted")
async def handle(event, effects):
    await effects.execute("INSERT INTO history VALUES (%s, '{}') ON CONFLICT DO NOTHING", [event.data["key"]])
"""
    )

    def publish(*keys: str) -> None:
        producer = Producer({"bootstrap.servers": projected.kafka.bootstrap, "log_level": 0})
        for key in keys:
            producer.produce(projected.topic, json.dumps({"key": key}), partition=0, headers=[("type", "Noted")])
        producer.flush(30)

    publish("old-1", "old-2", "old-3")
    worker = projected.start()
    wait_until(lambda: len(projected.state()) == 3, 60)
    assert worker.stop() == 0
    projected.recreate_topic()
    publish("new-1", "new-2")
    assert projected.start(wait=False).ended(60) == 3
    assert projected.command("--reset", "earliest", "--yes").returncode == 0
    projected.start()
    publish("new-3", "new-4", "new-5")
    wait_until(lambda: "new-5" in projected.state(), 60)
    assert {key for key in projected.state() if key.startswith("new")} == {f"new-{n}" for n in range(1, 6)}


def test_an_idle_topic_whose_applied_records_were_deleted_has_lost_nothing(projected: Projected) -> None:
    """The transaction marker after the last record has its own offset."""
    projected.publish(*({"key": f"k-{n}"} for n in range(12)))
    worker = projected.start()
    projected.caught_up()
    assert worker.stop() == 0
    admin = projected.kafka.admin()
    for future in admin.delete_records([TopicPartition(projected.topic, p, -1) for p in range(3)]).values():
        future.result(30)
    again = projected.start(wait=False)
    wait_until(lambda: '"reading"' in again.log or not again.running, 60)
    assert again.running, again.log


# Where reading begins.

TWO = """
from tailrace.projections import PostgresStore, Projection, projection_app
app = projection_app({name!r}, broker="kafka://{bootstrap}")
TABLES = "CREATE TABLE IF NOT EXISTS history (key text PRIMARY KEY, ids text[] NOT NULL)"
projection = Projection(app, {topic!r}, store=PostgresStore({dsn!r}, schema={schema!r}, tables=TABLES), {settings})
@projection.on()
async def append(event, effects):
    await effects.execute(
        "INSERT INTO history VALUES (%s, ARRAY[%s]) ON CONFLICT (key) DO UPDATE SET ids = history.ids || EXCLUDED.ids",
        (event.key.decode(), event.id),
    )
second = Projection(app, {topic!r}, store=PostgresStore({dsn!r}, schema={schema!r}), name="second", {settings})
@second.on()
async def nothing(event, effects):
    pass
{more}
"""


def test_a_second_projection_that_starts_with_the_latest_does_not_affect_the_first(projected: Projected) -> None:
    projected.configure('start="latest", within=0.01')
    worker = projected.start()
    wait_until(lambda: len(projected.execute("SELECT 1 FROM tailrace_offsets WHERE next_offset IS NOT NULL")) == 3, 60)
    assert worker.stop() == 0
    projected.publish(*({"key": f"k-{n}"} for n in range(12)))
    projected.configure('start="latest", within=0.01', app=TWO)
    again = projected.start()
    try:
        projected.caught_up(30)
    except AssertionError:
        stored = projected.execute(
            "SELECT partition, next_offset FROM tailrace_offsets WHERE projection = %s", projected.name
        )
        pytest.fail(
            f"running={again.running}, stored {stored}, committed to Kafka {projected.committed()}\n{again.log[-800:]}"
        )


def test_a_re_created_topic_is_noticed_despite_a_new_projection(projected: Projected) -> None:
    projected.publish(*({"key": f"k-{n % 3}"} for n in range(60)))
    worker = projected.start()
    projected.caught_up()
    assert worker.stop() == 0
    projected.recreate_topic()
    projected.configure(app=TWO)
    ids = projected.publish(*({"key": f"new-{n % 3}"} for n in range(6)))
    again = projected.start(wait=False)
    applied = "SELECT count(*) FROM tailrace_markers WHERE projection = 'second'"
    wait_until(lambda: not again.running or projected.execute(applied) == [(6,)], 60)
    known = {each for history in projected.state().values() for each in history}
    missed = [each for each in ids if each not in known]
    assert not again.running or not missed, f"{len(missed)} events passed over, the worker runs\n{again.log[-600:]}"


def test_a_new_partition_is_read_from_its_beginning(projected: Projected) -> None:
    projected.configure('start="latest", within=0.01')
    worker = projected.start()
    wait_until(lambda: len(projected.execute("SELECT 1 FROM tailrace_offsets WHERE next_offset IS NOT NULL")) == 3, 60)
    admin = projected.kafka.admin()
    for future in admin.create_partitions([NewPartitions(projected.topic, 4)]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": projected.kafka.bootstrap, "log_level": 0})
    wait_until(lambda: len(producer.list_topics(projected.topic, 10).topics[projected.topic].partitions) == 4, 60)
    producer.produce(projected.topic, b"{}", b"early", partition=3, headers=[("id", b"e-1"), ("type", b"Happened")])
    assert producer.flush(30) == 0
    wait_until(lambda: worker.log.count('"reading"') >= 2, 120, what="the new partition to be found")
    producer.produce(projected.topic, b"{}", b"late", partition=3, headers=[("id", b"e-2"), ("type", b"Happened")])
    producer.flush(30)
    wait_until(lambda: "late" in projected.state(), 60)
    assert "early" in projected.state()
