"""A real schema registry: the server, the client's requests, and schemas compiled from its answers."""

from __future__ import annotations

import hashlib
import io
import json
import socket
import tarfile
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tailrace.errors import RegistryRefused, SchemaError
from tailrace.schema_versions import Version
from tailrace.schemas.compiled import CompiledSchema, Reference, SchemaSet
from tailrace.schemas.folder import load_folder
from tailrace.schemas.json_schema import DRAFTS, CompiledJsonSchema
from tailrace.schemas.registry import lookup
from tailrace.schemas.registry.cache import RegistrySchemas
from tailrace.schemas.registry.client import FetchedSchema, RegistryClient, RegistryOptions
from tailrace.schemas.registry.register import RegistryEntry, compare, identified, in_order, register
from tailrace.testkit.stack import RegistryServer, ServerChoice, StackError, wait_until
from tailrace.testkit.stack.ports import free_port
from tailrace.testkit.stack.process import descendants
from tailrace.testkit.stack.registry import ARCHIVE, VARIABLE, VERSION, application
from tailrace.testkit.tcp_proxy import Direction, TcpProxy

ORDER = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
WIDER = {"type": "object", "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}, "required": ["id"]}
OTHER = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
MONEY = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
PRICE = {"type": "record", "name": "Price", "fields": [{"name": "gross", "type": "shop.Money"}]}


@pytest.fixture(scope="module")
def client(registry: RegistryServer) -> Iterator[RegistryClient]:
    with RegistryClient(RegistryOptions(registry.url, timeout=60)) as client:
        yield client


@pytest.fixture
def subject() -> str:
    """A new subject, with characters that a URL must escape."""
    return f"shop/Order é {uuid.uuid4().hex[:12]}"


def compile_fetched(fetched: FetchedSchema) -> CompiledSchema:
    return CompiledJsonSchema.compile(
        fetched.subject, fetched.version, fetched.document, fetched.place, registered=fetched.registered
    )


def unexpected(message: str) -> None:
    raise AssertionError(f"unexpected warning: {message}")


class TestServer:
    """Tests with a separate server, because they kill it."""

    @pytest.mark.slow
    def test_data_survives_a_kill_and_stopping_leaves_nothing_behind(
        self, subject: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken = socket.create_server(("127.0.0.1", 0))
        ports = [taken.getsockname()[1], free_port()]
        monkeypatch.setattr("tailrace.testkit.stack.registry.free_port", lambda: ports.pop(0))
        with taken, RegistryServer(choice=ServerChoice.LOCAL) as server:
            assert ports == []  # the first port was in use
            run_dir, reaper, url = server.process.run_dir, server.process.reaper_pid, server.url
            with RegistryClient(RegistryOptions(url, timeout=20)) as client:
                found = client.register(subject, ORDER, "json")
                server.kill()
                assert not server.running
                server.start()
                assert server.url == url
                assert client.lookup(subject, ORDER, "json") == found
                server.pause()
                server.resume()
                assert client.subjects() == [subject]
            everyone = descendants(reaper)
        assert not run_dir.exists()
        assert len(everyone) >= 2
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in everyone), what="the end of the registry")

    def test_an_address_in_the_environment_is_used(
        self, registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(VARIABLE, registry.url)
        with RegistryServer() as named:
            assert (named.choice, named.url) == (ServerChoice.ADDRESS, registry.url)
            with pytest.raises(StackError, match="not local"):
                named.kill()
        assert isinstance(json.load(urllib.request.urlopen(f"{registry.url}/subjects", timeout=20)), list)

    def test_an_address_without_a_server_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tailrace.testkit.stack.server.ADDRESS_TIMEOUT", 0.2)
        monkeypatch.setenv(VARIABLE, "http://127.0.0.1:9")
        with pytest.raises(StackError, match="answer from the schema registry") as failed:
            RegistryServer().start()
        assert VARIABLE in failed.value.remedy

    def test_docker_is_not_supported(self) -> None:
        with pytest.raises(StackError, match="Docker"):
            RegistryServer(choice=ServerChoice.DOCKER)


class TestFetching:
    """Downloads from a local repository with a tiny archive, because the real one has 159 MB."""

    @pytest.fixture
    def mirror(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """The archive in the second of two repositories, of which the first is empty. The cache is empty."""
        root = tmp_path / "mirror"
        (root / ARCHIVE).parent.mkdir(parents=True)
        with tarfile.open(root / ARCHIVE, "w:gz") as packed:
            program = tarfile.TarInfo("quarkus-run.jar")
            program.size = 7
            packed.addfile(program, io.BytesIO(b"program"))
        handler = partial(Quiet, directory=str(root))
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(
            "tailrace.testkit.stack.registry.maven_repositories",
            lambda _variable: {"first": f"{address}/empty", "second": f"{address}/"},
        )
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield root / ARCHIVE
        server.shutdown()
        server.server_close()
        thread.join()

    def test_the_first_repository_that_has_it_is_used_once(self, mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        digest = hashlib.sha256(mirror.read_bytes()).hexdigest()
        monkeypatch.setattr("tailrace.testkit.stack.registry.SHA256", digest)
        messages: list[str] = []
        folder = application(messages.append)
        assert [file.name for file in folder.iterdir()] == ["quarkus-run.jar"]
        mirror.unlink()
        assert application(messages.append) == folder
        assert len([line for line in messages if "fetching" in line]) == 1

    def test_an_archive_with_a_wrong_checksum_is_deleted(self, mirror: Path, tmp_path: Path) -> None:
        with pytest.raises(StackError, match="could not be fetched") as failed:
            application(lambda _: None)
        assert "404" in failed.value.why
        assert f"checksum is {hashlib.sha256(mirror.read_bytes()).hexdigest()}" in failed.value.why
        assert VARIABLE in failed.value.remedy
        assert [file.name for file in (tmp_path / "cache" / "tailrace").iterdir()] == [f"apicurio-{VERSION}.lock"]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class TestClient:
    def test_a_registered_schema_is_found_under_the_same_id(self, client: RegistryClient, subject: str) -> None:
        found = client.register(subject, ORDER, "json")
        assert found.number == 1
        assert client.register(subject, ORDER, "json") == found
        assert client.lookup(subject, ORDER, "json") == found
        fetched = client.fetch(subject, 1)
        assert fetched is not None
        assert (fetched.kind, fetched.document, fetched.registered) == ("json", ORDER, found.registered)
        assert (fetched.subject, fetched.number, fetched.references) == (subject, 1, ())
        assert subject in client.subjects()

    def test_every_request_returns_the_current_latest_version(self, client: RegistryClient, subject: str) -> None:
        client.register(subject, ORDER, "json")
        first = client.fetch(subject)
        client.register(subject, WIDER, "json")
        second = client.fetch(subject)
        assert first is not None
        assert second is not None
        assert (first.number, second.number, second.document) == (1, 2, WIDER)
        assert client.numbers(subject) == [1, 2]

    def test_whitespace_makes_no_difference_to_a_lookup(self, client: RegistryClient, subject: str) -> None:
        body = json.dumps({"schema": json.dumps(ORDER, indent=4), "schemaType": "JSON"}).encode()
        address = f"{client.url}/subjects/{urllib.request.quote(subject, safe='')}/versions"
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        number = json.load(urllib.request.urlopen(request, timeout=20))["id"]
        found = client.lookup(subject, ORDER, "json")
        assert found is not None
        assert (found.registered.id, found.number) == (number, 1)

    def test_an_unregistered_schema_returns_none(self, client: RegistryClient, subject: str) -> None:
        assert client.fetch(subject) is None
        assert client.fetch(subject, 1) is None
        assert client.lookup(subject, ORDER, "json") is None
        assert client.numbers(subject) == []
        client.register(subject, ORDER, "json")
        assert client.fetch(subject, 7) is None
        assert client.lookup(subject, OTHER, "json") is None

    def test_a_deleted_schema_is_not_found(self, client: RegistryClient, subject: str) -> None:
        client.register(subject, ORDER, "json")
        assert client.fetch(subject, 1) is not None
        client._client.delete_subject(subject)
        assert client.fetch(subject, 1) is None
        assert client.lookup(subject, ORDER, "json") is None

    def test_avro_schemas_keep_their_references(self, client: RegistryClient, subject: str) -> None:
        money = client.register(f"{subject} money", MONEY, "avro")
        references = (Reference("shop.Money", f"{subject} money", Version(money.number)),)
        found = client.register(subject, PRICE, "avro", references)
        fetched = client.fetch(subject)
        assert fetched is not None
        assert (fetched.kind, fetched.document, fetched.references) == ("avro", PRICE, references)
        assert client.lookup(subject, PRICE, "avro", references) == found

    def test_a_reference_without_target_is_refused(self, client: RegistryClient, subject: str) -> None:
        with pytest.raises(SchemaError):
            client.register(subject, PRICE, "avro", [Reference("shop.Money", f"{subject} money", Version(1))])
        assert client.fetch(subject) is None

    def test_a_subjects_level_decides_what_is_compatible(self, client: RegistryClient, subject: str) -> None:
        client.register(subject, ORDER, "json")
        assert client.compatibility(subject) == client.compatibility()
        client.set_compatibility("BACKWARD", subject)
        assert client.compatibility(subject) == "BACKWARD"
        with pytest.raises(SchemaError, match="not compatible") as refused:
            client.register(subject, OTHER, "json")
        assert not isinstance(refused.value, RegistryRefused)
        assert "/properties/id" in refused.value.why
        assert client.numbers(subject) == [1]

    def test_a_level_that_does_not_exist_is_refused(self, client: RegistryClient, subject: str) -> None:
        client.register(subject, ORDER, "json")
        with pytest.raises(SchemaError, match="not valid"):
            client.set_compatibility("SIDEWAYS", subject)

    def test_an_invalid_schema_is_refused(self, client: RegistryClient, subject: str) -> None:
        with pytest.raises(SchemaError, match="not valid"):
            client.register(subject, {"type": "record"}, "avro")

    def test_protobuf_is_not_supported(self, client: RegistryClient, subject: str) -> None:
        schema = {"schema": 'syntax = "proto3"; message A { string x = 1; }', "schemaType": "PROTOBUF"}
        address = f"{client.url}/subjects/{urllib.request.quote(subject, safe='')}/versions"
        request = urllib.request.Request(address, json.dumps(schema).encode(), {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=20).close()
        with pytest.raises(SchemaError, match="PROTOBUF, which is not supported"):
            client.fetch(subject)

    def test_another_path_of_the_server_is_not_a_registry(self, registry: RegistryServer) -> None:
        parts = urlsplit(registry.url)
        with (
            RegistryClient(RegistryOptions(f"{parts.scheme}://{parts.netloc}/elsewhere", timeout=20)) as client,
            pytest.raises(RegistryRefused, match="no schema registry"),
        ):
            client.subjects()

    def test_this_registry_has_no_guids(self, client: RegistryClient, subject: str) -> None:
        """As soon as it has, test header framing with it."""
        assert client.register(subject, ORDER, "json").registered.guid is None


class TestSchemas:
    def test_a_version_is_requested_once(self, registry: RegistryServer, client: RegistryClient, subject: str) -> None:
        client.register(subject, ORDER, "json")
        with (
            proxied(registry) as (proxy, through),
            RegistrySchemas(through, compile_fetched, warn=unexpected) as compiled_schemas,
        ):
            compiled = compiled_schemas.find(subject, "1")
            assert compiled is not None
            assert compiled.is_valid({"id": 1})
            assert not compiled.is_valid({"id": "1"})
            assert compiled.registered is not None
            assert compiled_schemas.known == dict.fromkeys([(subject, "1"), (subject, "1.0.0")], compiled)
            asked = proxy.moved(Direction.TO_SERVER)
            assert compiled_schemas.find(subject, "1") is compiled
            assert proxy.moved(Direction.TO_SERVER) == asked

    def test_an_unknown_type_is_requested_once(self, registry: RegistryServer, subject: str) -> None:
        with (
            proxied(registry) as (proxy, through),
            RegistrySchemas(through, compile_fetched, warn=unexpected) as compiled_schemas,
        ):
            assert compiled_schemas.find(subject, None) is None
            assert compiled_schemas.versions(subject) == []
            asked = proxy.moved(Direction.TO_SERVER)
            for _ in range(1000):
                assert compiled_schemas.find(subject, None) is None
                assert compiled_schemas.versions(subject) == []
            assert proxy.moved(Direction.TO_SERVER) == asked

    def test_an_unknown_type_is_found_once_it_is_registered(self, client: RegistryClient, subject: str) -> None:
        with RegistrySchemas(client, compile_fetched, warn=unexpected, forget_seconds=0.05) as compiled_schemas:
            assert compiled_schemas.find(subject, "1") is None
            client.register(subject, ORDER, "json")
            found = wait_until(lambda: compiled_schemas.find(subject, "1"), what="the new schema")
            assert found is not None
            assert found.version == Version(1)

    def test_a_new_latest_version_is_loaded_in_the_background(self, client: RegistryClient, subject: str) -> None:
        client.register(subject, ORDER, "json")
        with RegistrySchemas(client, compile_fetched, warn=unexpected, refresh_seconds=0.05) as compiled_schemas:
            compiled = compiled_schemas.find(subject, None)
            assert compiled is not None
            assert compiled.version == Version(1)
            client.register(subject, WIDER, "json")
            wait_until(lambda: compiled_schemas.known[subject, None].version == Version(2), what="the new latest")
            assert compiled_schemas.known[subject, "1"] is compiled
            assert compiled_schemas.known[subject, "2"] is compiled_schemas.known[subject, None]

    def test_an_unusable_latest_version_leaves_the_old_one_in_use(self, client: RegistryClient, subject: str) -> None:
        client.register(subject, ORDER, "json")
        warnings: list[str] = []
        with RegistrySchemas(client, compile_fetched, warn=warnings.append, refresh_seconds=0.05) as compiled_schemas:
            compiled = compiled_schemas.find(subject, None)
            client.register(subject, {**WIDER, "$schema": "http://example.invalid/draft"}, "json")
            wait_until(lambda: warnings, what="the warning")
            client.register(subject, {**WIDER, "title": "fit"}, "json")
            wait_until(lambda: compiled_schemas.known[subject, None].version == Version(3), what="the next version")
        assert compiled is not None
        assert len(warnings) == 1
        assert f"version 1 of {subject} stays in use" in warnings[0]

    def test_references_are_fetched_with_a_schema(self, client: RegistryClient, subject: str) -> None:
        client.register(f"{subject} money", MONEY, "avro")
        client.register(subject, PRICE, "avro", [Reference("shop.Money", f"{subject} money", Version(1))])
        given: list[FetchedSchema] = []

        def keep(fetched: FetchedSchema) -> CompiledSchema:
            given.append(fetched)
            return CompiledJsonSchema.compile(fetched.subject, fetched.version, {}, fetched.place)

        with RegistrySchemas(client, keep, warn=unexpected) as compiled_schemas:
            compiled_schemas.find(subject, "1")
        assert [fetched.named for fetched in given] == [{"shop.Money": MONEY}]

    def test_closing_ends_the_thread(self, client: RegistryClient) -> None:
        RegistrySchemas(client, compile_fetched, warn=unexpected).close()
        assert not [thread for thread in threading.enumerate() if thread.name == "registry-refresh"]


class TestIdentified:
    def test_a_folders_schemas_get_the_registrys_ids(self, client: RegistryClient, subject: str) -> None:
        found = client.register(f"{subject}-value", {"$schema": DRAFTS[0], **ORDER}, "json")
        folder = SchemaSet.of([CompiledJsonSchema.compile(subject, Version(1), ORDER, "schemas/Order/1.json")])
        named = identified(folder, client, lambda compiled: f"{compiled.subject}-value")
        assert [compiled.registered for compiled in named] == [found.registered]
        assert named.known[subject, None].is_valid({"id": 1})

    def test_an_unregistered_schema_is_reported_with_a_remedy(self, client: RegistryClient, subject: str) -> None:
        folder = SchemaSet.of([CompiledJsonSchema.compile(subject, Version(1), ORDER, "schemas/Order/1.json")])
        with pytest.raises(SchemaError, match=r"schemas/Order/1\.json is not registered") as missing:
            identified(folder, client, lambda compiled: compiled.subject)
        assert "tailrace schemas register" in missing.value.remedy


class TestRegistering:
    def test_a_folder_with_references_is_registered_and_fetched(
        self, client: RegistryClient, tmp_path: Path, subject: str
    ) -> None:
        """Schemas are registered after those they refer to, with the registry's versions. Fetched ones are usable."""
        word = f"s{uuid.uuid4().hex[:8]}"
        files = {
            "Order/3.json": {"properties": {"to": {"$ref": "../ZAddress/7.json"}}},
            "ZAddress/7.json": {"properties": {"zip": {"$ref": "../Zip/1.json#/$defs/zip"}}},
            "Zip/1.json": {"$defs": {"zip": {"type": "string"}}},
            "Price/1.avsc": PRICE,
            "Money/1.avsc": MONEY,
        }
        for name, document in files.items():
            (tmp_path / name).parent.mkdir()
            (tmp_path / name).write_text(json.dumps(document))
        folder = load_folder(tmp_path)

        def subject_of(compiled: CompiledSchema) -> str:
            return f"{word}-{compiled.subject}"

        assert [entry.found for entry in compare(folder.schemas, client, subject_of)] == [None] * 5
        done = list(register(compare(folder.schemas, client, subject_of), client))
        assert [entry.subject for entry in done] == [
            f"{word}-{name}" for name in ("Money", "Zip", "ZAddress", "Order", "Price")
        ]
        assert list(register(compare(folder.schemas, client, subject_of), client)) == []
        named = identified(folder, client, subject_of)
        assert all(compiled.registered for compiled in named)
        with RegistrySchemas(client, lookup.compile_fetched, warn=unexpected) as compiled_schemas:
            order, price = compiled_schemas.find(f"{word}-Order", "1"), compiled_schemas.find(f"{word}-Price", None)
        assert order is not None
        assert price is not None
        assert order.is_valid({"to": {"zip": "1"}})
        assert not order.is_valid({"to": {"zip": 1}})
        assert price.encode({"gross": {"cents": 3}}) == b"\x06"

    def test_versions_with_three_numbers_are_found_by_what_their_schemas_state(
        self, client: RegistryClient, tmp_path: Path
    ) -> None:
        """The registry numbers them 1, 2 and 3, so its number 2 is not version 2 or 2.0.0."""
        word = f"s{uuid.uuid4().hex[:8]}"
        files = {f"{word}/{name}": {"const": name} for name in ("1.9.0.json", "1.10.0.json", "2.0.0.json")}
        files |= {f"{word}-Price/1.1.0.avsc": PRICE, f"{word}-Money/1.2.0.avsc": MONEY}
        for name, document in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(json.dumps(document))
        schemas = load_folder(tmp_path)

        def entries() -> list[RegistryEntry]:
            return compare(load_folder(tmp_path).schemas, client, lambda compiled: compiled.subject)

        assert len(list(register(entries(), client))) == len(files)
        assert list(register(entries(), client)) == []
        assert client.numbers(word) == [1, 2, 3]
        assert all(compiled.registered for compiled in identified(schemas, client, lambda compiled: compiled.subject))
        with RegistrySchemas(client, lookup.compile_fetched, warn=unexpected) as found:
            assert [str(version) for version in found.versions(word)] == ["1.9.0", "1.10.0", "2.0.0"]
            for text, name in (("1.10.0", "1.10.0.json"), ("1.9.0", "1.9.0.json"), ("2", "2.0.0.json")):
                schema = found.find(word, text)
                assert schema is not None
                assert schema.is_valid(name)
                assert found.known[word, text] is schema
            assert found.find(word, "2.0.0") is found.find(word, "2") is found.find(word, None)
            assert [found.find(word, text) for text in ("1", "1.0.0", "3", "1.11.0")] == [None] * 4
            price = found.find(f"{word}-Price", "1.1.0")
            assert price is not None
            assert price.references == (Reference("shop.Money", f"{word}-Money", Version(1, 2)),)
            assert price.encode({"gross": {"cents": 3}}) == b"\x06"
        (tmp_path / word / "1.10.0.json").write_text('{"const": "changed"}')
        assert [str(entry.schema.version) for entry in entries() if entry.changed] == ["1.10.0"]

    def test_whole_versions_of_a_plain_registry_are_its_numbers(self, client: RegistryClient, subject: str) -> None:
        client.register(subject, ORDER, "json")
        with RegistrySchemas(client, compile_fetched, warn=unexpected) as found:
            assert found.find(subject, "1.0.0") is found.find(subject, "1") is not None
            assert found.find(subject, "1.0.1") is None

    def test_circular_references_cannot_be_registered(self, tmp_path: Path) -> None:
        for name, other in (("A", "B"), ("B", "A")):
            (tmp_path / f"{name}.json").write_text(json.dumps({"properties": {"x": {"$ref": f"{other}.json"}}}))
        with pytest.raises(SchemaError, match="refers to itself"):
            in_order(load_folder(tmp_path).schemas)


@contextmanager
def proxied(registry: RegistryServer) -> Iterator[tuple[TcpProxy, RegistryClient]]:
    """A client behind a proxy that counts the bytes of its requests."""
    parts = urlsplit(registry.url)
    assert parts.hostname
    with (
        TcpProxy((parts.hostname, parts.port or 80)) as proxy,
        RegistryClient(RegistryOptions(f"http://{proxy.address}{parts.path}", timeout=20)) as client,
    ):
        yield proxy, client
