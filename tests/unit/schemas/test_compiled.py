"""Compiling JSON Schemas: what is rejected at load time, and that nothing is ever fetched."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tailrace.errors import SchemaError
from tailrace.schema_versions import Version
from tailrace.schemas.compiled import SchemaSet
from tailrace.schemas.json_schema import DRAFTS, CompiledJsonSchema
from tailrace.schemas.validators import BASE, ReferencedSchemas


def compile_schema(document: object, type_name: str = "T", version: int = 1) -> CompiledJsonSchema:
    return CompiledJsonSchema.compile(type_name, Version(version), document, f"schemas/{type_name}/{version}.json")


@contextmanager
def listening() -> Iterator[tuple[int, list[int]]]:
    """A local server; `seen` grows by one for each connection."""
    seen: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        stop = threading.Event()

        def accept() -> None:
            while not stop.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                seen.append(1)
                connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname()[1], seen
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_a_remote_reference_is_refused_without_a_connection(keyword: str) -> None:
    with listening() as (port, seen):
        url = f"http://127.0.0.1:{port}/other.json"
        with pytest.raises(SchemaError) as caught:
            compile_schema({"properties": {"a": {keyword: url}}})
        with socket.create_connection(("127.0.0.1", port)):
            pass
    # The one connection is the test's own. It shows that connections are counted.
    assert len(seen) == 1
    text = str(caught.value)
    assert "schemas/T/1.json" in text
    assert url in text


def test_no_socket_is_opened_for_a_remote_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(SchemaError):
        compile_schema({"$ref": "http://localhost:9/x"})


@pytest.mark.parametrize("ref", ["file:///etc/hostname", "other.json", "../Other/1.json", "urn:x:y"])
def test_references_to_documents_that_are_not_registered_are_refused(ref: str) -> None:
    with pytest.raises(SchemaError) as caught:
        compile_schema({"properties": {"a": {"$ref": ref}}})
    assert caught.value.what.startswith("schemas/T/1.json at #/properties/a/$ref: ")
    assert ref in caught.value.what


def test_a_remote_reference_in_an_unused_part_is_refused() -> None:
    with pytest.raises(SchemaError, match="not registered"):
        compile_schema({"$defs": {"unused": {"$ref": "https://example.org/x"}}})


def test_a_registered_document_may_be_referred_to_by_path_and_by_address() -> None:
    around = ReferencedSchemas.of({f"{BASE}A/1.json": {"type": "string"}, "https://example.org/b": {"type": "integer"}})
    document = {"properties": {"a": {"$ref": "../A/1.json"}, "b": {"$ref": "https://example.org/b"}}}
    compiled = CompiledJsonSchema.compile("T", Version(1), document, "f", surroundings=around.at(f"{BASE}T/1.json"))
    assert compiled.is_valid({"a": "x", "b": 1})
    assert not compiled.is_valid({"a": 1})
    assert not compiled.is_valid({"b": "x"})
    assert "$.a" in compiled.explain({"a": 1, "pad": "x" * 5000}, 5010)


def test_references_inside_the_document_are_allowed() -> None:
    compiled = compile_schema({"$defs": {"a": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/a"}}})
    assert compiled.validator.is_valid({"x": "y"})
    assert not compiled.validator.is_valid({"x": 1})


def test_data_that_looks_like_a_reference_is_allowed() -> None:
    compiled = compile_schema({"properties": {"$ref": {"type": "string"}}, "enum": [{"$ref": "http://a/b"}]})
    assert compiled.validator.is_valid({"$ref": "http://a/b"})


def test_a_reference_without_a_target_is_refused() -> None:
    with pytest.raises(SchemaError, match="without a target"):
        compile_schema({"$ref": "#/$defs/nothing"})


@pytest.mark.parametrize("pattern", ["(?=a)b", "(?!a)b", "(?<=a)b", r"(a)\1", "[", "(a{1000}){1000}"])
@pytest.mark.parametrize("shape", ["pattern", "patternProperties"])
def test_patterns_that_need_backtracking_are_refused_with_their_place(pattern: str, shape: str) -> None:
    inner: dict[str, object] = {"pattern": pattern} if shape == "pattern" else {shape: {pattern: {}}}
    with pytest.raises(SchemaError) as caught:
        compile_schema({"properties": {"name": inner}})
    assert f"#/properties/name/{shape}" in caught.value.what
    assert "backtracking" in caught.value.why


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({"properties": {"a/b": {"type": "strin"}}}, "#/properties/a~1b/type"),
        ({"required": "a"}, "#/required"),
        ({"minLength": -1}, "#/minLength"),
        ({"$id": 5}, "#/$id"),
    ],
)
def test_an_invalid_schema_is_refused_with_its_place(document: object, place: str) -> None:
    with pytest.raises(SchemaError) as caught:
        compile_schema(document)
    assert "schemas/T/1.json" in caught.value.what
    assert place in caught.value.what


@pytest.mark.parametrize("document", [[], "x", 1, None, 1.5])
def test_a_document_that_is_not_a_schema_is_refused(document: object) -> None:
    with pytest.raises(SchemaError, match="not a schema"):
        compile_schema(document)


@pytest.mark.parametrize("draft", [*DRAFTS, *(draft.rstrip("#") for draft in DRAFTS)])
def test_supported_drafts_are_accepted(draft: str) -> None:
    assert not compile_schema({"$schema": draft, "type": "object"}).validator.is_valid([])


@pytest.mark.parametrize("draft", ["http://json-schema.org/draft-03/schema#", "https://example.org/my", "", 7])
def test_other_drafts_are_refused(draft: object) -> None:
    with pytest.raises(SchemaError, match="unknown draft"):
        compile_schema({"$schema": draft})


def test_without_schema_keyword_the_latest_draft_applies() -> None:
    # prefixItems exists since 2020-12.
    assert not compile_schema({"prefixItems": [{"type": "string"}]}).validator.is_valid([1])


def test_formats_are_checked() -> None:
    assert not compile_schema({"format": "uuid"}).validator.is_valid("no")


def test_a_schema_set_returns_versions_in_order() -> None:
    compiled_schemas = [compile_schema({}, "A", 10), compile_schema({}, "A", 2), compile_schema({}, "B", 1)]
    schemas = SchemaSet.of(compiled_schemas)
    assert schemas.versions("A") == [Version(2), Version(10)]
    assert schemas.versions("C") == []
    assert schemas.find("A", "2") is compiled_schemas[1]
    assert schemas.find("A", "3") is None
    assert [(compiled.subject, compiled.version.major) for compiled in schemas] == [("A", 2), ("A", 10), ("B", 1)]


def test_a_version_registered_twice_is_refused() -> None:
    with pytest.raises(SchemaError, match="twice"):
        SchemaSet.of([compile_schema({}), compile_schema({})])
