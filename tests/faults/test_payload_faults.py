"""Rows 56 and 57 of the fault matrix: hostile payloads and schemas do not stop the pipeline."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from helpers.shop import SCHEMA, Shop
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all

GOOD = json.dumps({"order": "k", "revision": 1, "amount": 1.5, "currency": "EUR"})
LIMIT = 300_000
POISON = "poison_message"
INVALID = "schema_validation_failed"
REFUSED = "permanent_failure"

# name: (payload, other columns that differ from a valid row, reason, a word of the explanation)
BAD: dict[str, tuple[str, dict[str, str], str, str]] = {
    "no JSON": ('{"order": ', {}, POISON, "not usable JSON"),
    "nothing": ("", {}, POISON, "not usable JSON"),
    "NaN": (GOOD.replace("1.5", "NaN"), {}, POISON, "not usable JSON"),
    "infinity": (GOOD.replace("1.5", "1e999"), {}, POISON, "not usable JSON"),
    "NUL": (GOOD.replace('"k"', '"\\u0000"'), {}, POISON, "U+0000"),
    "repeated key": (GOOD.replace("{", '{"order": 1, ', 1), {}, POISON, "more than once"),
    "lone surrogate": (GOOD.replace('"k"', '"\\ud800"'), {}, POISON, "surrogate"),
    "deep": ("[" * 100_000 + "]" * 100_000, {}, POISON, "depth"),
    "deep but whole": ('{"order": ' * 500 + "1" + "}" * 500, {}, POISON, "levels deep"),
    "huge integer": (GOOD.replace("1.5", "7" * 5000), {}, POISON, "not usable JSON"),
    "large integer": (GOOD.replace("1.5", "7" * 50), {}, POISON, "50 digits"),
    "oversized": (json.dumps("x" * LIMIT), {}, REFUSED, "limit"),
    "breaks its schema": (GOOD.replace("EUR", "euro"), {}, INVALID, "currency"),
    "another shape": ("[]", {}, INVALID, "object"),
    "no schema": (GOOD, {"type": "NobodyKnows"}, INVALID, "NobodyKnows"),
    "no topic": (GOOD, {"aggregatetype": "elsewhere"}, REFUSED, "elsewhere"),
    "no type": (GOOD, {"type": ""}, POISON, "type"),
}


def add(shop: Shop, payload: str | bytes | None, **columns: str) -> str:
    """Inserts one outbox row and returns its id."""
    row = {"aggregatetype": "order", "aggregateid": "k", "type": "OrderPlaced", **columns}
    inserted = shop.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
        "VALUES (gen_random_uuid(), %s, %s, %s, %s) RETURNING id",
        row["aggregatetype"], row["aggregateid"], row["type"], payload,
    )  # fmt: skip
    return str(inserted[0][0])


def by_id(shop: Shop, topic: str) -> dict[str, Message]:
    return {header(message, "id"): message for message in read_all(shop.kafka.bootstrap, [topic])}


def arrives(shop: Shop, event: str) -> dict[str, Message]:
    """Waits for `event` and returns all records published so far."""
    log = shop.connectors[-1].log_file
    wait_until(lambda: event in by_id(shop, shop.topic), 60, what=f"{event}; the log is in {log}")
    return by_id(shop, shop.topic)


def test_poison_messages_are_dead_lettered_and_the_stream_continues(shop: Shop) -> None:
    shop.execute("ALTER TABLE outbox ALTER COLUMN payload TYPE text")
    shop.configure(limits={"payload_bytes": LIMIT})
    connector = shop.start()
    before = add(shop, GOOD)
    rows = {name: add(shop, payload, **columns) for name, (payload, columns, _, _) in BAD.items()}
    tombstone = add(shop, None)
    after = add(shop, GOOD)
    published = arrives(shop, after)
    assert set(published) == {before, tombstone, after}
    assert published[tombstone].value() is None
    assert published[after].value() == GOOD.encode()
    letters = read_all(shop.kafka.bootstrap, [shop.letters])
    assert len(letters) == len(BAD)
    # Dead letters are in the order of the log, so each belongs to its row even if the id could not be read.
    for (name, (payload, _, reason, word)), letter in zip(BAD.items(), letters, strict=True):
        kind = header(letter, "tailrace.payload")
        assert header(letter, "tailrace.reason") == reason, name
        assert word in header(letter, "tailrace.explanation"), (name, header(letter, "tailrace.explanation"))
        assert header(letter, "tailrace.pipeline") == shop.name
        assert header(letter, "tailrace.position"), name
        if kind == "row":
            assert json.loads(letter.value() or b"")["id"] == rows[name]
        else:
            assert kind == "original", name
            assert header(letter, "id") == rows[name], name
            assert letter.value() == payload.encode(), name
            assert letter.key() == b"k"
    assert connector.running
    assert "euro" not in connector.log, "no payload in logs"


def test_binary_payloads_arrive_as_bytes(shop: Shop) -> None:
    shop.execute("ALTER TABLE outbox ALTER COLUMN payload TYPE bytea USING NULL")
    shop.start()
    bad = add(shop, b"\x00\xff\\x not json")
    good = add(shop, GOOD.encode())
    assert arrives(shop, good)[good].value() == GOOD.encode()
    letter = by_id(shop, shop.letters)[bad]
    assert letter.value() == b"\x00\xff\\x not json"
    assert header(letter, "tailrace.reason") == POISON


def test_a_payload_too_large_for_a_dead_letter_is_replaced_by_its_hash(shop: Shop) -> None:
    shop.execute("ALTER TABLE outbox ALTER COLUMN payload TYPE text")
    shop.start()
    bad = add(shop, "x" * (8 * 1024 * 1024 + 1))
    good = add(shop, GOOD)
    arrives(shop, good)
    letter = by_id(shop, shop.letters)[bad]
    assert header(letter, "tailrace.payload") == "omitted"
    assert header(letter, "tailrace.payload.length") == str(8 * 1024 * 1024 + 1)
    assert json.loads(letter.value() or b"")["omitted"] is True


def test_halting_on_an_invalid_event_keeps_everything(shop: Shop) -> None:
    shop.configure(on_invalid="halt")
    shop.start().stop()
    before = shop.positions()[-1]
    events = [add(shop, payload) for payload in (GOOD, GOOD.replace("1.5", '"a lot"'), GOOD)]
    connector = shop.start(wait=False)
    connector.failed("Halted")
    assert events[1] in connector.log
    assert "a lot" not in connector.log, "no payload in logs"
    assert shop.positions()[-1].progress == before.progress
    assert not by_id(shop, shop.topic)
    assert not by_id(shop, shop.letters)
    shop.start(wait=False).failed("Halted")  # a restart neither repairs nor skips the event
    corrected = {**SCHEMA, "properties": {**SCHEMA["properties"], "amount": {}}}  # type: ignore[dict-item]
    (shop.folder / "schemas" / "OrderPlaced" / "1.json").write_text(json.dumps(corrected))
    shop.start()
    assert list(arrives(shop, events[-1])) == events
    assert not by_id(shop, shop.letters)


def schema(shop: Shop, document: dict[str, Any]) -> None:
    (shop.folder / "schemas" / "OrderPlaced" / "1.json").write_text(json.dumps(document))


def test_a_pattern_made_for_backtracking_does_not_stall_the_pipeline(shop: Shop) -> None:
    schema(shop, {"type": "object", "properties": {"order": {"type": "string", "pattern": "^(a+)+$"}}})
    shop.start()
    bad = add(shop, json.dumps({"order": "a" * 50_000 + "!"}))
    good = add(shop, json.dumps({"order": "a" * 50_000}))
    arrives(shop, good)
    assert header(by_id(shop, shop.letters)[bad], "tailrace.reason") == INVALID


def test_a_pattern_that_needs_backtracking_is_refused(shop: Shop) -> None:
    schema(shop, {"type": "object", "properties": {"order": {"pattern": "^(?=a)(a+)\\1$"}}})
    connector = shop.start(wait=False)
    assert connector.ended() == 2, connector.log
    assert "SchemaError" in connector.log


@pytest.mark.parametrize("keyword", ["$ref", "$schema"])
def test_a_schema_that_points_elsewhere_opens_no_connection(shop: Shop, keyword: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.setblocking(False)
        schema(shop, {keyword: f"http://127.0.0.1:{elsewhere.getsockname()[1]}/schema.json"})
        connector = shop.start(wait=False)
        assert connector.ended() == 2, connector.log
        assert "SchemaError" in connector.log
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    assert shop.confirmed_lsn() is None, "no slot was created"


BIG_HEADER = (
    "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, remark) "
    "VALUES (%s, 'order', 'k', 'OrderPlaced', "
    '\'{"order": "k", "revision": 1, "amount": 1, "currency": "EUR"}\', repeat(md5(random()::text), %s))'
)
"""Tailrace limits payloads only. A record that is too large because of a header is rejected by Kafka."""


def test_a_record_that_its_topic_rejects_is_dead_lettered_alone(shop: Shop) -> None:
    """Row 49: the other records of the batch are published once and in order."""
    shop.execute("ALTER TABLE outbox ADD COLUMN remark text")
    shop.start()
    events = [str(uuid.uuid4()) for _ in range(5)]
    with psycopg.connect(shop.dsn) as connection:
        for number, event in enumerate(events):
            connection.execute(BIG_HEADER, (event, 70_000 if number == 2 else 1))
    wait_until(lambda: len(shop.published()) == 4, 60, what="the events that fit")
    assert [seen.id for seen in shop.published()] == [*events[:2], *events[3:]]
    letters = read_all(shop.kafka.bootstrap, [shop.letters])
    found = [dict(message.headers() or []) for message in letters]
    assert [(headers["id"], headers["tailrace.reason"]) for headers in found] == [
        (events[2].encode(), b"permanent_failure")
    ]
    assert b"larger than the topic takes" in found[0]["tailrace.explanation"]
    assert shop.connectors[-1].running
    # The next process does not know about the rejection: it finds out itself and publishes nothing twice.
    shop.connectors[-1].kill()
    shop.start()
    again = str(uuid.uuid4())
    shop.execute(BIG_HEADER, again, 1)
    wait_until(lambda: again in [seen.id for seen in shop.published()], 60, what="the next event")
    assert len(shop.published()) == 5


def test_a_record_that_its_topic_rejects_stops_the_pipeline_if_configured(shop: Shop) -> None:
    shop.configure(dead_letters={"reasons": {"permanent_failure": "halt"}})
    shop.execute("ALTER TABLE outbox ADD COLUMN remark text")
    connector = shop.start()
    before = shop.positions()[-1]
    shop.execute(BIG_HEADER, str(uuid.uuid4()), 70_000)
    connector.failed("Halted")
    assert shop.positions()[-1].lsn == before.lsn
    assert shop.published() == []


@contextmanager
def config_of(shop: Shop, topic: str, name: str, value: str) -> Iterator[None]:
    """Changes a setting of a topic and restores it afterwards."""
    admin = shop.kafka.admin()

    def alter(operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(20)

    alter(AlterConfigOpType.SET)
    try:
        yield
    finally:
        alter(AlterConfigOpType.DELETE)


def test_a_dead_letter_that_is_refused_stops_the_pipeline(shop: Shop) -> None:
    """Row 58: the event cannot be stored anywhere, and the position does not change."""
    shop.start().stop()
    with config_of(shop, shop.letters, "max.message.bytes", "2000"):
        connector = shop.start()
        before = shop.positions()[-1]
        shop.insert(json.dumps({"order": "x" * 3000}))
        connector.failed("TopicRefused")
        assert shop.positions()[-1].lsn == before.lsn
