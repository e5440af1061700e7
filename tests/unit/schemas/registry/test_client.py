"""Options of the registry client, the cost of its import, and schemas by id. See tests/integration for the rest."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import ConfigError, RegistryRefused, SchemaError
from tailrace.schema_versions import Version
from tailrace.schemas.compiled import Reference
from tailrace.schemas.registry.client import RegistryClient, RegistryOptions

SECRET = "hunter2-xyz"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "registry:8081",
        "ftp://registry",
        "mock://registry",
        "file:///etc/passwd",
        "http://",
        "http://registry:99999",
        "http://registry:0",
        "http://registry:port",
        "http://[registry",
        "http://one,http://two",
        "http://registry?token=abc",
        "http://registry#part",
        "http://regis try",
    ],
)
def test_a_url_that_is_not_one_http_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="registry's url"):
        RegistryOptions(url)


@pytest.mark.parametrize("url", [f"https://user:{SECRET}@registry", f"https://{SECRET}@registry"])
def test_credentials_in_the_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RegistryOptions(url)
    assert SECRET not in str(refused.value)
    assert "basic.auth.user.info" in refused.value.remedy


def test_settings_are_not_shown() -> None:
    options = RegistryOptions("http://registry", {"basic.auth.user.info": f"me:{SECRET}"})
    assert SECRET not in repr(options)


@pytest.mark.parametrize("name", ["max.retries", "url", "timeout", "cache.capacity", "basic.auth.user"])
def test_a_setting_that_is_unknown_or_ours_to_decide_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")) as refused:
        RegistryOptions("http://registry", {name: SECRET})
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("timeout", [0.0, -1.0])
def test_a_timeout_must_be_above_zero(timeout: float) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        RegistryOptions("http://registry", {}, timeout)


@pytest.mark.parametrize(
    "settings",
    [
        {"basic.auth.user.info": SECRET},
        {"ssl.key.location": SECRET},
        {"bearer.auth.credentials.source": SECRET},
        {"bearer.auth.credentials.source": "STATIC_TOKEN"},
        {"bearer.auth.unknown.name": SECRET},
    ],
)
def test_settings_that_do_not_fit_together_are_refused_without_showing_them(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="fit together") as refused:
        RegistryClient(RegistryOptions("http://registry", settings))
    assert SECRET not in str(refused.value)


def test_a_certificate_that_cannot_be_read_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="certificate or key"):
        RegistryClient(RegistryOptions("https://registry", {"ssl.ca.location": str(tmp_path / "none.pem")}))
    (tmp_path / "not.pem").write_text("not a certificate")
    with pytest.raises(ConfigError, match="certificate or key"):
        RegistryClient(RegistryOptions("https://registry", {"ssl.ca.location": str(tmp_path / "not.pem")}))


def test_a_pipeline_without_a_registry_does_not_load_its_client() -> None:
    program = (
        "import sys\n"
        "import tailrace.schemas.registry.client, tailrace.schemas.registry.cache\n"
        "heavy = {'httpx', 'httpx2', 'authlib', 'confluent_kafka'} & {name.partition('.')[0] for name in sys.modules}\n"
        "print('loaded:', *sorted(heavy))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.stdout.strip(), ended.stderr) == ("loaded:", "")


GUID = "00000000-0000-0000-0000-0000deadbeef"
LINE = [{"name": "shop.Line", "subject": "Line", "version": 3}]
ANSWERS: dict[str, Any] = {
    "/schemas/ids/1": {"schema": '"string"'},
    "/schemas/ids/2": {"schema": '{"type": "object"}', "schemaType": "JSON"},
    "/schemas/ids/3": {"schema": '{"type": "array", "items": "shop.Line"}', "schemaType": "AVRO", "references": LINE},
    "/schemas/ids/4": {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"},
    "/schemas/ids/5": {"schema": "{"},
    "/schemas/ids/6": {"schema": 5},
    "/schemas/ids/7": {"schema": '"string"', "references": [{"name": "a", "subject": "b", "version": "c"}]},
    f"/schemas/guids/{GUID}": {"schema": '"long"', "guid": GUID},
}


class ByIdHandler(BaseHTTPRequestHandler):
    """A registry with ids and GUIDs: the real one of the integration tests has no GUIDs."""

    def do_GET(self) -> None:
        answer = ANSWERS.get(self.path.partition("?")[0])
        missing = {"error_code": 40403, "message": "Schema not found"}
        body = json.dumps(missing if answer is None else answer).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def client() -> Iterator[RegistryClient]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), ByIdHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    with RegistryClient(RegistryOptions(f"http://127.0.0.1:{server.server_port}", timeout=60)) as client:
        yield client
    server.shutdown()
    server.server_close()
    thread.join()


def test_schemas_are_fetched_by_id_and_by_guid(client: RegistryClient) -> None:
    plain, json_schema, referring, named = (client.fetch_by_id(name) for name in (1, 2, 3, GUID))
    assert plain
    assert json_schema
    assert referring
    assert named
    assert (plain.kind, plain.document) == ("avro", "string")
    assert (json_schema.kind, json_schema.document) == ("json", {"type": "object"})
    assert referring.references == (Reference("shop.Line", "Line", Version(3)),)
    assert (named.document, named.registered.guid) == ("long", GUID)


def test_an_unknown_id_or_guid_returns_none(client: RegistryClient) -> None:
    assert client.fetch_by_id(9) is None
    assert client.fetch_by_id(GUID.replace("d", "e")) is None


@pytest.mark.parametrize(("number", "text"), [(4, "schema of type PROTOBUF"), (5, "is not JSON")])
def test_an_unsupported_or_invalid_schema_is_refused(client: RegistryClient, number: int, text: str) -> None:
    with pytest.raises(SchemaError, match=rf"/schemas/ids/{number} .*{text}|{text}"):
        client.fetch_by_id(number)


@pytest.mark.parametrize("number", [6, 7])
def test_a_response_with_wrong_types_is_refused(client: RegistryClient, number: int) -> None:
    with pytest.raises(RegistryRefused, match="no schema registry"):
        client.fetch_by_id(number)
