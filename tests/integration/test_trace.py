"""`tailrace trace`: the passport of an event in each situation, for both databases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.api import run_locally, serve
from helpers.command import Tailrace
from helpers.parking import good
from helpers.service import Service
from helpers.shop import Shop, close_shop, open_shop
from helpers.tiers import postgres_first
from helpers.users import Users, close_users, open_users
from helpers.worker import Workers, put_pipeline
from tailrace.projections.core.store import Marker, Partition
from tailrace.projections.mongo.store import MongoStore
from tailrace.projections.postgres.store import PostgresStore
from tailrace.testkit.stack import KafkaBroker, wait_until

BAD = '{"order": "SECRET-PAYLOAD"}'


@pytest.fixture(params=["postgres", "mongo"])
def service(request: pytest.FixtureRequest, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Shop | Users]:
    if request.param == "postgres":
        shop = open_shop(request.getfixturevalue("postgres"), kafka, tmp_path)
        yield shop
        close_shop(shop)
    else:
        users = open_users(request.getfixturevalue("mongo"), kafka, tmp_path)
        yield users
        close_users(users)


def add(service: Shop | Users, number: int, *, key: str = "", valid: bool = True) -> str:
    if isinstance(service, Shop):
        return service.insert(good(number) if valid else BAD, key=key or f"k{number}")
    payload = {"user": "u", "revision": number, "email": "u@example.com"} if valid else {"user": "SECRET-PAYLOAD"}
    return service.insert(key or f"k{number}", number, payload=payload)


def arrived(service: Service, *ids: str) -> None:
    wait_until(lambda: set(ids) <= {each.id for each in service.published()}, 60, what="the events")


def wait_for(trace: Callable[[], Any], condition: Callable[[Any], bool]) -> Any:
    last: list[Any] = [None]

    def holds() -> bool:
        last[0] = trace()
        return condition(last[0])

    wait_until(holds, 60, what=f"the expected state of the event, not {last[0]}")
    return last[0]


def test_an_event_before_and_after_it_is_published(service: Shop | Users, tailrace: Tailrace) -> None:
    event = add(service, 1)
    found = tailrace("trace", event, service.file)
    assert (found["state"], found["records"], found["passed"]) == ("not published yet", [], False)
    assert found["validation"]["passes"] is True
    assert found["row"]["key"] == "k1"
    assert found["row"]["created_ms"]
    assert (found["row"]["transaction"] is not None) == isinstance(service, Shop)
    assert (found["stored_position"], found["position"]) == (None, None)
    service.configure(source={"start": "beginning"})
    connector = service.start()
    arrived(service, event)
    later = add(service, 2)
    arrived(service, later)
    found = wait_for(lambda: tailrace("trace", later, service.file), lambda each: each["passed"])
    assert found["state"] == "published"
    (record,) = found["records"]
    assert (record["kind"], record["topic"], record["key"]) == ("original", service.topic, "k2")
    assert (record["replay"], record["redriven"], record["edited"]) == (None, None, False)
    assert found["position"] == record["position"]
    assert found["searched"]["since_ms"] < found["row"]["created_ms"]
    assert found["dead_letters"] == []
    assert "payload" not in json.dumps(found)
    shown = tailrace("trace", later, service.file, "--payload")
    assert shown["records"][0]["payload"]["revision"] == 2
    connector.stop()


@postgres_first
def test_dead_lettered_redriven_and_replayed(
    service: Shop | Users, tailrace: Tailrace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.start()
    event, bad, unwanted = add(service, 1), add(service, 2, valid=False), add(service, 3, valid=False)
    arrived(service, event)
    found = wait_for(lambda: tailrace("trace", bad, service.file), lambda each: each["dead_letters"])
    assert found["state"] == "dead-lettered"
    assert found["validation"]["passes"] is False
    assert found["validation"]["reason"] == "schema_validation_failed"
    letter = found["dead_letters"][0]
    assert (letter["id"], letter["reason"], letter["resolution"]) == ("0-0", "schema_validation_failed", None)
    assert found["position"] == letter["position"]
    code, out, _ = run_locally(capsys, "trace", bad, service.file)
    assert code == 0
    assert "dead-lettered" in out
    assert "SECRET-PAYLOAD" not in out + json.dumps(found)
    wait_for(lambda: tailrace("trace", unwanted, service.file), lambda each: each["dead_letters"])
    tailrace("dlq", "discard", service.file, _letter(tailrace, service, unwanted), "--why", "test", "--yes")
    assert tailrace("trace", unwanted, service.file)["state"] == "discarded"
    fixed = tmp_path / "fixed.json"
    fixed.write_text(good(2) if isinstance(service, Shop) else '{"user": "u", "revision": 2, "email": "e"}')
    tailrace("dlq", "redrive", service.file, "0-0", "--payload", fixed, "--yes")
    found = tailrace("trace", bad, service.file)
    assert found["state"] == "published"
    assert [(each["kind"], each["redriven"], each["edited"]) for each in found["records"]] == [("redrive", "0-0", True)]
    assert found["dead_letters"][0]["resolution"]["action"] == "redriven"
    plan = tailrace("replay", "plan", service.file, "--from-table", "--id", event)
    tailrace("replay", "apply", plan["file"])
    found = tailrace("trace", event, service.file)
    assert [each["kind"] for each in found["records"]] == ["original", "replay"]
    assert found["records"][1]["replay"] == plan["id"]
    code, out, _ = run_locally(capsys, "trace", event, service.file)
    assert f"replay {plan['id']}" in out


def _letter(tailrace: Tailrace, service: Service, event: str) -> str:
    return str(tailrace("trace", event, service.file)["dead_letters"][0]["id"])


@postgres_first
def test_parked_and_waiting(service: Shop | Users, tailrace: Tailrace, capsys: pytest.CaptureFixture[str]) -> None:
    service.configure(on_invalid="park")
    service.start()
    first, second = add(service, 1, key="same", valid=False), add(service, 2, key="same")
    found = wait_for(lambda: tailrace("trace", second, service.file), lambda each: each["parking"])
    assert found["state"] == "waiting"
    assert (found["parking"]["first"], found["parking"]["first_event"]) == (False, first)
    assert found["parking"]["key"] == "same"
    assert found["position"]
    assert found["records"] == []
    found = tailrace("trace", first, service.file)
    assert (found["state"], found["parking"]["first"]) == ("parked", True)
    assert f"waits behind {first}" in run_locally(capsys, "trace", second, service.file)[1]
    tailrace("dlq", "discard", service.file, found["dead_letters"][0]["id"], "--why", "test", "--yes")
    found = wait_for(lambda: tailrace("trace", second, service.file), lambda each: each["records"])
    assert (found["state"], found["parking"]) == ("published", None)


def test_deleted_rows_unknown_ids_and_absent_servers(
    service: Shop | Users, tailrace: Tailrace, capsys: pytest.CaptureFixture[str]
) -> None:
    service.start()
    event = add(service, 1)
    arrived(service, event)
    if isinstance(service, Shop):
        service.execute("DELETE FROM outbox")
    else:
        with service.client() as client:
            for name in service.collections:
                client[service.database][name].delete_many({})
    found = tailrace("trace", event, service.file)
    assert (found["state"], found["row"]) == ("published", None)
    assert "deleted or archived" in found["notes"][0]
    for unknown in ("6d6a3c1e-0000-4000-8000-000000000000", "no-uuid", "42", "%s'; --", "ü" * 100):
        error = tailrace("trace", unknown, service.file, code=1)
        assert error["error"] == "EventUnknown"
    assert tailrace("trace", "x" * 1001, service.file, code=2)["error"] == "ConfigError"
    assert tailrace("trace", "a\0b", service.file, code=2)["error"] == "ConfigError"
    if isinstance(service, Shop):  # MongoDB's driver waits 30 s for a server
        service.configure(source={"postgres": "postgresql://u@127.0.0.1:1/x"})
        found = tailrace("trace", event, service.file)
        assert found["state"] == "published"
        assert "the outbox cannot be read: SourceUnavailable" in found["notes"][0]


def test_projections_that_applied_it(
    service: Shop | Users, tailrace: Tailrace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.start()
    applied, passed, later = add(service, 1, key="a"), add(service, 2, key="a"), add(service, 3, key="a")
    arrived(service, applied, passed, later)
    records = [tailrace("trace", each, service.file)["records"][0] for each in (applied, passed, later)]

    async def apply() -> str:
        if isinstance(service, Shop):
            store: Any = PostgresStore(service.dsn, schema="read_model")
            address = f"{service.dsn}#read_model"
        else:
            database = f"{service.database}_read"
            store = MongoStore(service.uri, database)
            address = _with_database(service.uri, database)
        await store.open("summary")
        where = Partition(records[0]["topic"], records[0]["partition"])
        async with store.transaction(where) as transaction:
            await transaction.position()
            await transaction.mark([Marker(applied, "a", 1, 1_700_000_000_000)])
            await transaction.advance(records[1]["offset"] + 1)
        await store.close()
        return address

    address = asyncio.run(apply())
    found = tailrace("trace", applied, service.file, "--projection", address)
    (marker,) = found["projections"]
    assert (marker["projection"], marker["outcome"], marker["entity"], marker["version"]) == (
        "summary", "applied", "a", 1,
    )  # fmt: skip
    assert marker["passed"] is True
    monkeypatch.setenv("STORE", address)
    monkeypatch.setenv("TAILRACE_PROJECTIONS", "${env:STORE}")
    (marker,) = tailrace("trace", passed, service.file)["projections"]
    assert (marker["outcome"], marker["passed"]) == (None, True)
    (marker,) = tailrace("trace", later, service.file)["projections"]
    assert (marker["outcome"], marker["passed"]) == (None, False)
    assert "summary" in run_locally(capsys, "trace", applied, service.file)[1]
    found = tailrace("trace", applied, service.file, "--projection", "postgresql://u:hidden@127.0.0.1:1/x")
    assert "cannot be read" in found["notes"][0]
    assert "hidden" not in json.dumps(found)
    assert tailrace("trace", applied, service.file, "--projection", "../x", code=2)["error"] == "ConfigError"
    if isinstance(service, Users):
        with service.client() as client:
            client.drop_database(f"{service.database}_read")


def test_a_worker_finds_an_event_in_any_of_its_pipelines(
    workers: Workers, tmp_path: Path, shop: Shop, kafka: KafkaBroker, request: pytest.FixtureRequest
) -> None:
    other = open_users(request.getfixturevalue("mongo"), kafka, _made(tmp_path / "users"))
    try:
        folder = tmp_path / "pipelines"
        put_pipeline(folder, shop)
        put_pipeline(folder, other)  # type: ignore[arg-type]
        api = serve(workers.start(folder), shop, other)
        order, user = shop.insert(good(1)), other.insert("k")
        arrived(shop, order)
        arrived(other, user)
        found = api.get(f"/events/{order}")
        assert [each["pipeline"] for each in found["found"]] == [shop.name]
        assert (found["id"], found["errors"]) == (order, {})
        assert [each["pipeline"] for each in api.get(f"/events/{user}")["found"]] == [other.name]
        assert api.get(f"/pipelines/{other.name}/events/{user}")["state"] == "published"
        shown = api.get(f"/pipelines/{shop.name}/events/{order}", payload="true")
        assert shown["records"][0]["payload"] == json.loads(good(1))
        assert api.get(f"/pipelines/{shop.name}/events/{user}", status=404)["code"] == "EventUnknown"
        assert api.get("/events/none", status=404)["code"] == "EventUnknown"
        assert "knows an event a/b" in api.get("/events/a%2Fb", status=404)["what"]
        refused = api.get(f"/events/{order}", status=400, projection="postgresql://elsewhere/x")
        assert "no parameter 'projection'" in refused["what"]
    finally:
        close_users(other)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _with_database(uri: str, database: str) -> str:
    """Puts the name of a database into the address of a server."""
    head, _, query = uri.partition("?")
    return f"{head.rstrip('/')}/{database}{f'?{query}' if query else ''}"
