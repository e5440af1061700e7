"""Clients of Kafka Connect, unchanged, drive a connector through its whole life on a Tailrace worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.connect import POSTGRES, ConnectWorker, config_of, publishes, write_json
from helpers.fetched import connect_clients
from helpers.shop import Shop
from tailrace.config.masking import masked

Command = Callable[..., Any]


@pytest.fixture
def kc(connect: ConnectWorker) -> Command:
    """The command `kc` of kafka-connect-py; returns the JSON that it prints."""
    folder = connect_clients()

    def run(*words: object) -> Any:
        command = [sys.executable, str(folder / "bin" / "kc"), "--url", connect.process.url, *map(str, words)]
        environment = {**os.environ, "PYTHONPATH": str(folder), "KAFKA_CONNECT_ENABLE_TRACEBACK": "true"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        try:
            return json.loads(done.stdout) if done.stdout.strip() else None
        except ValueError:
            return done.stdout.strip()  # an error of the server

    return run


@pytest.mark.slow
def test_kc_of_kafka_connect_py(kc: Command, connect: ConnectWorker, shop: Shop, tmp_path: Path) -> None:
    request, name = connect.request, shop.name
    assert set(kc("info")) == {"version", "commit", "kafka_cluster_id"}
    assert POSTGRES in [plugin["class"] for plugin in kc("list-plugins")]
    validated = kc("validate-config", POSTGRES, "-d", json.dumps(config_of(shop, name=name)))
    assert validated["error_count"] == 0, validated
    assert kc("list") == []
    file = write_json(tmp_path / "connector.json", {"name": name, "config": config_of(shop)})
    created = kc("create", "--config-file", file)
    assert (created["name"], created["type"]) == (name, "source")
    assert "409" in kc("create", "--config-file", file)
    request.is_in(name, "RUNNING")
    publishes(shop)
    assert kc("list") == kc("list", "--pattern", "shop_.*", "--state", "RUNNING") == [name]
    assert kc("list", "--state", "FAILED") == []
    assert kc("list", "--expand", "status")[name]["status"]["connector"]["state"] == "RUNNING"
    assert kc("list", "--expand", "info")[name]["info"]["type"] == "source"
    assert kc("get", name)["config"] == kc("config", name) == {**masked(config_of(shop)), "name": name}
    assert kc("status", name)["tasks"][0]["state"] == "RUNNING"
    [task] = kc("list-tasks", name)
    assert kc("task-status", name, task["id"]["task"])["state"] == "RUNNING"
    assert shop.topic in kc("list-topics", name)[name]["topics"]
    kc("reset-topics", name)

    kc("pause", name)
    request.is_in(name, "PAUSED")
    assert kc("list", "--state", "PAUSED") == [name]
    kc("resume", "--all", "--pattern", "shop_.*")
    request.is_in(name, "RUNNING")
    kc("restart-task", name, 0)
    assert kc("restart", name)["name"] == name
    kc("restart", name, "--include-tasks", "--only-failed")
    assert name in kc("restart", "--all", "--include-tasks")
    request.is_in(name, "RUNNING")
    config = write_json(tmp_path / "config.json", config_of(shop, on_invalid="halt"))
    assert kc("update", name, "--config-file", config)["config"]["on_invalid"] == "halt"
    request.is_in(name, "RUNNING")
    publishes(shop)
    assert "404" in kc("status", "missing")
    kc("delete", name)
    assert kc("list") == []


SCRIPT = """
import json, sys
from kafka_connect_api.kafka_connect_api import Api, Cluster, Connector

port, name, config, wanted = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
cluster = Cluster(Api(hostname="127.0.0.1", port=port))
connector = Connector(cluster, name)
if wanted == "create":
    assert cluster.version and cluster.kafka_cluster
    assert name not in cluster.connectors
    connector.config = config
    assert connector.exists()
    assert cluster.connectors[name].connector_class == config["connector.class"]
elif wanted == "running":
    assert connector.state == "RUNNING", connector.status
    [task] = connector.tasks
    assert task.is_running() and task.config["name"] == name
    cluster.root_logger = "INFO"
    assert cluster.root_logger["level"] == "INFO"
    assert cluster.set_logger_log_level("tailrace.kafka", "DEBUG")
    assert cluster.loggers["tailrace.kafka"]["level"] == "DEBUG"
elif wanted == "cycle":
    connector.cycle_connector()
    connector.restart()
    connector.restart_all_tasks()
elif wanted == "pause":
    connector.pause()
elif wanted == "resume":
    connector.resume()
elif wanted == "delete":
    connector.delete()
    assert name not in cluster.connectors
    from kafka_connect_api.errors import GenericNotFound
    try:
        connector.status
    except GenericNotFound:
        pass
    else:
        raise AssertionError("a deleted connector has a status")
print("done")
"""


def test_kafka_connect_api(connect: ConnectWorker, shop: Shop) -> None:
    request, name, folder = connect.request, shop.name, connect_clients()

    def client(wanted: str) -> None:
        words = [str(connect.process.port), name, json.dumps(config_of(shop)), wanted]
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, *words],
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.stdout.strip().endswith("done"), done.stdout + done.stderr

    client("create")
    request.is_in(name, "RUNNING")
    publishes(shop)
    client("running")
    client("pause")
    request.is_in(name, "PAUSED")
    client("cycle")  # ends with resume
    client("resume")
    request.is_in(name, "RUNNING")
    publishes(shop)
    client("delete")
    assert request.get("/connectors") == []
