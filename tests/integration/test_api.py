"""The JSON API of a worker: every operation answers as the command line does, for both databases."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from helpers.api import Api, parsed, run_locally, serve, stable
from helpers.parking import good
from helpers.service import Service
from helpers.shop import Shop, close_shop, open_shop
from helpers.tiers import postgres_first
from helpers.users import close_users, open_users
from helpers.worker import Workers, put_pipeline
from tailrace.cli.operations import operation
from tailrace.testkit.stack import KafkaBroker, wait_until

BAD = '{"order": "x"}'


@pytest.fixture(params=["postgres", "mongo"])
def service(request: pytest.FixtureRequest, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Service]:
    """A service on one of the databases, with an outbox."""
    if request.param == "postgres":
        shop = open_shop(request.getfixturevalue("postgres"), kafka, tmp_path)
        yield shop
        close_shop(shop)
    else:
        users = open_users(request.getfixturevalue("mongo"), kafka, tmp_path)
        yield users
        close_users(users)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "pipelines"


def add(service: Service, number: int, *, valid: bool = True) -> str:
    """Adds an event; returns its id."""
    if isinstance(service, Shop):
        return service.insert(good(number) if valid else BAD, key=f"k{number}")
    payload: dict[str, Any] = {"user": "u", "revision": number, "email": "u@example.com"}
    return service.insert(f"k{number}", number, payload=payload if valid else {"user": "u"})  # type: ignore[attr-defined, no-any-return]


def dead_letters(api: Api, name: str, count: int) -> list[Any]:
    """Waits until there are open dead letters, and returns them."""
    wait_until(
        lambda: len(api.get(f"/pipelines/{name}/dlq/list")["letters"]) == count, 60, what=f"{count} dead letters"
    )
    found: list[Any] = api.get(f"/pipelines/{name}/dlq/list")["letters"]
    return found


@pytest.mark.slow
def test_every_operation_answers_as_the_command_line(
    workers: Workers, folder: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    file = put_pipeline(folder, service)  # type: ignore[arg-type]
    api = serve(workers.start(folder), service)
    name = service.name
    events = [add(service, number) for number in range(1, 6)]
    bad = [add(service, number, valid=False) for number in range(6, 9)]
    wait_until(lambda: set(events) <= {each.id for each in service.published()}, 60, what="the events")
    letters = dead_letters(api, name, len(bad))

    def compare(
        command: str, *, code: int = 0, query: dict[str, Any] | None = None, words: tuple[str, ...] = ()
    ) -> Any:
        """Compares an operation with the command; returns what both answered."""
        chosen = operation(command)
        local, out, err = run_locally(capsys, *command.split(), file, *words, "--json")
        assert local == code, out + err
        if chosen.long:
            job = api.job(f"/pipelines/{name}/{chosen.path}", query, state="SUCCEEDED" if code in (0, 1) else "FAILED")
            assert job["exit_code"] == code
            found = job["result"] if code in (0, 1) else job["error"]
        else:
            called = api.call(chosen.method, f"/pipelines/{name}/{chosen.path}", **_given(chosen.method, query))
            found = called.json()
            assert (called.headers.get("tailrace-exit-code") == str(code)) == (code in (0, 1)), called.text
        if code in (0, 1):
            assert stable(found) == stable(parsed(out, lines=chosen.lines)), command
        else:
            error = json.loads(err.splitlines()[-1])
            parts = ("what", "why", "remedy")
            assert found == {"code": error["error"], **{part: error[part] for part in parts}}, command
        return found

    # Reads.
    assert compare("status")["state"] == "RUNNING"
    compare("check", code=_exit_code(api, name))
    compare("check", query={"offline": "true"}, words=("--offline",))
    compare("position show")
    wait_until(lambda: api.get(f"/pipelines/{name}/position/history"), 90, what="the position history")
    compare("position history", query={"limit": 1}, words=("--limit", "1"))
    assert len(compare("dlq list", query={"all": "true"}, words=("--all",))["letters"]) == len(bad)
    assert compare("dlq list", query={"type": ["None*"]}, words=("--type", "None*"))["matching"] == 0
    shown = compare("dlq show", query={"letter_id": letters[0]["id"]}, words=(letters[0]["id"],))
    assert shown["now"]["passes"] is False
    compare("dlq parked")
    assert compare("topics plan")["changes"] == []
    assert compare("topics apply", words=("--yes",))["left"] == []
    kind = "OrderPlaced" if isinstance(service, Shop) else "UserRegistered"
    aggregate = "order" if isinstance(service, Shop) else "user"
    route = compare(
        "route explain",
        query={"type": kind, "aggregate": aggregate, "key": "k1"},
        words=("--type", kind, "--aggregate", aggregate, "--key", "k1"),
    )
    assert route["topic"] == service.topic
    assert len(compare("schemas list")["schemas"]) == 2
    assert compare("schemas check")["ok"]
    compare("schemas diff", code=2)
    compare("schemas register", code=2, words=("--yes",))
    compare("archive list", code=2)
    compare("archive check", code=2)
    compare("dlq show", code=2, query={"letter_id": "0-99999"}, words=("0-99999",))
    compare("position reset", code=2, query={"to": "nonsense"}, words=("--to", "nonsense", "--yes"))
    # Jobs that change nothing.
    assert compare("verify")["clean"]
    assert compare("recover plan")["case"] is None
    compare("recover apply", code=2, words=("--yes",))
    # A redrive with an edited payload: published byte for byte.
    edited = good(6) if isinstance(service, Shop) else '{"user": "u", "revision": 6, "email": "u@example.com"}'
    edited = edited.replace("1.5", "1.50")
    body = f'{{"ids": ["{letters[0]["id"]}"], "why": "a typo", "payload": {edited}}}'.encode()
    done = api.job(f"/pipelines/{name}/dlq/redrive", body)
    assert done["result"][-1] == {"summary": {"redriven": 1}}
    assert done["progress"]["lines"] == 2
    redriven = next(each for each in service.published() if each.id == bad[0])
    assert redriven.id == bad[0]
    again = api.job(f"/pipelines/{name}/dlq/redrive", {"ids": [letters[1]["id"]], "dry_run": True})
    assert again["result"][-1] == {"summary": {"failed": 1}}
    assert again["exit_code"] == 1
    done = api.job(f"/pipelines/{name}/dlq/discard", {"ids": [letters[2]["id"]], "why": "test data"})
    assert done["result"][-1] == {"summary": {"discarded": 1}}
    assert [each["id"] for each in dead_letters(api, name, 1)] == [letters[1]["id"]]
    # A replay: the plan is a document, and can also be named by its id.
    planned = api.job(f"/pipelines/{name}/replay/plan", {"id": [events[0], events[1]], "from": "1h"})
    plan = planned["result"]
    assert "file" not in plan
    assert plan["figures"]["events"] == 2
    applied = api.job(f"/pipelines/{name}/replay/apply", {"plan": plan})
    assert applied["result"]["published"] == 2
    assert applied["progress"]["share"] == 1.0
    once_more = api.job(f"/pipelines/{name}/replay/apply", {"plan": plan["id"]})
    assert (once_more["result"]["done"], once_more["result"]["published"]) == (True, 0)
    assert sum(each.id == events[0] for each in service.published()) == 2
    refused = api.post(f"/pipelines/{name}/replay/apply", {"plan": "unknown"}, status=400)
    assert "no plan 'unknown'" in refused["what"]
    forged = api.job(f"/pipelines/{name}/replay/apply", {"plan": {**plan, "id": "forged"}}, state="FAILED")
    assert forged["error"]["code"] == "ConfigError"
    shadow = api.job(f"/pipelines/{name}/replay/plan", {"from": "1h", "shadow": ".shadow", "id": [events[0]]})["result"]
    api.job(f"/pipelines/{name}/replay/apply", {"plan": shadow})
    differences = api.job(f"/pipelines/{name}/replay/diff", {"plan": shadow["id"]})
    assert differences["result"]["replay"] == shadow["id"]


@postgres_first
def test_a_pipeline_is_paused_stopped_rewound_and_restarted(workers: Workers, folder: Path, service: Service) -> None:
    put_pipeline(folder, service)  # type: ignore[arg-type]
    api = serve(workers.start(folder), service)
    name = service.name
    listed = api.get("/pipelines")["pipelines"]
    assert [(each["name"], each["state"], each["target"], each["error"]) for each in listed] == [
        (name, "RUNNING", "RUNNING", None)
    ]
    shown = api.get(f"/pipelines/{name}")
    assert (shown["name"], shown["from_topic"]) == (name, False)
    assert "config" not in shown  # it may contain a password
    assert api.post(f"/pipelines/{name}/pause")["target"] == "PAUSED"
    api.is_in(name, "PAUSED")
    event = add(service, 1)
    api.post(f"/pipelines/{name}/resume")
    wait_until(lambda: [each.id for each in service.published()] == [event], 60, what="the event")
    first = api.get(f"/pipelines/{name}")["pid"]
    api.post(f"/pipelines/{name}/restart")
    wait_until(lambda: api.get(f"/pipelines/{name}")["pid"] != first, 60, what="another process")
    api.is_in(name, "RUNNING")
    running = api.post(f"/pipelines/{name}/position/reset", {"to": "1h"}, status=400)
    assert "is RUNNING" in running["what"]
    api.post(f"/pipelines/{name}/stop")
    api.is_in(name, "STOPPED")
    wait_until(lambda: api.get(f"/pipelines/{name}/status")["state"] == "STOPPED", 60, what="the state STOPPED")
    if not isinstance(service, Shop):  # without a replay window, Postgres keeps no log to go back to
        done = api.post(f"/pipelines/{name}/position/reset", {"to": f"event:{event}"})
        assert done["replay"]
    api.post(f"/pipelines/{name}/start")
    api.is_in(name, "RUNNING")
    if not isinstance(service, Shop):
        wait_until(lambda: [each.id for each in service.published()] == [event, event], 60, what="the replay")
    assert service.in_outbox() == {event}


@pytest.mark.slow
def test_jobs_are_listed_stopped_and_killed(workers: Workers, folder: Path, shop: Shop) -> None:
    put_pipeline(folder, shop)
    api = serve(workers.start(folder), shop)
    api.post(f"/pipelines/{shop.name}/stop")
    api.is_in(shop.name, "STOPPED")
    shop.insert(good(1))
    started = api.post(f"/pipelines/{shop.name}/verify", {"wait": 0}, status=202)
    assert api.ended(started["id"])["result"]["not_yet"] == 1
    lock = _locked(shop)
    running = api.post(f"/pipelines/{shop.name}/verify", status=202)
    wait_until(lambda: api.get(f"/jobs/{running['id']}")["state"] == "RUNNING", 60, what="the job to run")
    assert api.get("/jobs")["jobs"][0]["id"] == running["id"]
    stopped = api.call("DELETE", f"/jobs/{running['id']}").json()
    assert (stopped["state"], stopped["error"]["code"]) == ("STOPPED", "Stopped")
    assert "nothing is published twice" in stopped["error"]["remedy"]
    killed = api.post(f"/pipelines/{shop.name}/verify", status=202)
    wait_until(lambda: api.get(f"/jobs/{killed['id']}")["pid"], 60, what="the job's process")
    os.kill(api.get(f"/jobs/{killed['id']}")["pid"], signal.SIGKILL)
    found = api.ended(killed["id"])
    assert (found["state"], found["error"]["code"]) == ("FAILED", "Killed")
    lock.close()
    assert api.job(f"/pipelines/{shop.name}/verify", {"wait": 0})["result"]["not_yet"] == 1
    assert api.get("/jobs/none", status=404)["code"] == "JobUnknown"
    assert api.call("DELETE", "/jobs/none").status_code == 404
    assert api.worker.stop() == 0
    after = serve(workers.start(folder))
    wait_until(lambda: _answers(after), 60, what="the next worker")
    lost = after.get(f"/jobs/{killed['id']}", status=404)
    assert "Start the operation again" in lost["remedy"]


def test_bad_requests_have_clear_answers(workers: Workers, folder: Path, shop: Shop) -> None:
    put_pipeline(folder, shop)
    api = serve(workers.start(folder), shop)
    name = shop.name

    def refused(method: str, path: str, status: int, body: Any = None, **query: Any) -> str:
        found = api.call(method, path, body, **query)
        assert found.status_code == status, found.text
        assert set(found.json()) == {"code", "what", "why", "remedy"}
        return str(found.json()["what"])

    assert "no pipeline 'none'" in refused("GET", "/pipelines/none/status", 404)
    assert "nothing at" in refused("GET", f"/pipelines/{name}/nothing", 404)
    assert "not possible" in refused("DELETE", f"/pipelines/{name}/status", 405)
    assert "no parameter 'bootstrap'" in refused("GET", f"/pipelines/{name}/dlq/list", 400, bootstrap="x:1")
    assert "limit must be an integer" in refused("GET", f"/pipelines/{name}/dlq/list", 400, limit="many")
    assert "limit must be at least 1" in refused("GET", f"/pipelines/{name}/dlq/list", 400, limit="0")
    assert "type is missing" in refused("GET", f"/pipelines/{name}/route/explain", 400)
    assert "not a JSON object" in refused("POST", f"/pipelines/{name}/verify", 400, b"[1")
    assert "not a JSON object" in refused("POST", f"/pipelines/{name}/verify", 400, b"[]")
    assert "not a JSON object" in refused("POST", f"/pipelines/{name}/verify", 400, b"[" * 100_000)
    assert "jobs must be an integer" in refused("POST", f"/pipelines/{name}/verify", 400, {"jobs": "2"})
    assert "query parameter" in refused("POST", f"/pipelines/{name}/verify", 400, {}, jobs=2)
    assert "not allowed" in refused("GET", f"/pipelines/{name}/position/show", 400, at="a\0b")
    assert "does not run the command 'run'" in refused(
        "POST", f"/pipelines/{name}/command", 400, {"command": "run", "parameters": {}}
    )
    assert "no parameter 'folder'" in refused(
        "POST", f"/pipelines/{name}/command", 400, {"command": "schemas list", "parameters": {"folder": "/etc"}}
    )
    paths = {"command": "dlq redrive", "parameters": {"ids": ["0-0"], "payload": "/etc/hostname"}}
    assert "never a path" in refused("POST", f"/pipelines/{name}/command", 400, paths)
    escaping = {"command": "replay plan", "parameters": {}, "output": "../../etc/x"}
    assert "cannot be the name" in refused("POST", f"/pipelines/{name}/command", 400, escaping)
    assert api.call("POST", f"/pipelines/{name}/verify", b"x" * 2_000_000).status_code == 413


def _given(method: str, query: dict[str, Any] | None) -> dict[str, Any]:
    return {"body": query} if method == "POST" else (query or {})


def _answers(api: Api) -> bool:
    try:
        return bool(api.get("/pipelines"))
    except httpx2.TransportError:
        return False


def _exit_code(api: Api, name: str) -> int:
    return int(api.call("GET", f"/pipelines/{name}/check").headers["tailrace-exit-code"])


def _locked(shop: Shop) -> Any:
    """Locks the outbox, so that nobody can read it until the connection is closed."""
    connection = psycopg.connect(shop.dsn)
    connection.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
    return connection
