"""Routes of Connect's REST API on a manager without servers: methods, bodies, errors, validation, loggers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tailrace.api.app import create_app
from tailrace.api.connect.openapi import OPENAPI_PATH, document
from tailrace.api.connect.routes import _handlers
from tailrace.config.connector import KINDS, POSTGRES
from tailrace.config.debezium_keys import POSTGRES as DEBEZIUM
from tailrace.manager.managed import ManagedPipeline
from tailrace.manager.manager import PipelineManager
from tailrace.manager.report import RUNNING

CONFIG = {"connector.class": POSTGRES, "source.postgres": "host=db", "source.table": "outbox"}


class Manager(PipelineManager):
    """A manager whose pipelines are set by hand."""

    @property
    def bootstrap(self) -> str:
        return "kafka:9092"

    def add(self, name: str, config: Mapping[str, str], *, from_topic: bool = True) -> ManagedPipeline:
        found = ManagedPipeline(name, dict(config), Path(f"{name}.yaml"), from_topic)
        found.state = RUNNING
        self.pipelines[name] = found
        return found

    async def create(self, name: str, config: Mapping[str, str], target: str) -> ManagedPipeline:
        if name in self.pipelines:
            return await super().create(name, config, target)
        found = self.add(name, config)
        found.target = target
        return found

    async def update(self, name: str, config: Mapping[str, str]) -> ManagedPipeline:
        return self.add(name, config)


@pytest.fixture
def manager() -> Iterator[Manager]:
    found = Manager()
    yield found
    asyncio.run(found.close())


@pytest.fixture
def client(manager: Manager) -> Iterator[TestClient]:
    with TestClient(create_app(manager), raise_server_exceptions=False) as client:
        yield client


def error(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert set(found) == {"error_code", "message"}
    assert found["error_code"] == status
    return str(found["message"])


def test_methods(client: TestClient) -> None:
    refused = client.delete("/connectors")
    error(refused, 405)
    assert set(refused.headers["allow"].split(",")) == {"GET", "POST", "HEAD", "OPTIONS"}
    assert client.options("/connectors").headers["allow"] == refused.headers["allow"]
    assert client.head("/connectors").status_code == 200
    error(client.post("/connectors/x/pause"), 405)
    error(client.get("/nothing"), 404)
    error(client.get("/connectors/x/nothing"), 404)


def test_a_path_may_end_with_a_slash(client: TestClient, manager: Manager) -> None:
    manager.add("orders", CONFIG)
    for path in (
        "/connectors",
        "/connectors/orders",
        "/connectors/orders/status",
        "/connector-plugins",
        "/admin/loggers",
    ):
        answer = client.get(f"{path}/", follow_redirects=False)  # not every client follows them
        assert answer.status_code == 200
        assert answer.json() == client.get(path).json()


def test_null_is_not_a_value(client: TestClient) -> None:
    answer = client.post("/connectors", json={"name": "a", "config": {**CONFIG, "on_invalid": None}})
    assert "Null value can not be supplied" in error(answer, 400)


NAMED = [
    ("GET", ""), ("DELETE", ""), ("GET", "/config"), ("PATCH", "/config"), ("GET", "/status"), ("POST", "/restart"),
    ("PUT", "/pause"), ("PUT", "/resume"), ("PUT", "/stop"), ("GET", "/tasks"), ("GET", "/tasks-config"),
    ("GET", "/tasks/0/status"), ("POST", "/tasks/0/restart"), ("GET", "/topics"), ("PUT", "/topics/reset"),
    ("GET", "/offsets"), ("PATCH", "/offsets"), ("DELETE", "/offsets"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), NAMED)
@pytest.mark.parametrize(
    "name", ["missing", "%C3%BCn%C3%AFc%C3%B6de", "a%20b", "%FF", "x" * 5000, "..%00", "%7Bname%7D"]
)
def test_unknown_names(client: TestClient, method: str, path: str, name: str) -> None:
    error(client.request(method, f"/connectors/{name}{path}", json={}), 404)


@pytest.mark.parametrize("name", ["a%2Fb", "a/b", "a%2Fb%2Fc"])
def test_names_with_slashes_are_unknown_paths(client: TestClient, name: str) -> None:
    error(client.get(f"/connectors/{name}"), 404)
    assert "a-z" in error(client.post("/connectors", json={"name": "a/b", "config": CONFIG}), 400)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nonsense", b"[]", b"null", b"7", b'"text"', b"\xff\xfe", b'{"name": NaN}', b"[" * 100_000,
        b'{"name": "a", "config": null}', b'{"name": "a"}', b'{"name": "a", "config": []}', b'{"name": "a\\ud800"}',
        b'{"name": "a", "config": {"x": {}}}', b'{"name": "a", "config": {"x": []}}',
        b'{"name": "a", "config": {"x": null}}', b'{"name": "a", "config": {}, "more": 1}',
        b'{"name": "a", "config": {}, "initial_state": "SLEEPING"}', b'{"name": "a", "config": {}, "initial_state": 1}',
        b'{"name": "a", "config": {"name": "b"}}', b'{"name": null, "config": {}}', b'{"name": [], "config": {}}',
        b'{"name": "", "config": {}}', b'{"name": "A B", "config": {}}', b'{"name": "a", "config": {}}',
    ],
)  # fmt: skip
def test_bad_bodies_are_refused_with_400(client: TestClient, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    assert error(client.post("/connectors", content=body, headers=headers), 400)
    assert error(client.put("/connectors/a/config", content=body, headers=headers), 400)


def test_only_json_is_accepted(client: TestClient) -> None:
    error(client.post("/connectors", content="a=b", headers={"content-type": "application/x-www-form-urlencoded"}), 415)
    created = client.post(
        "/connectors",
        content=b'{"name": "a", "config": {"connector.class": "PostgresOutbox", "source.postgres": "host=db", '
        b'"source.table": "outbox", "tasks.max": 1, "source.create": true, "source.link_timeout": 2.5}}',
        headers={"content-type": "application/json; charset=utf-8"},
    )
    assert created.status_code == 201, created.text
    assert created.json()["config"]["tasks.max"] == "1"
    assert created.json()["config"]["source.create"] == "true"


def test_all_problems_are_in_one_message(client: TestClient) -> None:
    bad = {**CONFIG, "topics.partitions": "x", "mistyped": "y"}
    message = error(client.post("/connectors", json={"name": "a", "config": bad}), 400)
    assert message.startswith("Connector configuration is invalid and contains the following 2 error(s):\n")
    assert "topics.partitions is 'x'" in message
    assert "mistyped is not a setting" in message


def test_creating_changing_and_names(client: TestClient, manager: Manager) -> None:
    body = {"name": "orders", "config": CONFIG, "initial_state": "paused"}
    created = client.post("/connectors", json=body)
    assert created.status_code == 201
    assert created.headers["location"].endswith("/connectors/orders")
    assert manager.pipelines["orders"].target == "PAUSED"
    assert manager.pipelines["orders"].config == {**CONFIG, "name": "orders"}
    error(client.put("/connectors/orders/config", json={**CONFIG, "name": "other"}), 400)
    changed = client.put("/connectors/orders/config", json={**CONFIG, "on_invalid": "halt"})
    assert (changed.status_code, changed.json()["config"]["on_invalid"]) == (200, "halt")
    patched = client.patch("/connectors/orders/config", json={"on_invalid": None, "limits.batch_records": 5})
    assert patched.json()["config"] == {**CONFIG, "name": "orders", "limits.batch_records": "5"}
    error(client.patch("/connectors/orders/config", json={"source.table": None}), 400)


def test_a_mask_is_not_stored(client: TestClient, manager: Manager) -> None:
    secret = {**CONFIG, "source.postgres": "postgresql://u:hunter2@db/shop"}
    assert client.post("/connectors", json={"name": "orders", "config": secret}).status_code == 201
    patched = client.patch("/connectors/orders/config", json={"on_invalid": "halt"})
    assert patched.status_code == 200
    assert manager.pipelines["orders"].config["source.postgres"] == secret["source.postgres"]
    new = {**CONFIG, "source.postgres": "postgresql://u:***@db/shop"}
    assert "***" in error(client.post("/connectors", json={"name": "new", "config": new}), 400)


@pytest.mark.parametrize("plugin", [*KINDS, "PostgresOutbox", "PostgresConnector"])
def test_definitions_of_plugins(client: TestClient, plugin: str) -> None:
    listed = client.get("/connector-plugins?connectorsOnly=false").json()
    assert [each["class"] for each in listed] == list(KINDS)
    assert all(each["type"] == "source" and each["version"] for each in listed)
    names = [each["name"] for each in client.get(f"/connector-plugins/{plugin}/config").json()]
    assert {"name", "connector.class", "tasks.max", "kafka.settings"} <= set(names)


def test_validation(client: TestClient) -> None:
    path = "/connector-plugins/PostgresOutbox/config/validate"
    good = client.put(path, json={**CONFIG, "name": "orders"})
    assert (good.status_code, good.json()["error_count"]) == (200, 0), good.text
    bad = client.put(path, json={**CONFIG, "source.link_timeout": "0", "source.table": None}).json()
    errors = {each["value"]["name"]: each["value"]["errors"] for each in bad["configs"] if each["value"]["errors"]}
    assert set(errors) == {"name", "source.link_timeout"}, errors
    empty = client.put(path, json={}).json()
    assert {"source.postgres", "name"} <= {
        each["value"]["name"] for each in empty["configs"] if each["value"]["errors"]
    }
    message = error(client.put(path, json={"connector.class": DEBEZIUM}), 400)
    assert "does not match request type PostgresOutbox" in message
    error(client.put("/connector-plugins/Nope/config/validate", json={}), 404)
    error(client.get("/connector-plugins/Nope/config"), 404)
    error(client.put(path, content=b"[]", headers={"content-type": "application/json"}), 400)
    # kafka-connect-py sends the configuration as a text.
    assert client.put(path, json='{"source.postgres": "host=db"}').status_code == 200
    error(client.put(path, json="nonsense"), 400)


def test_validation_never_shows_what_a_reference_stands_for(client: TestClient, monkeypatch: Any) -> None:
    monkeypatch.setenv("PLANTED", "planted-s3cret")
    path = "/connector-plugins/PostgresOutbox/config/validate"
    for key in ("source.postgres", "source.table", "kafka.bootstrap", "on_invalid", "topics.partitions", "name"):
        answer = client.put(path, json={**CONFIG, "name": "a", key: "${env:PLANTED}"})
        assert answer.status_code == 200
        assert "planted-s3cret" not in answer.text


def test_loggers(client: TestClient) -> None:
    found = client.get("/admin/loggers").json()
    assert {"root", "tailrace"} <= set(found)
    assert set(found["root"]) == {"level", "last_modified"}
    try:
        changed = client.put("/admin/loggers/tailrace.kafka", json={"level": "debug"})
        assert (changed.status_code, changed.json()) == (200, ["tailrace.kafka"])
        shown = client.get("/admin/loggers/tailrace.kafka").json()
        assert shown["level"] == "DEBUG"
        assert shown["last_modified"] > 1_600_000_000_000
        assert client.put("/admin/loggers/root?scope=cluster", json={"level": "WARN"}).status_code == 204
    finally:
        client.put("/admin/loggers/root", json={"level": "INFO"})
    error(client.get("/admin/loggers/nope"), 404)
    error(client.put("/admin/loggers/root", json={}), 400)
    error(client.put("/admin/loggers/root", json={"level": "LOUD"}), 404)
    error(client.put("/admin/loggers/root", json={"level": 7}), 404)
    error(client.put("/admin/loggers/%FF%20", json={"level": "INFO"}), 400)


def test_the_openapi_document_describes_every_route(manager: Manager, client: TestClient) -> None:
    served = {
        (path, method) for path, handlers in _handlers(manager).items() for method in handlers if path != OPENAPI_PATH
    }
    described = {
        (path, method.upper())
        for path, methods in document()["paths"].items()
        for method in methods
        if method != "parameters"
    }
    assert served == described
    assert client.get(OPENAPI_PATH).json() == document()


def test_a_mistake_of_ours_is_500_without_details(client: TestClient, manager: Manager) -> None:
    manager.add("broken", {}).config = None  # type: ignore[assignment]
    message = error(client.get("/connectors/broken"), 500)
    assert "See the log" in message
