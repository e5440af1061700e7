"""Debezium's configurations of an outbox connector, sent to a Tailrace worker: both databases, and their offsets."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from helpers.connect import ORDER, ConnectWorker
from helpers.shop import Shop
from helpers.users import Users
from tailrace.config.debezium_keys import MONGO, POSTGRES, ROUTER_CLASSES
from tailrace.testkit.stack import wait_until

ROUTED = "${routedByValue}"


def router(connector: str, topic: str) -> dict[str, str]:
    return {
        "connector.class": connector,
        "tasks.max": "1",
        "topic.prefix": "dbserver1",
        "transforms": "outbox",
        "transforms.outbox.type": ROUTER_CLASSES[connector],
        "transforms.outbox.route.topic.replacement": topic,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }


def test_an_outbox_of_postgres(connect: ConnectWorker, shop: Shop) -> None:
    request, name = connect.request, shop.name
    parts = conninfo_to_dict(shop.dsn)
    config = {
        **router(POSTGRES, f"{name}.{ROUTED}s"),
        "database.hostname": parts["host"],
        "database.port": parts["port"],
        "database.user": parts["user"],
        "database.password": parts["password"],
        "database.dbname": parts["dbname"],
        "plugin.name": "pgoutput",
        "slot.name": f"debezium_{name}",
        "publication.name": f"dbz_{name}",
        "publication.autocreate.mode": "filtered",
        "table.include.list": "public.outbox",
        "heartbeat.interval.ms": 5000,
        "transforms.outbox.table.field.event.timestamp": "created_at",
        "transforms.outbox.table.op.invalid.behavior": "warn",
    }
    before = shop.insert(ORDER)  # snapshot.mode is initial
    plugin = f"/connector-plugins/{POSTGRES}/config/validate"
    assert request("PUT", plugin, {**config, "name": name}).json()["error_count"] == 0
    created = request("POST", "/connectors", {"name": name, "config": config})
    assert created.status_code == 201, created.text
    assert created.json()["config"]["database.password"] == "***"
    request.is_in(name, "RUNNING")
    after = shop.insert(ORDER)
    wait_until(lambda: {before, after} <= {each.id for each in shop.published()}, 120, what="both events")
    assert shop.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", f"debezium_{name}")
    ignored = {line["key"] for line in connect.process.events("key ignored", name)}
    assert {"topic.prefix", "heartbeat.interval.ms", "snapshot.mode"} <= ignored
    changed = request("PATCH", f"/connectors/{name}/config", {"slot.max.retries": 3, "max.batch.size": 100})
    assert changed.status_code == 200, changed.text
    request.is_in(name, "RUNNING")
    refused = request("PATCH", f"/connectors/{name}/config", {"database.hostname": "elsewhere.example.org"})
    assert refused.status_code == 400  # its password would be sent there
    assert "database.password" in refused.json()["message"]
    request("DELETE", f"/connectors/{name}")


@pytest.mark.slow
def test_an_outbox_of_mongodb_and_its_offsets(connect: ConnectWorker, users: Users) -> None:
    request, name = connect.request, users.name
    config = {
        **router(MONGO, f"{name}.{ROUTED}s"),
        "mongodb.connection.string": users.mongo.uri,
        "collection.include.list": f"{users.database}.events",
        "transforms.outbox.collection.field.event.key": "aggregateid",
        "capture.mode": "change_streams",
    }
    with users.client() as client:
        client[users.database].create_collection("events")

    def insert() -> str:
        event = str(uuid.uuid4())
        document: dict[str, Any] = {
            "_id": event, "aggregatetype": "user", "aggregateid": "u1", "type": "UserChanged", "payload": {"user": "u1"}
        }  # fmt: skip
        with users.client() as client:
            client[users.database]["events"].insert_one(document)
        return event

    def count(event: str) -> int:
        return [each.id for each in users.published()].count(event)

    def offset() -> dict[str, Any]:
        [entry] = request.get(f"/connectors/{name}/offsets")["offsets"]
        assert entry["partition"] == {"server_id": name}
        return dict(entry["offset"])

    created = request("PUT", f"/connectors/{name}/config", config)
    assert created.status_code == 201, created.text
    request.is_in(name, "RUNNING")
    first = insert()
    wait_until(lambda: count(first) == 1, 120, what="the first event")
    begin = offset()
    second = insert()
    wait_until(lambda: count(second) == 1, 120, what="the second event")
    wait_until(lambda: offset()["resume_token"] > begin["resume_token"], 60, what="a later token")
    request("PUT", f"/connectors/{name}/stop")
    request.is_in(name, "STOPPED")
    entry = {"partition": {"server_id": name}, "offset": begin}
    moved = request("PATCH", f"/connectors/{name}/offsets", {"offsets": [entry]})
    assert moved.status_code == 200, moved.text
    wrong = {"partition": {"server_id": name}, "offset": {"resume_token": "nonsense"}}
    assert request("PATCH", f"/connectors/{name}/offsets", {"offsets": [wrong]}).status_code == 400
    later = {"partition": {"server_id": name}, "offset": {"sec": 4_000_000_000, "ord": 1}}
    refused = request("PATCH", f"/connectors/{name}/offsets", {"offsets": [later]})
    assert refused.status_code == 400
    assert "in the future" in refused.json()["message"]
    request("PUT", f"/connectors/{name}/resume")
    request.is_in(name, "RUNNING")
    wait_until(lambda: count(second) == 2, 120, what="the second event again")
    request("DELETE", f"/connectors/{name}")
