"""Topics with limits on the size of a record batch, and on the timestamp of a record.

Kafka applies a topic's `max.message.bytes` to a whole record batch, so records that fit alone may be refused together.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from helpers.service import Service
from helpers.shop import Shop
from helpers.tiers import mostly_slow
from helpers.users import Users
from tailrace.testkit.stack import StackError, wait_until
from tailrace.testkit.topic_reader import header, read_all

ROWS = """
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, created_at)
SELECT gen_random_uuid(), %(aggregate)s, %(key)s, 'OrderPlaced', json_build_object(
    'order', %(key)s::text, 'revision', n, 'amount', 1, 'currency', 'EUR',
    'note', CASE WHEN n = %(large_at)s OR n >= %(large_from)s
        THEN repeat(md5(random()::text), %(large)s / 32) ELSE md5(n::text) END
), now() + %(ahead)s * interval '1 second' + n * interval '1 microsecond'
FROM generate_series(1, %(rows)s) n
"""
HOUR = 3600


def add(shop: Shop, rows: int, **options: object) -> None:
    """Rows of about 100 bytes in one transaction; the one at `large_at`, and all from `large_from` on, have
    `large` bytes more.
    """
    given = {"large_at": 0, "large_from": rows + 1, "large": 0, "ahead": 0, "key": "k", "aggregate": "order", **options}
    with shop.postgres.connect(shop.name) as connection:
        connection.execute(ROWS, {"rows": rows, **given})


def set_config(service: Service, topic: str, name: str, value: str) -> None:
    admin = service.kafka.admin()
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(20)
    # The controller has it; brokers apply it a moment later.
    asked = ConfigResource(ResourceType.TOPIC, topic)
    wait_until(lambda: admin.describe_configs([asked])[asked].result(20)[name].value == value, 60, what=name)


@contextmanager
def limits_hidden(service: Service, topic: str) -> Iterator[None]:
    """Nobody may read the settings of `topic`."""
    admin = service.kafka.admin()

    def binding(operation: AclOperation, permission: AclPermissionType) -> AclBinding:
        return AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:*", "*", operation, permission)

    bindings = [
        binding(AclOperation.DESCRIBE_CONFIGS, AclPermissionType.DENY),
        *(binding(each, AclPermissionType.ALLOW) for each in (AclOperation.READ, AclOperation.WRITE)),
    ]
    for created in admin.create_acls(bindings).values():
        created.result(20)
    try:
        yield
    finally:
        everything = AclBindingFilter(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        for deleted in admin.delete_acls([everything]).values():
            deleted.result(20)


def arrives(service: Service, condition: Callable[[], bool]) -> None:
    """Waits until `condition` holds, while the connector runs."""
    connector = service.connectors[-1]
    try:
        wait_until(lambda: not connector.running or condition(), 60)
    except StackError:
        pytest.fail(f"not all events arrived:\n{connector.log}")
    assert connector.running, connector.log


def revisions(shop: Shop) -> list[int]:
    return [json.loads(found.value() or b"{}")["revision"] for found in read_all(shop.kafka.bootstrap, [shop.topic])]


def letters_of(shop: Shop) -> list[int]:
    return [json.loads(found.value() or b"{}")["revision"] for found in read_all(shop.kafka.bootstrap, [shop.letters])]


def small_topic(shop: Shop, limit: int) -> None:
    rule = {"topic": shop.topic, "match": {"aggregate": "order"}, "partitions": 1, "replication": 1}
    rule["config"] = {"max.message.bytes": limit}
    (shop.folder / "topics" / "orders.yaml").write_text(json.dumps(rule))


@pytest.mark.parametrize("hidden", mostly_slow([False, True], [False]))
def test_a_limit_below_the_size_of_a_batch(shop: Shop, *, hidden: bool) -> None:
    """Only events that are too large alone are dead-lettered, also after the limit was lowered at run time."""
    small_topic(shop, 100_000)
    shop.configure(source={"start": "beginning"}, limits={"batch_records": 5000})
    add(shop, 5000, large_at=3000, large=150_000)
    if hidden:
        shop.kafka.create_topic(shop.topic, 1, {"max.message.bytes": "100000"})
        with limits_hidden(shop, shop.topic):
            shop.start()
            arrives(shop, lambda: len(revisions(shop)) == 4999)
            assert letters_of(shop) == [3000]
            assert sorted(revisions(shop)) == [n for n in range(1, 5001) if n != 3000]
        return
    connector = shop.start()
    arrives(shop, lambda: len(revisions(shop)) == 4999)
    set_config(shop, shop.topic, "max.message.bytes", "20000")
    add(shop, 3000, large_at=7, large=50_000)
    arrives(shop, lambda: len(revisions(shop)) == 4999 + 2999)
    assert connector.running, connector.log
    expected = [n for n in range(1, 5001) if n != 3000] + [n for n in range(1, 3001) if n != 7]
    assert revisions(shop) == expected
    assert letters_of(shop) == [3000, 7]


def test_many_events_that_are_too_large(shop: Shop) -> None:
    """They are found together, and the memory used to find them is freed."""
    small_topic(shop, 20_000)
    connector = shop.start()
    files, threads = connector.holds("fd"), connector.holds("task")
    add(shop, 30, large=50_000, large_from=11)
    arrives(shop, lambda: (len(revisions(shop)), len(letters_of(shop))) == (10, 20))
    assert letters_of(shop) == list(range(11, 31))
    assert connector.log.count('"refused"') == 1, connector.log
    wait_until(lambda: connector.holds("task") <= threads + 10, 30, what="the threads of the attempts to end")
    wait_until(lambda: connector.holds("fd") <= files + 16, 30, what="the files of the attempts to be closed")


def test_a_limit_without_transactions(shop: Shop) -> None:
    small_topic(shop, 20_000)
    shop.configure(source={"start": "beginning"}, kafka={"delivery": "at_least_once"})
    add(shop, 1000, large_at=500, large=50_000)
    shop.start()
    arrives(shop, lambda: len(set(revisions(shop))) == 999 and set(letters_of(shop)) == {500})


def test_a_topic_with_a_small_limit_that_is_first_used_at_run_time(shop: Shop, make_topic: Callable[..., None]) -> None:
    shop.configure(topics={"template": f"{shop.name}.{{aggregate}}"}, schemas={"unknown": "pass"})
    connector = shop.start()
    add(shop, 10)
    arrives(shop, lambda: len(revisions(shop)) == 10)
    other = f"{shop.name}.parcel"
    make_topic(other, max_message_bytes="10000")
    add(shop, 2000, aggregate="parcel")
    arrives(shop, lambda: len(read_all(shop.kafka.bootstrap, [other])) == 2000)
    assert letters_of(shop) == []
    assert connector.running, connector.log


def test_timestamps_that_a_topic_rejects_are_replaced(shop: Shop, make_topic: Callable[..., None]) -> None:
    """Records and dead letters get the time of publishing; the header keeps the original time."""
    make_topic(
        shop.topic, message_timestamp_after_max_ms="60000", message_timestamp_before_max_ms="600000"
    )  # narrower than the hour that brokers allow by default
    make_topic(shop.letters)
    shop.configure(source={"start": "beginning"})
    offsets = {"far ahead": 30 * HOUR, "ahead": 0.5 * HOUR, "old": -0.5 * HOUR, "very old": -30 * HOUR, "now": -1}
    for key, ahead in offsets.items():
        add(shop, 1, ahead=ahead, key=key)
    shop.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, created_at) VALUES "
        "(gen_random_uuid(), 'order', 'bad', 'OrderPlaced', '[]', now() + interval '3 hours')"
    )
    begun = time.time()
    shop.start()
    arrives(shop, lambda: (len(shop.published()), len(shop.dead_lettered())) == (len(offsets), 1))
    found = {(each.key() or b"").decode(): each for each in read_all(shop.kafka.bootstrap, [shop.topic, shop.letters])}
    for key, ahead in {**offsets, "bad": 3 * HOUR}.items():
        committed = int(header(found[key], "timestamp")) / 1000
        assert abs(committed - begun - ahead) < 300, key
        if key != "now":
            assert begun - 1 <= found[key].timestamp()[1] / 1000 <= time.time() + 1, key


def test_mongodb_timestamps_ahead_of_the_broker(users: Users) -> None:
    users.configure(source={"start": "beginning"})
    ahead = 30 * HOUR
    event = users.insert(created_at=datetime.fromtimestamp(time.time() + ahead, UTC), event_id=str(uuid.uuid4()))
    users.start()
    arrives(users, lambda: len(users.published()) == 1)
    (found,) = read_all(users.kafka.bootstrap, [users.topic])
    assert header(found, "id") == event
    assert int(header(found, "timestamp")) / 1000 > time.time() + ahead / 2
    assert found.timestamp()[1] / 1000 <= time.time() + 1
