"""A real Debezium 3 on a real worker of Kafka Connect, with the outbox event router, to take over from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
from psycopg.conninfo import conninfo_to_dict

from helpers.connect_runtime import ConnectRuntime
from helpers.fetched import debezium_jars
from helpers.shop import Shop
from tailrace.config.debezium_keys import MONGO, POSTGRES, ROUTER_CLASSES
from tailrace.testkit.stack import KafkaBroker, wait_until
from tailrace.testkit.topic_reader import RecordReader

ROUTED = "${routedByValue}"
STRING = "org.apache.kafka.connect.storage.StringConverter"


class Debezium(ConnectRuntime):
    """A worker with Debezium's connectors for Postgres and MongoDB."""

    def __init__(
        self,
        kafka: KafkaBroker,
        folder: Path,
        *,
        exactly_once: bool = False,
        settings: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """`exactly_once`: offsets are committed in the transaction of their events."""
        support = {"exactly.once.source.support": "enabled"} if exactly_once else {}
        super().__init__(kafka, folder, jars=debezium_jars(), settings={**support, **(settings or {})}, **options)

    def put(self, name: str, config: Mapping[str, str]) -> None:
        """Creates or changes a connector, and waits until its task runs."""
        answer = httpx2.put(f"{self.url}/connectors/{name}/config", json=dict(config), timeout=60)
        assert answer.status_code in (200, 201), answer.text
        self.wait_for(name, "RUNNING")

    def state(self, name: str) -> list[str]:
        """Returns the states of a connector and of its tasks."""
        answer = httpx2.get(f"{self.url}/connectors/{name}/status", timeout=60)
        if answer.status_code != 200:
            return []
        found = answer.json()
        return [found["connector"]["state"], *(task["state"] for task in found["tasks"])]

    def wait_for(self, name: str, state: str) -> None:
        wanted = [state] if state == "STOPPED" else [state, state]
        wait_until(lambda: self.state(name) == wanted, 120, what=f"{name} {state}; see {self.log}")

    def stop_connector(self, name: str) -> None:
        self._act(name, "stop", "STOPPED")

    def pause(self, name: str) -> None:
        self._act(name, "pause", "PAUSED")

    def resume(self, name: str) -> None:
        self._act(name, "resume", "RUNNING")

    def _act(self, name: str, verb: str, state: str) -> None:
        answer = httpx2.put(f"{self.url}/connectors/{name}/{verb}", timeout=60)
        assert answer.status_code in (202, 204), answer.text
        self.wait_for(name, state)

    def offset(self, name: str) -> dict[str, Any] | None:
        """Returns the stored offset, as the worker knows it."""
        answer = httpx2.get(f"{self.url}/connectors/{name}/offsets", timeout=60)
        offsets = answer.json().get("offsets", [])
        return dict(offsets[0]["offset"]) if offsets else None


def postgres_config(dsn: str, name: str, topic: str, **more: str) -> dict[str, str]:
    """The configuration of an outbox connector for Postgres; `topic` is its prefix of topics."""
    parts = conninfo_to_dict(dsn)
    return {
        "connector.class": POSTGRES,
        "database.hostname": str(parts["host"]),
        "database.port": str(parts["port"]),
        "database.user": str(parts["user"]),
        "database.password": str(parts["password"]),
        "database.dbname": str(parts["dbname"]),
        "plugin.name": "pgoutput",
        "slot.name": f"debezium_{name}",
        "publication.name": f"dbz_{name}",
        "publication.autocreate.mode": "filtered",
        "table.include.list": "public.outbox",
        **_outbox(POSTGRES, topic),
        **more,
    }


def mongo_config(uri: str, database: str, topic: str, **more: str) -> dict[str, str]:
    return {
        "connector.class": MONGO,
        "mongodb.connection.string": uri,
        "collection.include.list": f"{database}.events",
        "capture.mode": "change_streams",
        **_outbox(MONGO, topic),
        **more,
    }


def _outbox(connector: str, topic: str) -> dict[str, str]:
    return {
        "tasks.max": "1",
        "topic.prefix": "dbz",
        "transforms": "outbox",
        "transforms.outbox.type": ROUTER_CLASSES[connector],
        "transforms.outbox.route.topic.replacement": f"{topic}.{ROUTED}",
        "key.converter": STRING,
        "value.converter": STRING,
        "snapshot.mode": "no_data",
        "poll.interval.ms": "50",
        "topic.creation.default.partitions": "3",
        "topic.creation.default.replication.factor": "1",
    }


def write_config(file: Path, name: str, config: Mapping[str, str]) -> Path:
    """Writes a configuration as it is sent to Kafka Connect."""
    file.write_text(json.dumps({"name": name, "config": dict(config)}, indent=2))
    return file


class OutboxConnector:
    """A connector for the outbox of a shop, with the slot that the shop's pipeline will take over."""

    def __init__(self, debezium: Debezium, shop: Shop, **more: str) -> None:
        self.debezium = debezium
        self.shop = shop
        self.name = shop.name
        self.config = postgres_config(shop.dsn, shop.name, shop.name) | {
            "slot.name": shop.slot,
            "transforms.outbox.route.topic.replacement": shop.topic,
            "transforms.outbox.table.fields.additional.placement": "type:header,traceparent:header",
            "topic.creation.default.partitions": "3",
            **more,
        }
        self.file = write_config(shop.folder / "connector.json", self.name, self.config)
        shop.file.unlink(missing_ok=True)

    def start(self) -> None:
        """Creates the connector, and waits until it streams."""
        self.debezium.put(self.name, self.config)
        wait_until(
            lambda: self.shop.execute("SELECT 1 FROM pg_replication_slots WHERE active AND database = %s", self.name),
            120,
            what=f"the slot of Debezium; see {self.debezium.log}",
        )

    def command(self, *arguments: object) -> list[str]:
        """Returns the arguments of `tailrace import` for it."""
        given = ["--file", self.shop.file, "--bootstrap", self.shop.kafka.bootstrap]
        given += ["--offsets", self.debezium.offsets_topic, *arguments]
        return ["import", "debezium", str(self.file), *map(str, given)]

    def has_published(self, count: int) -> None:
        """Waits until at least that many events are on the topic."""
        with RecordReader(self.shop.kafka.bootstrap, [self.shop.topic]) as reader:
            wait_until(lambda: len(reader.more()) >= count, 240, what=f"{count} events; see {self.debezium.log}")
