"""Row 57 of the fault matrix: no schema opens a connection or a file, and no pattern can stall the pipeline."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import pytest

from tailrace.errors import SchemaError
from tailrace.schema_versions import Version
from tailrace.schemas.json_schema import ALONE, DRAFTS, CompiledJsonSchema
from tailrace.schemas.validators import ReferencedSchemas


class Trap(NamedTuple):
    """A web server that would respond with a schema, and the requests it received."""

    address: str
    requests: list[str]


@pytest.fixture
def trap() -> Iterator[Trap]:
    requests: list[str] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is printed."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Trap(f"http://127.0.0.1:{server.server_port}", requests)
        server.shutdown()
        thread.join()


Needy = dict[str, Callable[[str], dict[str, Any]]]
"""Schemas that refer to an address, by the way they do it."""

REFUSED: Needy = {
    "a reference": lambda there: {"allOf": [{"$ref": f"{there}/a"}]},
    "a reference into a document": lambda there: {"properties": {"a": {"$ref": f"{there}/a#/definitions/b"}}},
    "a reference without a scheme": lambda there: {"items": {"$ref": there.removeprefix("http:") + "/a"}},
    "a reference in an unused definition": lambda there: {"definitions": {"a": {"not": {"$ref": there}}}},
    "an identity and a relative reference": lambda there: {"$id": f"{there}/a/b", "allOf": [{"$ref": "c"}]},
    "a part's identity and a relative reference": lambda there: {
        "items": {"$id": f"{there}/a/b", "items": {"$ref": "c"}}
    },
    "the meta-schema": lambda there: {"$schema": f"{there}/a"},
}
HARMLESS: Needy = {
    "an identity": lambda there: {"$id": f"{there}/a", "type": "object"},
    "values that look like references": lambda there: {"enum": [{"$ref": there}], "default": {"$ref": there}},
    "an unknown keyword": lambda there: {"x-see": {"$ref": there}, "type": "object"},
    "a vocabulary": lambda there: {"$vocabulary": {there: True}, "type": "object"},
}
REFUSED_IN: dict[str, Needy] = {
    DRAFTS[0]: {"a dynamic reference": lambda there: {"items": {"$dynamicRef": f"{there}/a#b"}}},
    # jsonschema-rs would read any value as the start of the document.
    DRAFTS[1]: {"a recursive reference": lambda there: {"type": "object", "items": {"$recursiveRef": f"{there}/a"}}},
}
HARMLESS_IN: dict[str, Needy] = {
    DRAFTS[0]: {
        # The enclosing draft's rules apply.
        "the meta-schema of a part": lambda there: {
            "$defs": {"a": {"$id": "urn:x:a", "$schema": f"{there}/a", "type": "object"}},
            "$ref": "urn:x:a",
        },
    },
}


def every(common: Needy, special: dict[str, Needy]) -> list[tuple[str, str]]:
    return [(draft, need) for draft in DRAFTS for need in common | special.get(draft, {})]


def needy(draft: str, schema: dict[str, Any]) -> dict[str, Any]:
    if draft.endswith("draft-04/schema#"):
        schema = json.loads(json.dumps(schema).replace('"$id"', '"id"'))
    return {"$schema": draft} | schema


def compile_schema(document: Any, surroundings: ReferencedSchemas = ALONE) -> CompiledJsonSchema:
    return CompiledJsonSchema.compile("T", Version(1), document, "T/1.json", surroundings=surroundings)


def test_the_server_records_requests_of_a_validator_that_may_fetch(trap: Trap) -> None:
    jsonschema_rs.validator_for({"$ref": f"{trap.address}/caught"}).is_valid(1)
    assert trap.requests == ["/caught"]


@pytest.mark.parametrize(("draft", "need"), every(REFUSED, REFUSED_IN))
def test_remote_references_are_refused_and_not_fetched(trap: Trap, draft: str, need: str) -> None:
    document = needy(draft, (REFUSED | REFUSED_IN.get(draft, {}))[need](trap.address))
    with pytest.raises(SchemaError) as caught:
        compile_schema(document)
    assert "T/1.json" in caught.value.what
    assert caught.value.remedy
    with pytest.raises(SchemaError):
        compile_schema(document, ReferencedSchemas.of({"https://example.org/other": {"type": "string"}}))
    assert trap.requests == []


@pytest.mark.parametrize(("draft", "need"), every(HARMLESS, HARMLESS_IN))
def test_addresses_that_are_not_references_are_accepted_and_not_fetched(trap: Trap, draft: str, need: str) -> None:
    compiled = compile_schema(needy(draft, (HARMLESS | HARMLESS_IN.get(draft, {}))[need](trap.address)))
    assert compiled.is_valid({"$ref": trap.address})
    assert not compiled.is_valid("no object")
    assert compiled.explain("no object", 11)
    large = ["x" * 5000, {"$ref": trap.address}]
    assert compiled.explain(large, len(json.dumps(large)))
    assert trap.requests == []


@pytest.mark.parametrize("draft", DRAFTS)
def test_no_file_is_read(tmp_path: Path, draft: str) -> None:
    (tmp_path / "a.json").write_text("{}")
    for reference in ((tmp_path / "a.json").as_uri(), str(tmp_path / "a.json")):
        with pytest.raises(SchemaError, match="reference"):
            compile_schema({"$schema": draft, "allOf": [{"$ref": reference}]})


PATTERNS = [
    r"(a+)+$",
    r"(a|aa)+$",
    r"(a|a)*$",
    r"(.*a){20}$",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    r"(\w+\s?)*$",
    r"\s+$",
    r"a*a*a*a*a*b",
    r"(x+x+)+y",
    r"^(a?){50}a{50}$",
    r"^(a|b|ab)*c$",
]
LENGTH = 400_000
CPU_SECONDS = 2.0
"""Linear time takes milliseconds. Time quadratic in LENGTH takes minutes, and exponential time never ends."""


def cpu(work: Callable[[], object]) -> float:
    """Returns the CPU time of this thread, which does not depend on the load of the machine."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


