"""Questions of readers to a registry. It is one of our own here: the real one of the integration tests has no GUIDs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tailrace.errors import RegistryRefused, SchemaError
from tailrace.schemas.compiled import Reference
from tailrace.schemas.registry.by_id import ReadersClient
from tailrace.schemas.registry.client import RegistryOptions

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


class Handler(BaseHTTPRequestHandler):
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
        """Nobody reads it."""


@pytest.fixture(scope="module")
def client() -> Iterator[ReadersClient]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    with ReadersClient(RegistryOptions(f"http://127.0.0.1:{server.server_port}", timeout=60)) as client:
        yield client
    server.shutdown()
    server.server_close()
    thread.join()


def test_by_number_and_by_guid(client: ReadersClient) -> None:
    plain, json_schema, referring, named = (client.written_with(name) for name in (1, 2, 3, GUID))
    assert plain
    assert json_schema
    assert referring
    assert named
    assert (plain.kind, plain.document) == ("avro", "string")
    assert (json_schema.kind, json_schema.document) == ("json", {"type": "object"})
    assert referring.references == (Reference("shop.Line", "Line", 3),)
    assert (named.document, named.registered.guid) == ("long", GUID)


def test_what_is_not_registered_is_none(client: ReadersClient) -> None:
    assert client.written_with(9) is None
    assert client.written_with(GUID.replace("d", "e")) is None


@pytest.mark.parametrize(("number", "told"), [(4, "schema of type PROTOBUF"), (5, "is not JSON")])
def test_a_schema_that_cannot_be_used(client: ReadersClient, number: int, told: str) -> None:
    with pytest.raises(SchemaError, match=rf"/schemas/ids/{number} .*{told}|{told}"):
        client.written_with(number)


@pytest.mark.parametrize("number", [6, 7])
def test_an_answer_that_is_none(client: ReadersClient, number: int) -> None:
    with pytest.raises(RegistryRefused, match="no schema registry"):
        client.written_with(number)
