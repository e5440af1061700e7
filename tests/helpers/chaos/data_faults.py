"""Faults of data: bad payloads, changes of the outbox table, topics with new limits, replays and redrives.

Each repeats its statement while a server is unavailable, because other faults are active.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType

from helpers import warm_processes as warm
from helpers.chaos.schedule import PlannedFault
from helpers.chaos.server_faults import UNAVAILABLE
from helpers.chaos.world import Pipeline, World, json_lines
from helpers.shop import Shop
from helpers.users import Users
from tailrace.testkit.oracle import WriteOutcome, WrittenEvent
from tailrace.testkit.stack import wait_until
from tailrace.testkit.workload.users import MAJORITY, outbox_document
from tailrace.testkit.workload.writer import WorkloadEvent

T = TypeVar("T")
AVAILABLE_SECONDS = 180
"""How long other faults may keep a statement from succeeding."""
DEFAULT_LIMIT = 1_048_588
LOWER_LIMIT = 3000
"""Bytes: room for a record, not for a batch of them."""
REPLAYED_EVENTS = 150
BAD_ORDERS = (
    '"text"', "[]", '{"order": 7}', '{"order": "a", "revision": 0, "amount": 1, "currency": "EUR"}',
    '{"order": "a", "revision": 1, "amount": 1, "currency": "euro"}', "1" + "0" * 400, "[" * 200 + "]" * 200,
)  # fmt: skip
BAD_USERS: tuple[Any, ...] = ("text", 7, {}, {"user": "a", "revision": 0, "email": "e"}, [1, 2], {"user": "\x00"})
GOOD = {
    "orders": {"order": "redriven", "revision": 1, "amount": 1, "currency": "EUR"},
    "users": {"user": "redriven", "revision": 1, "email": "redriven@example.com"},
}


def bad_payloads(world: World, fault: PlannedFault) -> str:
    """Writes some events whose payloads break their schema; each must become a dead letter."""
    pipeline = world.pipeline(fault.target)
    bad = BAD_ORDERS if pipeline is world.orders else BAD_USERS
    chosen = random.Random(fault.choice).choices(bad, k=3)
    events = [write_bad(pipeline, payload) for payload in chosen]
    return f"{len(events)} events"


def write_bad(pipeline: Pipeline, payload: Any) -> WrittenEvent:
    """Writes one event with a key of its own. It is recorded before: the answer to the commit may be lost."""
    event, key = str(uuid.uuid4()), f"bad-{uuid.uuid4().hex[:8]}"
    index = len(pipeline.single)
    pipeline.single.append(WrittenEvent(event, key, 1, False, WriteOutcome.UNKNOWN))

    def written() -> bool:
        if event in pipeline.service.in_outbox():
            return True  # the answer was lost
        _insert(pipeline, event, key, payload)
        return True

    available(written)
    pipeline.single[index] = pipeline.single[index]._replace(outcome=WriteOutcome.COMMITTED)
    return pipeline.single[index]


def _insert(pipeline: Pipeline, event: str, key: str, payload: Any) -> None:
    service = pipeline.service
    if isinstance(service, Shop):
        service.execute(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
            "VALUES (%s, 'order', %s, 'OrderPlaced', %s)", event, key, payload,
        )  # fmt: skip
        return
    assert isinstance(service, Users)
    from datetime import UTC, datetime

    document = outbox_document(WorkloadEvent(event, key, 1, valid=True), topic=service.topic, at=datetime.now(UTC))
    with service.client() as client:
        outbox = client[service.database].get_collection("outbox", write_concern=MAJORITY)
        outbox.insert_one({**document, "payload": payload})


def redrive(world: World, fault: PlannedFault) -> str:
    """Redrives a dead letter with a correct payload while everything else goes on."""
    pipeline = world.pipeline(fault.target)
    event = write_bad(pipeline, BAD_ORDERS[2] if pipeline is world.orders else BAD_USERS[2])
    file, payload = pipeline.service.file, pipeline.service.folder / "good.json"
    payload.write_text(json.dumps(GOOD[fault.target]))

    def found() -> str | None:
        """Returns the id of the dead letter, empty if there is none; None if nobody can say now."""
        ran = warm.run("dlq", "list", str(file), "--key", event.key, "--json", timeout=300)
        if ran.returncode:
            return None
        letters = [each for line in json_lines(ran.stdout) for each in line.get("letters", [])]
        return str(letters[0]["id"]) if letters else ""

    letter = available(found)
    assert letter is not None

    def redriven() -> bool:
        words = ("dlq", "redrive", str(file), letter, "--payload", str(payload), "--why", "chaos", "--yes", "--json")
        ran = warm.run(*words, timeout=300)
        # The resolution and the event are in one Kafka transaction: without an answer, the dead letter tells.
        return ran.returncode == 0 or found() == ""

    available(redriven)
    pipeline.redriven.add(event.id)
    return letter


def replay(world: World, fault: PlannedFault) -> str:
    """Publishes the latest events again with `tailrace replay`, next to the pipeline."""
    pipeline = world.pipeline(fault.target)
    folder = pipeline.service.folder
    plans = folder / f"plan-{uuid.uuid4().hex[:6]}.json"
    committed = [event for event in pipeline.known_committed() if event.valid]
    if len(committed) < 2:
        return "not injected: nothing is published yet"
    # Of one writer: the events of the other follow in any case.
    begin = committed[max(0, len(committed) - REPLAYED_EVENTS)]

    def planned() -> dict[str, Any]:
        words = ("replay", "plan", str(pipeline.service.file), "--from", f"event:{begin.id}")
        ran = warm.run(*words, "--output", str(plans), "--json", timeout=300)
        found = json_lines(ran.stdout)
        return found[-1] if ran.returncode == 0 and found else {}

    plan = available(planned)

    def applied() -> dict[str, Any]:
        ran = warm.run("replay", "apply", str(plan["file"]), "--json", timeout=300)
        found = json_lines(ran.stdout)
        return found[-1] if ran.returncode == 0 and found else {}

    available(applied)
    events = int(plan["figures"]["passes"])
    assert events > 0, plan
    pipeline.replayed += events
    return f"{events} events"


def add_column(world: World, fault: PlannedFault) -> str:
    """Adds a column to the outbox table."""
    shop = _shop(world)
    name = f"more_{int(fault.choice * 1_000_000)}"

    def added() -> bool:
        shop.execute(f"ALTER TABLE outbox ADD COLUMN IF NOT EXISTS {name} text DEFAULT 'x'")
        return True

    available(added)
    columns = available(
        lambda: shop.execute("SELECT FROM pg_attribute WHERE attrelid = 'outbox'::regclass AND attname = %s", name)
    )
    assert columns
    return name


def lower_topic_limit(world: World, fault: PlannedFault) -> str:
    """Lowers `max.message.bytes` of the topic for a while below the size of a batch."""
    topic = world.pipeline(fault.target).service.topic
    set_limit(world, topic, LOWER_LIMIT)
    try:
        time.sleep(fault.hold)
        assert limit_of(world, topic) == LOWER_LIMIT
    finally:
        set_limit(world, topic, DEFAULT_LIMIT)
    return ""


def set_limit(world: World, topic: str, limit: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(limit), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])

    def altered() -> bool:
        admin = world.kafka.admin()
        admin.incremental_alter_configs([resource])[resource].result(10)
        return limit_of(world, topic) == limit

    available(altered)


def limit_of(world: World, topic: str) -> int:
    asked, admin = ConfigResource(ResourceType.TOPIC, topic), world.kafka.admin()
    return int(available(lambda: admin.describe_configs([asked])[asked].result(10)["max.message.bytes"].value))


def delete_old_rows(world: World, fault: PlannedFault) -> str:
    """Deletes the older half of the rows, as a purge does. The writers know the outcome of all of them."""
    pipeline = world.pipeline(fault.target)
    known = [event.id for event in pipeline.known_committed()]
    old = known[: len(known) // 2]
    service = pipeline.service
    if isinstance(service, Shop):
        rows = available(lambda: service.execute("WITH gone AS (DELETE FROM outbox WHERE id = ANY(%s::uuid[]) "
                                                 "RETURNING 1) SELECT count(*) FROM gone", old))  # fmt: skip
        return f"{rows[0][0]} rows"
    assert isinstance(service, Users)

    def deleted() -> tuple[int]:
        with service.client() as client:
            outbox = client[service.database].get_collection("outbox", write_concern=MAJORITY)
            return (outbox.delete_many({"event_id": {"$in": old}}).deleted_count,)

    return f"{available(deleted)[0]} documents"


def truncate(world: World, fault: PlannedFault) -> str:
    """Truncates the outbox table, rows included that are not published yet: the log has them."""
    shop = _shop(world)

    def truncated() -> tuple[int]:
        with psycopg.connect(shop.dsn, connect_timeout=5) as connection:
            connection.execute("LOCK TABLE outbox")
            ids = {str(row[0]) for row in connection.execute("SELECT id FROM outbox")}
            world.orders.seen_in_outbox |= ids
            connection.execute("TRUNCATE outbox")
        return (len(ids),)

    return f"{available(truncated)[0]} rows"


def grow_topic(world: World, fault: PlannedFault) -> str:
    """Adds a partition to the topic. Writers are paused, everything is applied, and the connector starts again.

    Keys move. Without a new start, the producer would learn of the partition some seconds later, in the middle of a
    key's events, and consumers read two partitions in any order.
    """
    pipeline, admin = world.pipeline(fault.target), world.kafka.admin()
    topic = pipeline.service.topic
    count = len(admin.list_topics(topic, timeout=20).topics[topic].partitions)
    admin.create_partitions([NewPartitions(topic, count + 1)])[topic].result(30)
    wait_until(
        lambda: len(admin.list_topics(topic, timeout=20).topics[topic].partitions) == count + 1,
        60, what="the new partition",
    )  # fmt: skip
    pipeline.growths += 1
    assert pipeline.current.stop(120) == 0, pipeline.current.log[-3000:]
    pipeline.start()
    pipeline.await_ready()
    return f"{count + 1} partitions"


def available(action: Callable[[], T]) -> T:
    """Repeats an action while it returns nothing or a server is unavailable."""

    def tried() -> T | None:
        try:
            return action()
        except UNAVAILABLE:
            return None
        except Exception as error:
            if type(error).__name__ in ("KafkaException", "_TimeoutError", "TimeoutError"):
                return None
            raise

    return wait_until(tried, AVAILABLE_SECONDS, what=f"{getattr(action, '__qualname__', 'an action')}")  # type: ignore[return-value]


def _shop(world: World) -> Shop:
    assert isinstance(world.orders.service, Shop)
    return world.orders.service
