"""Kafka Connect's REST API on a real worker: the life of a connector, its offsets, its secrets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from helpers.connect import ORDER, ConnectClient, ConnectWorker, config_of, publishes
from helpers.shop import Shop
from helpers.worker import Workers, put_pipeline
from tailrace import __version__
from tailrace.config.masking import masked
from tailrace.testkit.stack import wait_until


def test_the_life_of_a_connector(connect: ConnectWorker, shop: Shop) -> None:
    request, name = connect.request, shop.name
    assert request.get("/connectors") == []
    created = request("POST", "/connectors", {"name": name, "config": config_of(shop)})
    assert created.status_code == 201, created.text
    assert created.headers["location"] == f"{connect.process.url}/connectors/{name}"
    shown = {**masked(config_of(shop)), "name": name}
    assert created.json()["config"] == shown
    assert created.json()["type"] == "source"
    assert request("POST", "/connectors", {"name": name, "config": config_of(shop)}).status_code == 409
    status = request.is_in(name, "RUNNING")
    worker_id = f"127.0.0.1:{connect.process.port}"
    assert status["tasks"] == [{"id": 0, "state": "RUNNING", "worker_id": worker_id, "version": __version__}]
    publishes(shop)

    info = {"name": name, "config": shown, "tasks": [{"connector": name, "task": 0}], "type": "source"}
    assert request.get(f"/connectors/{name}") == request.get(f"/connectors/{name}/") == info
    assert request.get(f"/connectors/{name}/config") == shown
    assert request.get("/connectors") == [name]
    assert request.get("/connectors?expand=info&expand=status&expand=other") == {
        name: {"info": info, "status": request.get(f"/connectors/{name}/status")}
    }
    [task] = request.get(f"/connectors/{name}/tasks")
    assert task["id"] == {"connector": name, "task": 0}
    assert list(request.get(f"/connectors/{name}/tasks-config")) == [f"{name}-0"]
    assert request.get(f"/connectors/{name}/tasks/0/status")["state"] == "RUNNING"
    assert request("GET", f"/connectors/{name}/tasks/1/status").status_code == 404
    assert shop.topic in request.get(f"/connectors/{name}/topics")[name]["topics"]
    assert request("PUT", f"/connectors/{name}/topics/reset").status_code == 202

    pid = connect.process.pid_of(name)
    assert request("POST", f"/connectors/{name}/restart").status_code == 204
    wait_until(lambda: connect.process.pid_of(name) != pid, what="another process")
    request.is_in(name, "RUNNING")
    restarted = request("POST", f"/connectors/{name}/restart?includeTasks=true")
    assert restarted.status_code == 202
    assert restarted.json()["connector"]["state"] == restarted.json()["tasks"][0]["state"] == "RESTARTING"
    request.is_in(name, "RUNNING")
    untouched = request("POST", f"/connectors/{name}/restart?includeTasks=True&onlyFailed=True")
    assert (untouched.status_code, untouched.json()["connector"]["state"]) == (202, "RUNNING")
    assert request("POST", f"/connectors/{name}/tasks/0/restart").status_code == 204
    assert request("POST", f"/connectors/{name}/tasks/7/restart").status_code == 404

    assert request("PUT", f"/connectors/{name}/pause").status_code == 202
    assert request.is_in(name, "PAUSED")["tasks"][0]["state"] == "PAUSED"
    assert request("PUT", f"/connectors/{name}/resume").status_code == 202
    request.is_in(name, "RUNNING")
    assert request("PUT", f"/connectors/{name}/stop").status_code == 204
    assert request.is_in(name, "STOPPED")["tasks"] == []
    assert request.get(f"/connectors/{name}")["tasks"] == []
    assert request("GET", f"/connectors/{name}/tasks/0/status").status_code == 404
    request("PUT", f"/connectors/{name}/resume")
    request.is_in(name, "RUNNING")
    publishes(shop)

    changed = request("PUT", f"/connectors/{name}/config", config_of(shop, **{"limits.batch_records": "7"}))
    assert changed.status_code == 200
    assert changed.json()["config"]["limits.batch_records"] == "7"
    patched = request("PATCH", f"/connectors/{name}/config", {"limits.batch_records": None, "on_invalid": "halt"})
    assert patched.status_code == 200
    assert patched.json()["config"] == {**shown, "on_invalid": "halt"}
    request.is_in(name, "RUNNING")
    publishes(shop)
    assert request("DELETE", f"/connectors/{name}").status_code == 204
    assert request("DELETE", f"/connectors/{name}").status_code == 404
    assert request.get("/connectors") == []


def test_put_creates_and_initial_state_stops(connect: ConnectWorker, shop: Shop) -> None:
    request, name = connect.request, shop.name
    body = {"name": name, "config": config_of(shop), "initial_state": "STOPPED"}
    assert request("POST", "/connectors", body).status_code == 201
    assert request.is_in(name, "STOPPED")["tasks"] == []
    assert request.get(f"/connectors/{name}/offsets") == {"offsets": []}
    refused = request("DELETE", f"/connectors/{name}/offsets")
    assert refused.status_code == 400
    assert "no stored position" in refused.json()["message"]
    assert request("DELETE", f"/connectors/{name}").status_code == 204
    created = request("PUT", f"/connectors/{name}/config", config_of(shop))
    assert created.status_code == 201
    assert created.headers["location"].endswith(f"/connectors/{name}")
    # The stored target state is the one of the deleted connector no longer.
    request.is_in(name, "RUNNING")
    publishes(shop)
    request("DELETE", f"/connectors/{name}")


@pytest.mark.slow
def test_offsets_move_back_and_never_forward(connect: ConnectWorker, shop: Shop) -> None:
    request, name = connect.request, shop.name
    request("POST", "/connectors", {"name": name, "config": config_of(shop, **{"source.replay_window": "1 h"})})
    request.is_in(name, "RUNNING")
    before = lsn(request, name)
    event = shop.insert(ORDER)
    wait_until(lambda: event in {each.id for each in shop.published()}, 120, what="the event")
    wait_until(lambda: lsn(request, name) > before, 60, what="a position behind the event")

    def patch(offset: object, **partition: str) -> tuple[int, str]:
        entry = {"partition": partition or {"server": name}, "offset": offset}
        answer = request("PATCH", f"/connectors/{name}/offsets", {"offsets": [entry]})
        return answer.status_code, str(answer.json().get("message"))

    code, message = patch({"lsn": before})
    assert code == 400
    assert "STOPPED" in message
    request("PUT", f"/connectors/{name}/stop")
    request.is_in(name, "STOPPED")
    assert patch({"lsn": before}, server="another") == (
        400,
        f'the partition of this pipeline is {{"server": "{name}"}}. Write exactly that.',
    )
    code, message = patch({"lsn": 1})
    assert code == 400
    assert "nearest possible points" in message
    assert "oldest" in message
    code, message = patch({"lsn": lsn(request, name) + (1 << 30)})
    assert code == 400
    assert "future" in message
    assert patch({"lsn": "nonsense"})[0] == 400
    stays = patch({"lsn": lsn(request, name)})
    assert stays[0] == 200, stays
    assert "stays where it is" in stays[1]

    moved = patch({"lsn": before})
    assert moved[0] == 200, moved
    assert "moved back" in moved[1]
    assert lsn(request, name) == before
    request("PUT", f"/connectors/{name}/resume")
    request.is_in(name, "RUNNING")
    wait_until(lambda: [each.id for each in shop.published()].count(event) == 2, 120, what="the event again")

    request("PUT", f"/connectors/{name}/stop")
    request.is_in(name, "STOPPED")
    reset = request("DELETE", f"/connectors/{name}/offsets")
    assert reset.status_code == 200, reset.text
    assert lsn(request, name) <= before
    request("DELETE", f"/connectors/{name}")


def lsn(request: ConnectClient, name: str) -> int:
    found = request.get(f"/connectors/{name}/offsets")["offsets"]
    [entry] = found
    assert entry["partition"] == {"server": name}
    return int(entry["offset"]["lsn"])


def test_secrets_are_masked_and_a_returned_mask_keeps_them(connect: ConnectWorker, shop: Shop) -> None:
    request, name = connect.request, shop.name
    shop.execute(f"CREATE ROLE {name} LOGIN SUPERUSER PASSWORD 'planted-s3cret'")
    dsn = make_conninfo(shop.dsn, user=name, password="planted-s3cret")
    created = request("POST", "/connectors", {"name": name, "config": config_of(shop, **{"source.postgres": dsn})})
    assert created.status_code == 201, created.text
    request.is_in(name, "RUNNING")
    shown = request.get(f"/connectors/{name}/config")
    assert "password=***" in shown["source.postgres"]
    updated = request("PUT", f"/connectors/{name}/config", {**shown, "limits.batch_records": "9"})
    assert updated.status_code == 200, updated.text
    request.is_in(name, "RUNNING")
    publishes(shop)
    elsewhere = shown["source.postgres"].replace("host=", "host=elsewhere.")
    refused = request("PUT", f"/connectors/{name}/config", {**shown, "source.postgres": elsewhere})
    assert refused.status_code == 400
    assert "write the secret" in refused.json()["message"].lower()
    texts = [
        request("GET", path).text
        for path in (
            "/connectors?expand=info&expand=status",
            f"/connectors/{name}",
            f"/connectors/{name}/tasks",
            f"/connectors/{name}/tasks-config",
            f"/connectors/{name}/offsets",
            f"/connectors/{name}/topics",
        )
    ]
    validated = request("PUT", "/connector-plugins/PostgresOutbox/config/validate", {**shown, "source.postgres": dsn})
    assert validated.json()["error_count"] == 0, validated.text
    assert "planted" not in "".join([*texts, validated.text, created.text, updated.text, refused.text])
    assert "planted" not in connect.process.log
    request("DELETE", f"/connectors/{name}")


def test_a_failed_connector_has_a_trace_with_the_remedy(connect: ConnectWorker, shop: Shop) -> None:
    request, name = connect.request, shop.name
    request("POST", "/connectors", {"name": name, "config": config_of(shop, **{"source.table": "public.missing"})})
    status = request.is_in(name, "FAILED")
    assert "remedy:" in status["connector"]["trace"]
    assert status["tasks"][0]["trace"] == status["connector"]["trace"]
    restarted = request("POST", f"/connectors/{name}/restart?includeTasks=true&onlyFailed=true")
    assert (restarted.status_code, restarted.json()["connector"]["state"]) == (202, "RESTARTING")
    request.is_in(name, "FAILED")
    fixed = request("PUT", f"/connectors/{name}/config", config_of(shop))
    assert fixed.status_code == 200, fixed.text
    request.is_in(name, "RUNNING")
    assert "trace" not in request.get(f"/connectors/{name}/status")["connector"]
    request("DELETE", f"/connectors/{name}")


def test_files_cannot_be_changed_but_stopped(workers: Workers, shop: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "pipelines"
    put_pipeline(folder, shop)
    worker = workers.start(folder)
    worker.says("listening")
    request, name = ConnectClient(worker.url), shop.name
    request.is_in(name, "RUNNING")
    shown = request.get(f"/connectors/{name}/config")
    assert shown["connector.class"] == "tailrace.PostgresOutbox"
    for answer in (
        request("PUT", f"/connectors/{name}/config", shown),
        request("PATCH", f"/connectors/{name}/config", {"on_invalid": "halt"}),
        request("DELETE", f"/connectors/{name}"),
    ):
        assert answer.status_code == 409
        assert "file" in answer.json()["message"]
    created = request("POST", "/connectors", {"name": "other", "config": config_of(shop)})
    assert created.status_code == 403
    assert "--bootstrap" in created.json()["message"]
    assert request("PUT", f"/connectors/{name}/stop").status_code == 204
    request.is_in(name, "STOPPED")
    assert len(request.get(f"/connectors/{name}/offsets")["offsets"]) == 1


def test_clients_that_change_the_same_connector_at_once(connect: ConnectWorker, shop: Shop) -> None:
    request, name = connect.request, shop.name
    body = {"name": name, "config": config_of(shop), "initial_state": "STOPPED"}
    with ThreadPoolExecutor(8) as clients:
        created = list(clients.map(lambda _: request("POST", "/connectors", body).status_code, range(8)))
        assert sorted(created) == [201] + [409] * 7
        changes = [{f"kafka.settings.x.{number}": "1"} for number in range(8)]
        patched = list(clients.map(lambda change: request("PATCH", f"/connectors/{name}/config", change), changes))
        assert [each.status_code for each in patched] == [200] * 8
        assert all(f"kafka.settings.x.{number}" in request.get(f"/connectors/{name}/config") for number in range(8))
        deleted = list(clients.map(lambda _: request("DELETE", f"/connectors/{name}").status_code, range(8)))
        assert sorted(deleted) == [204] + [404] * 7
