"""Records that their topic refuses: sent again by the retry settings of their rows, in order, then dead-lettered."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from helpers import warm_processes as warm
from helpers.command import Tailrace
from helpers.shop import Shop
from helpers.users import Users
from tailrace import failpoints
from tailrace.outbox.ddl import layout_ddl
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all


@pytest.fixture
def retrying(shop: Shop) -> Shop:
    """A shop with an outbox of the layout `storage`, whose topic takes records of 20 kB."""
    shop.execute(layout_ddl("storage", "public.storage_outbox"))
    rule = {"topic": shop.topic, "match": {"aggregate": "order"}, "partitions": 1, "replication": 1}
    rule["config"] = {"max.message.bytes": 20_000}
    (shop.folder / "topics" / "orders.yaml").write_text(json.dumps(rule))
    shop.configure(source={"start": "beginning", "table": "public.storage_outbox"}, outbox={"layout": "storage"})
    return shop


def add(shop: Shop, revisions: range, *, large: int, attempts: int, delay_ms: int) -> None:
    """One transaction of rows of one key; `large` is the revision with 50 kB."""
    with shop.postgres.connect(shop.name) as connection:
        connection.execute(
            """INSERT INTO storage_outbox (outbox_id, aggregate_type, aggregate_id, partition_key, event_type,
                sequence_number, target_topic, event_payload, max_attempts, base_delay_ms, max_delay_ms,
                backoff_multiplier)
            SELECT 'outbox_' || n, 'order', 'k', 'k', 'OrderPlaced', n, 'unused', jsonb_build_object('order', 'k',
                'revision', n, 'amount', 1, 'currency', 'EUR', 'note',
                repeat('x', CASE WHEN n = %(large)s THEN 50000 ELSE 1 END)), %(attempts)s, %(delay)s, %(delay)s, 1.5
            FROM generate_series(%(first)s::int, %(last)s::int) n""",
            {"large": large, "attempts": attempts, "delay": delay_ms, "first": revisions[0], "last": revisions[-1]},
        )


def published(shop: Shop) -> list[int]:
    return [json.loads(found.value() or b"{}")["revision"] for found in read_all(shop.kafka.bootstrap, [shop.topic])]


def accept_larger_records(shop: Shop | Users) -> None:
    entry = ConfigEntry("max.message.bytes", "1000000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, shop.topic, incremental_configs=[entry])
    admin = shop.kafka.admin()
    admin.incremental_alter_configs([resource])[resource].result(20)


@pytest.mark.slow
def test_a_refused_record_is_retried_by_the_settings_of_its_row(retrying: Shop, tailrace: Tailrace) -> None:
    """Never accepted: dead-lettered after its attempts. Accepted later, with a kill -9 in between: once, in order."""
    add(retrying, range(1, 4), large=2, attempts=2, delay_ms=200)
    connector = retrying.start()
    wait_until(lambda: published(retrying) == [1, 3], 60, what="the events around the refused one")
    (letter,) = read_all(retrying.kafka.bootstrap, [retrying.letters])
    assert header(letter, "tailrace.reason") == "max_retries_exceeded"
    assert (header(letter, "tailrace.explanation") or "").startswith("refused 2 times: ")
    assert [wait["error"] for wait in connector.waits] == ["RecordDelayed"], connector.log

    add(retrying, range(4, 7), large=5, attempts=1000, delay_ms=200)
    wait_until(lambda: len(connector.waits) > 1, 60, what="the next refusal")
    connector.kill()
    connector = retrying.start()
    wait_until(lambda: connector.waits, 60, what="an attempt after the kill")
    accept_larger_records(retrying)
    wait_until(lambda: len(published(retrying)) == 5, 60, what="the accepted record")
    assert published(retrying) == [1, 3, 4, 5, 6]
    assert len(read_all(retrying.kafka.bootstrap, [retrying.letters])) == 1
    assert connector.running, connector.log

    # The first one is written again, as a new row with the same number: killed in between, it is added once.
    retrying.execute(
        "INSERT INTO storage_outbox_dlq SELECT *, 'dlq_1', now(), 'max_retries_exceeded', '{}', '{}', outbox_id "
        "FROM storage_outbox WHERE outbox_id = 'outbox_2'"
    )
    command = ["-m", "tailrace", "dlq", "redrive", str(retrying.file), "0-0", "--as-new", "--yes", "--json"]
    killed = Path(retrying.folder / "killed")
    for environ, code in ({"TAILRACE_KILL": failpoints.REDRIVE_BEFORE_PRODUCE}, -9), ({}, 0):
        process = warm.Process(command, output=killed, env={**os.environ, **environ})
        assert process.wait(60) == code, killed.read_text()
    wait_until(lambda: published(retrying) == [1, 3, 4, 5, 6, 2], 60, what="the new row")
    ((noted,),) = retrying.execute("SELECT recovery_instructions FROM storage_outbox_dlq")
    ((new_id, number, metadata),) = retrying.execute(
        "SELECT outbox_id, sequence_number, event_metadata FROM storage_outbox WHERE sequence_number = 2 "
        "AND outbox_id <> 'outbox_2'"
    )
    assert (noted["new_outbox_id"], number, metadata) == (new_id, 2, {"replay_of": "outbox_2"})
    assert noted["replayed_at"]
    assert retrying.execute("SELECT outbox_id, operation_type FROM storage_outbox_wal") == [(new_id, "insert")]
    assert new_id in killed.read_text()
    shown = tailrace("dlq", "list", retrying.file, "--all")["letters"]
    assert [(each["event_id"], each["state"]) for each in shown] == [("outbox_2", "discarded")]
    assert tailrace("verify", retrying.file)["clean"] is True


@pytest.mark.slow
def test_a_refused_document_is_retried_by_its_own_settings(users: Users) -> None:
    """`max_retries` of a document, with `retries.columns`: one is dead-lettered, the next is accepted later."""
    rule = {"topic": users.topic, "match": {"aggregate": "user"}, "partitions": 1, "replication": 1}
    rule["config"] = {"max.message.bytes": 20_000}
    (users.folder / "topics" / "users.yaml").write_text(json.dumps(rule))
    users.configure(
        retries={"base": 0.2, "maximum": 0.2, "columns": {"attempts": "max_retries"}}, source={"start": "beginning"}
    )

    def large(revision: int, attempts: int) -> str:
        payload = {"user": "k", "revision": revision, "email": "x" * 50_000}
        return users.insert("k", revision, payload=payload, max_retries=attempts)

    refused, first = large(1, 2), users.insert("k", 2, max_retries=5)
    connector = users.start()
    wait_until(lambda: [seen.id for seen in users.published()] == [first], 60, what="the event behind the refused one")
    (letter,) = read_all(users.kafka.bootstrap, [users.letters])
    assert (header(letter, "id"), header(letter, "tailrace.reason")) == (refused, "max_retries_exceeded")
    assert (header(letter, "tailrace.explanation") or "").startswith("refused 2 times: ")
    before = len(connector.waits)
    later, last = large(3, 1000), users.insert("k", 4)
    wait_until(lambda: len(connector.waits) > before, 60, what="the next refusal")
    accept_larger_records(users)
    wait_until(lambda: len(users.published()) == 3, 60, what="the accepted record")
    assert [seen.id for seen in users.published()] == [first, later, last]
    assert len(users.dead_lettered()) == 1
    sent = [dict(each.headers() or []) for each in read_all(users.kafka.bootstrap, [users.topic])]
    assert ["max_retries" in each for each in sent] == [False] * 3
