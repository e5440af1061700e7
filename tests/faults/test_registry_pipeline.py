"""Rows 54 and 55 of the fault matrix: a pipeline whose registry is unavailable, at the start or later."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from helpers.shop import SCHEMA, Shop
from tailrace.cli import main
from tailrace.schemas.registry.client import RegistryClient, RegistryOptions
from tailrace.testkit.stack import RegistryServer, wait_until
from tailrace.testkit.tcp_proxy import TcpProxy
from tailrace.testkit.topic_reader import read_all


@pytest.fixture
def subjects() -> str:
    """A subject template for one test, because the registry is shared."""
    return f"s{uuid.uuid4().hex[:8]}-{{type}}"


def valid(revision: int) -> str:
    return json.dumps({"order": "o", "revision": revision, "amount": 1.5, "currency": "EUR"})


def register(shop: Shop) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["schemas", "register", str(shop.file), "--yes"])
    assert ended.value.code == 0


def pipeline(shop: Shop, url: str, subjects: str, *, folder: bool) -> None:
    shop.settings.pop("schemas", None)
    settings = {"registry": {"url": url, "subject": subjects, "timeout": 10}}
    shop.configure(schemas={**settings, **({"folder": "schemas"} if folder else {})})


@pytest.mark.parametrize("folder", [True, False], ids=["ids of a folder", "schemas of the registry"])
def test_a_cold_start_waits_for_the_registry_and_logs_it(
    shop: Shop, registry: RegistryServer, subjects: str, folder: bool
) -> None:
    pipeline(shop, registry.url, subjects, folder=True)
    register(shop)
    parts = urlsplit(registry.url)
    with TcpProxy((parts.hostname or "", parts.port or 80)) as proxy:
        pipeline(shop, f"http://{proxy.host}:{proxy.port}{parts.path}", subjects, folder=folder)
        proxy.refuse()
        connector = shop.start(wait=False)
        connector.says('"RegistryUnavailable"')
        assert connector.running
        proxy.accept()
        connector.says('"running"')
        shop.writer().transaction(rollback=False)
        verdict = shop.caught_up()
        assert verdict.ok, verdict


def test_a_running_pipeline_continues_without_its_registry(shop: Shop, registry: RegistryServer, subjects: str) -> None:
    """Events with known schemas are published. An event with a new version waits and is not dead-lettered."""
    pipeline(shop, registry.url, subjects, folder=True)
    register(shop)
    parts = urlsplit(registry.url)
    with TcpProxy((parts.hostname or "", parts.port or 80)) as proxy:
        pipeline(shop, f"http://{proxy.host}:{proxy.port}{parts.path}", subjects, folder=False)
        connector = shop.start()
        first = shop.insert(valid(1))
        wait_until(lambda: first in [seen.id for seen in shop.published()], 60, what="the first event")
        proxy.refuse()
        proxy.cut()
        second = shop.insert(valid(2))
        wait_until(lambda: second in [seen.id for seen in shop.published()], 60, what="an event of a known type")
        unseen = shop.insert(valid(3), kind="OrderChanged")
        connector.says('"RegistryUnavailable"')
        assert unseen not in [seen.id for seen in shop.dead_lettered()]
        proxy.accept()
        wait_until(lambda: unseen in [seen.id for seen in shop.published()], 60, what="the event that waited")
        assert connector.running


class ReverseProxy:
    """A reverse proxy: forwards requests to the registry, or responds with a maintenance page while `closed`."""

    def __init__(self, registry: str) -> None:
        self.closed = False
        front = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = 200, b"<html>We are back soon</html>"
                if not front.closed:
                    try:
                        with urllib.request.urlopen(registry + self.path, timeout=30) as answer:
                            body = answer.read()
                    except urllib.error.HTTPError as error:
                        status, body = error.code, error.read()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def front(registry: RegistryServer) -> Iterator[ReverseProxy]:
    front = ReverseProxy(registry.url)
    thread = threading.Thread(target=front.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield front
    front.server.shutdown()
    front.server.server_close()
    thread.join()


def test_neither_an_unexpected_response_nor_an_invalid_type_stops_a_running_pipeline(
    shop: Shop, registry: RegistryServer, front: ReverseProxy
) -> None:
    """A maintenance page is an outage, also for a process that starts during it. A type that cannot be a subject is
    dead-lettered. Before the first event, such a page means that the setting is wrong."""
    placed, changed = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("Placed", "Changed"))
    with RegistryClient(RegistryOptions(registry.url, timeout=20)) as client:
        client.register(placed, SCHEMA, "json")
        client.register(changed, SCHEMA, "json")
    pipeline(shop, front.url, "{type}", folder=False)
    front.closed = True
    shop.start(wait=False).failed("RegistryRefused", exit_code=2)
    front.closed = False
    connector = shop.start()
    strange = [shop.insert(valid(1), kind=kind) for kind in (".", "..", "a/../b", "a\nb")]
    first = shop.insert(valid(1), kind=placed)
    wait_until(lambda: first in [seen.id for seen in shop.published()], 60, what="the first event")
    assert [seen.id for seen in shop.dead_lettered()] == strange
    front.closed = True
    unseen = shop.insert(valid(2), kind=changed)
    connector.says('"RegistryUnavailable"')
    assert connector.running
    connector.kill()
    again = shop.start(wait=False)
    again.says('"RegistryUnavailable"')
    assert again.running
    front.closed = False
    wait_until(lambda: unseen in [seen.id for seen in shop.published()], 60, what="the event that waited")
    assert len(shop.dead_lettered()) == len(strange)


def test_the_error_about_an_unregistered_folder_names_the_command(
    shop: Shop, registry: RegistryServer, subjects: str
) -> None:
    pipeline(shop, registry.url, subjects, folder=True)
    shop.start(wait=False).failed("SchemaError", exit_code=2)
    assert "tailrace schemas register" in shop.connectors[-1].log


def test_register_and_diff_compare_folder_and_registry(
    shop: Shop, registry: RegistryServer, subjects: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline(shop, registry.url, subjects, folder=True)

    def run(*arguments: str) -> tuple[object, dict[str, list[dict[str, object]]]]:
        with pytest.raises(SystemExit) as ended:
            main(["schemas", arguments[0], str(shop.file), "--json", *arguments[1:]])
        return ended.value.code, json.loads(capsys.readouterr().out)

    code, found = run("register")
    assert (code, len(found["missing"]), found["registered"]) == (1, 2, [])
    assert run("diff")[0] == 1
    code, found = run("register", "--yes")
    assert (code, len(found["registered"])) == (0, 2)
    assert run("register", "--yes") == (0, {"changed": [], "missing": [], "registered": []})
    assert run("diff") == (0, {"differences": []})
    changed = Path(shop.folder, "schemas", "OrderPlaced", "1.json")
    changed.write_text(json.dumps({**SCHEMA, "title": "another"}))
    code, found = run("register", "--yes")
    assert (code, len(found["changed"]), found["registered"]) == (1, 1, [])
    code, found = run("diff")
    assert (code, found["differences"][0]["is"]) == (1, "different")
    assert '+  "title": "another"' in str(found["differences"][0]["diff"])


def test_records_carry_the_id_that_the_registry_gave(shop: Shop, registry: RegistryServer, subjects: str) -> None:
    pipeline(shop, registry.url, subjects, folder=True)
    register(shop)
    shop.configure(format={"schema_id": "prefix"})
    shop.start()
    shop.insert(valid(1))
    wait_until(shop.published, 60, what="the event")
    value = read_all(shop.kafka.bootstrap, [shop.topic])[0].value() or b""
    assert value[0] == 0
    assert int.from_bytes(value[1:5], "big") > 0
    assert json.loads(value[5:]) == json.loads(valid(1))
