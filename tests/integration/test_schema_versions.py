"""Events with versions such as 1.10.0, from their rows to Kafka."""

from __future__ import annotations

import json

import pytest

from helpers.shop import SCHEMA, Shop
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import read_all

TOTAL = {"type": "object", "required": ["total"], "properties": {"total": {"type": "integer"}}}
NOTE = {"type": "object", "required": ["note"], "properties": {"note": {"type": "string"}}}


@pytest.fixture
def versioned(shop: Shop) -> Shop:
    """A shop whose rows name their version, with schemas that accept different payloads."""
    shop.execute("ALTER TABLE outbox ADD COLUMN schema_version text")
    shop.configure(outbox={"columns": {"timestamp": "created_at", "version": "schema_version"}})
    for version, schema in {"1.9.0": TOTAL, "1.10.0": NOTE}.items():
        (shop.folder / "schemas" / "OrderPlaced" / f"{version}.json").write_text(json.dumps(schema))
    return shop


def insert(shop: Shop, version: str | None, payload: dict[str, object]) -> str:
    event = shop.insert(json.dumps(payload))
    shop.execute("UPDATE outbox SET schema_version = %s WHERE id = %s", version, event)
    return event


def test_each_event_is_validated_against_its_version(versioned: Shop) -> None:
    shop = versioned
    shop.configure(source={"start": "beginning"})
    order = {"order": "o", "revision": 1, "amount": 1.5, "currency": "EUR"}
    assert set(order) == set(SCHEMA["required"])  # type: ignore[call-overload]
    good = {
        insert(shop, "1.9.0", {"total": 1}): b"1.9.0",
        insert(shop, "1.10.0", {"note": "x"}): b"1.10.0",
        insert(shop, None, {"note": "the latest is 1.10.0"}): None,
        insert(shop, "1", order): b"1",
        insert(shop, "1.0.0", order): b"1.0.0",
    }
    bad = {
        insert(shop, "1.10.0", {"total": 1}): "violates version 1.10.0 of OrderPlaced",
        insert(shop, "1.11.0", {"note": "x"}): "registered versions: 1, 1.9.0, 1.10.0",
        insert(shop, "1.0", {"note": "x"}): "'1.0' is not a schema version",
    }
    shop.start()
    wait_until(lambda: len(shop.published()) + len(shop.dead_lettered()) >= 8, 60, what="all events")
    records = read_all(shop.kafka.bootstrap, [shop.topic])
    headers = [dict(record.headers() or []) for record in records]
    assert {each["id"].decode(): each.get("schema_version") for each in headers} == good
    letters = [dict(record.headers() or []) for record in read_all(shop.kafka.bootstrap, [shop.letters])]
    reasons = {each["id"].decode(): each["tailrace.explanation"].decode() for each in letters}
    assert reasons.keys() == bad.keys()
    for event, text in bad.items():
        assert text in reasons[event]


def test_a_bad_version_in_the_folder_stops_the_start(versioned: Shop) -> None:
    (versioned.folder / "schemas" / "OrderPlaced" / "1.0.0-beta.json").write_text("{}")
    connector = versioned.start(wait=False)
    assert connector.ended() == 2
    assert "SchemaVersionInvalid: " in connector.log
    assert versioned.confirmed_lsn() is None, "nothing was created in the database"