@pytest.mark.parametrize("unit", ["a", "x", "ab", "a ", " ", "é"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_made_for_backtracking_run_in_linear_time(pattern: str, unit: str) -> None:
    text = unit * (LENGTH // len(unit)) + "!"
    value = compile_schema({"pattern": pattern})
    names = compile_schema({"propertyNames": {"pattern": pattern}})
    keys = compile_schema({"patternProperties": {pattern: False}})
    assert cpu(lambda: value.is_valid(text)) < CPU_SECONDS
    assert cpu(lambda: names.is_valid({text: 1})) < CPU_SECONDS
    assert cpu(lambda: keys.is_valid({text: 1})) < CPU_SECONDS
    if not value.is_valid(text):
        assert cpu(lambda: value.explain(text, LENGTH)) < CPU_SECONDS


@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
@pytest.mark.parametrize(
    "pattern", [r"^(?=a)", r"(?!a)b", r"(?<=a)b", r"(?<!a)b", r"(a+)+\1", r"(?<n>a)\k<n>", r"(?>a+)b"]
)
def test_patterns_that_need_backtracking_are_refused(pattern: str, keyword: str) -> None:
    with pytest.raises(SchemaError, match="the pattern") as caught:
        compile_schema({keyword: pattern if keyword == "pattern" else {pattern: {}}})
    assert "backtracking" in caught.value.why


@pytest.mark.parametrize(
    "pattern",
    ["((a{100}){100}){100}", "((((a{50}){50}){50}){50}){50}", r"(\w{500}){500}", "(" * 50_000 + ")" * 50_000],
    ids=["cubed", "to the fifth", "wide", "deep"],
)
def test_patterns_that_need_too_much_memory_are_refused_at_once(pattern: str) -> None:
    def refused() -> None:
        with pytest.raises(SchemaError, match="the pattern"):
            compile_schema({"pattern": pattern})

    assert cpu(refused) < CPU_SECONDS


FORMATS = [
    "date",
    "date-time",
    "time",
    "duration",
    "email",
    "idn-email",
    "hostname",
    "idn-hostname",
    "ipv4",
    "ipv6",
    "uri",
    "uri-reference",
    "iri",
    "iri-reference",
    "uri-template",
    "uuid",
    "json-pointer",
    "relative-json-pointer",
    "regex",
]
UNITS = ["a", "a.", "1:", "%20", "@", "/", "~0", "{a}", "{", "é", "xn--", "P1D", "(", "(a+)+", "a{9}", "\\\\"]


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_checked_in_linear_time_and_never_overflow_the_stack(name: str) -> None:
    compiled = compile_schema({"format": name})
    for before in ("", "a@", "http://"):
        for unit in UNITS:
            text = before + unit * (LENGTH // len(unit))
            assert cpu(lambda text=text: compiled.is_valid(text)) < CPU_SECONDS, unit  # type: ignore[misc]
