"""Debezium's configuration of an outbox connector, as settings of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.config.connector import check_connector, pipeline_tree, translate
from tailrace.config.debezium_keys import HARMLESS, MONGO, POSTGRES, REFUSED, ROUTER_CLASSES
from tailrace.config.flat import flatten

# The example of Debezium's documentation of the outbox event router, with a connector around it.
OUTBOX = {
    "connector.class": POSTGRES,
    "tasks.max": "1",
    "database.hostname": "postgres",
    "database.port": "5433",
    "database.user": "connector",
    "database.password": "${env:DB_PASSWORD}",
    "database.dbname": "shop",
    "topic.prefix": "dbserver1",
    "plugin.name": "pgoutput",
    "slot.name": "outbox_slot",
    "publication.name": "outbox_pub",
    "table.include.list": r"inventory\.outboxevent",
    "tombstones.on.delete": "false",
    "heartbeat.interval.ms": "10000",
    "transforms": "outbox",
    "transforms.outbox.type": ROUTER_CLASSES[POSTGRES],
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}
MONGO_OUTBOX = {
    "connector.class": MONGO,
    "mongodb.connection.string": "mongodb://mongo:27017/?replicaSet=rs0",
    "topic.prefix": "dbserver1",
    "collection.include.list": "shop.outbox",
    "transforms": "outbox",
    "transforms.outbox.type": ROUTER_CLASSES[MONGO],
}


def flat(config: dict[str, str], **more: str) -> dict[str, str]:
    return flatten(pipeline_tree("orders", {**config, **more}, "kafka:9092"))


def keys(**options: str) -> dict[str, str]:
    """Options of the event router of Postgres; `_` stands for `.`."""
    return {f"transforms.outbox.{name.replace('_', '.')}": text for name, text in options.items()}


def refused(config: dict[str, str], key: str) -> str:
    found = check_connector("orders", config, Path("/nowhere"), {"DB_PASSWORD": "pw-12345"}, "kafka:9092")
    [problem] = [problem for problem in found.problems if problem.key == key]
    return problem.text


def test_an_outbox_of_postgres() -> None:
    assert flat(OUTBOX) == {
        "pipeline": "orders",
        "source.postgres": "postgresql://connector:${env:DB_PASSWORD}@postgres:5433/shop",
        "source.table": "inventory.outboxevent",
        "source.slot": "outbox_slot",
        "source.publication": "outbox_pub",
        "source.start": "beginning",
        "format.key": "bytes",
        "format.value": "json",
        "kafka.bootstrap": "kafka:9092",
    }
    found = check_connector("orders", OUTBOX, Path("/nowhere"), {"DB_PASSWORD": "p@ss/1"}, "kafka:9092")
    assert found.problems == []
    assert found.settings is not None
    assert found.settings.source.postgres is not None
    assert found.settings.source.postgres.reveal() == "postgresql://connector:p%40ss%2F1@postgres:5433/shop"
    assert {"topic.prefix", "heartbeat.interval.ms", "tombstones.on.delete", "snapshot.mode"} <= set(found.notes)


def test_an_outbox_of_mongodb() -> None:
    assert flat(MONGO_OUTBOX) == {
        "pipeline": "orders",
        "source.mongo": "mongodb://mongo:27017/?replicaSet=rs0",
        "source.collection": "shop.outbox",
        "source.start": "beginning",
        "outbox.layout": "debezium",
        "kafka.bootstrap": "kafka:9092",
    }
    found = check_connector("orders", MONGO_OUTBOX, Path("/nowhere"), {}, "kafka:9092")
    assert found.problems == []


@pytest.mark.parametrize(
    ("more", "settings"),
    [
        ({"database.password": "p@ss/1"}, {"source.postgres": "postgresql://connector:p%40ss%2F1@postgres:5433/shop"}),
        (
            {"database.hostname": "::1"},
            {"source.postgres": "postgresql://connector:${env:DB_PASSWORD}@[::1]:5433/shop"},
        ),
        (
            {"database.sslmode": "verify-full", "database.sslrootcert": "/ca.pem"},
            {
                "source.postgres": "postgresql://connector:${env:DB_PASSWORD}@postgres:5433/shop"
                "?sslmode=verify-full&sslrootcert=%2Fca.pem"
            },
        ),
        ({"source.postgres": "host=other dbname=x"}, {"source.postgres": "host=other dbname=x"}),
        ({"slot.failover": "true"}, {"source.failover": "true"}),
        ({"publication.autocreate.mode": "filtered"}, {"source.create": "true"}),
        ({"publication.autocreate.mode": "disabled"}, {"source.create": "false"}),
        ({"snapshot.mode": "no_data"}, {"source.start": "now"}),
        ({"snapshot.mode": "never"}, {"source.start": "now"}),
        ({"snapshot.mode": "when_needed"}, {"source.start": "beginning", "source.on_log_loss": "recover"}),
        ({"max.batch.size": "2048"}, {"limits.batch_records": "2048"}),
        ({"table.include.list": "^inventory.outboxevent$"}, {"source.table": "inventory.outboxevent"}),
        ({"source.replay_window": "24 h"}, {"source.replay_window": "24 h"}),
        (keys(table_field_event_id="event_id"), {"outbox.columns.id": "event_id"}),
        (keys(table_field_event_key="team"), {"outbox.columns.key": "team"}),
        (keys(table_field_event_type="kind"), {"outbox.columns.type": "kind"}),
        (keys(table_field_event_payload="body"), {"outbox.columns.payload": "body"}),
        (keys(table_field_event_timestamp="at"), {"outbox.columns.timestamp": "at"}),
        (keys(table_field_event_schema_version="v"), {"outbox.columns.version": "v"}),
        (keys(route_by_field="aggregate"), {"outbox.columns.aggregate": "aggregate"}),
        (keys(route_by_field="type"), {"topics.template": "outbox.event.{type}"}),
        (
            keys(route_by_field="type", route_topic_replacement="${routedByValue}.events"),
            {"topics.template": "{type}.events"},
        ),
        (keys(route_topic_replacement="${routedByValue}.events"), {"topics.template": "{aggregate}.events"}),
        (keys(route_topic_replacement="events"), {"topics.template": "events"}),
        (keys(route_topic_regex="(?<routedByValue>.*)"), {}),
        (keys(table_op_invalid_behavior="fatal"), {"source.on_change": "halt"}),
        (keys(table_op_invalid_behavior="warn"), {"source.on_change": "ignore"}),
        (keys(table_fields_additional_placement="type:header,tenant:header:tenant"), {}),
        (keys(table_expand_json_payload="true", route_tombstone_on_empty_payload="true"), {}),
    ],
)
def test_keys_of_postgres_and_of_the_event_router(more: dict[str, str], settings: dict[str, str]) -> None:
    assert flat(OUTBOX, **more) == {**flat(OUTBOX), **settings}


@pytest.mark.parametrize(
    ("more", "settings"),
    [
        (
            {"mongodb.user": "u", "mongodb.password": "p@ss", "mongodb.authsource": "admin"},
            {"source.mongo": "mongodb://u:p%40ss@mongo:27017/?replicaSet=rs0&authSource=admin"},
        ),
        (
            {"mongodb.connection.string": "mongodb+srv://mongo", "mongodb.ssl.enabled": "true"},
            {"source.mongo": "mongodb+srv://mongo/?tls=true"},
        ),
        ({"collection.include.list": r"shop\.outbox, shop.other"}, {"source.collection": "shop.outbox,shop.other"}),
        (keys(collection_field_event_key="team"), {"outbox.columns.key": "team"}),
        (keys(collection_fields_additional_placement="tenant:header"), {}),
        (keys(collection_op_invalid_behavior="fatal"), {}),
        ({"capture.mode": "change_streams", "mongodb.connection.mode": "replica_set"}, {}),
    ],
)
def test_keys_of_mongodb(more: dict[str, str], settings: dict[str, str]) -> None:
    assert flat(MONGO_OUTBOX, **more) == {**flat(MONGO_OUTBOX), **settings}


@pytest.mark.parametrize(
    ("more", "key", "remedy"),
    [
        ({"plugin.name": "decoderbufs"}, "plugin.name", "pgoutput"),
        ({"table.include.list": "public.outbox_.*"}, "table.include.list", "public.outbox"),
        ({"table.include.list": "public.a,public.b"}, "table.include.list", "one connector"),
        ({"table.include.list": ""}, "table.include.list", "public.outbox"),
        ({"database.hostname": ""}, "database.hostname", "source.postgres"),
        ({"snapshot.mode": "always"}, "snapshot.mode", "tailrace replay"),
        ({"snapshot.mode": "sometimes"}, "snapshot.mode", "initial"),
        ({"publication.autocreate.mode": "some"}, "publication.autocreate.mode", "filtered"),
        ({"slot.drop.on.stop": "true"}, "slot.drop.on.stop", "loses events"),
        ({"table.exclude.list": "a.b"}, "table.exclude.list", "table.include.list"),
        ({"transforms": ""}, "transforms", "EventRouter"),
        (
            {"transforms": "outbox,unwrap", "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState"},
            "transforms.unwrap.type",
            "remove unwrap",
        ),
        (keys(route_topic_regex="(.*)-v1"), "transforms.outbox.route.topic.regex", "topics.folder"),
        (keys(route_topic_replacement="${other}"), "transforms.outbox.route.topic.replacement", "${routedByValue}"),
        (
            keys(table_fields_additional_placement="type:header:eventType"),
            "transforms.outbox.table.fields.additional.placement",
            "the header type",
        ),
        (
            keys(table_fields_additional_placement="type:envelope"),
            "transforms.outbox.table.fields.additional.placement",
            "header",
        ),
        (keys(table_field_evnet_id="x"), "transforms.outbox.table.field.evnet.id", "correct the name"),
        (keys(table_op_invalid_behavior="x"), "transforms.outbox.table.op.invalid.behavior", "fatal"),
        ({"slot.nam": "x"}, "slot.nam", "correct the name"),
        # Found by the model, and reported under Debezium's key.
        ({"slot.name": "Not-A-Slot"}, "slot.name", "slot: tailrace_orders"),
        ({"table.include.list": "a.b.c"}, "table.include.list", "public.outbox"),
        ({"max.batch.size": "many"}, "max.batch.size", "6000"),
    ],
)
def test_what_cannot_be_translated_is_refused_with_a_remedy(more: dict[str, str], key: str, remedy: str) -> None:
    text = refused({**OUTBOX, **more}, key)
    assert remedy.lower() in text.lower()
    assert text.startswith(key)


def test_what_mongodb_needs_is_named() -> None:
    assert "mongodb://" in refused({**MONGO_OUTBOX, "mongodb.connection.string": ""}, "mongodb.connection.string")
    assert "shop.outbox" in refused({**MONGO_OUTBOX, "collection.include.list": ""}, "collection.include.list")
    assert "name" in refused({**MONGO_OUTBOX, "collection.include.list": "shop.*"}, "collection.include.list")
    assert "tlsCAFile" in refused({**MONGO_OUTBOX, "mongodb.ssl.truststore": "/x"}, "mongodb.ssl.truststore")


@pytest.mark.parametrize("key", [key.replace("*", "x") for key in HARMLESS if key not in REFUSED])
def test_harmless_keys_are_ignored_with_a_reason(key: str) -> None:
    found = translate("orders", {**OUTBOX, key: "something"}, "kafka:9092")
    assert not any(problem.key == key for problem in found.problems)
    assert found.notes[key]


@pytest.mark.parametrize("key", [key.replace("*", "x") for key in REFUSED])
def test_a_refused_key_that_is_off_has_no_effect(key: str) -> None:
    found: Any = translate("orders", {**OUTBOX, key: "false"}, "kafka:9092")
    assert found.problems == []
