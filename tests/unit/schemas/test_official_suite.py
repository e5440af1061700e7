"""The required cases of the official JSON Schema Test Suite, parsed, compiled and validated by Tailrace.

Tailrace differs from the suite on purpose in three ways, and every difference is counted here:

- A schema that refers to an unregistered document is refused, because nothing is ever fetched. With the suite's
  remote documents registered as well, it compiles, and its cases pass.
- A schema with its own meta-schema is refused even then, because the rules must not depend on a document.
  jsonschema-rs alone passes those cases.
- Formats are checked. Since 2020-12, the suite expects them to be annotations unless a meta-schema says otherwise.
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import pytest

from helpers.fetched import json_schema_suite
from tailrace.errors import SchemaError
from tailrace.schema_versions import Version
from tailrace.schemas.json_schema import ALONE, CompiledJsonSchema
from tailrace.schemas.strict_json import parse
from tailrace.schemas.validators import ReferencedSchemas

DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}


class Tally(NamedTuple):
    """Numbers of cases of a draft, by result."""

    alone: int
    """Passed with the schema alone."""
    with_remotes: int
    """Refused alone, passed with the remote documents registered."""
    own_meta_schema: int
    """Always refused, but passed by jsonschema-rs."""
    formats: int
    """Invalid here, although the suite treats the format as an annotation."""


EXPECTED = {
    "draft4": Tally(593, 17, 0, 0),
    "draft6": Tally(806, 23, 0, 0),
    "draft7": Tally(890, 23, 0, 0),
    "draft2019-09": Tally(1191, 31, 5, 0),
    "draft2020-12": Tally(1189, 44, 5, 19),
}


class Suite(NamedTuple):
    """The suite, with its remote documents moved from localhost:1234 to the address of a listening server."""

    folder: Path
    address: str

    def read(self, file: Path) -> Any:
        return parse(file.read_text("utf-8").replace("localhost:1234", self.address).encode())

    def groups(self, draft: str) -> Iterator[tuple[str, Any]]:
        for file in sorted((self.folder / "tests" / draft).glob("*.json")):
            for group in self.read(file):
                yield f"{file.stem}: {group['description']}", group

    def remotes(self, draft: str) -> ReferencedSchemas:
        """Returns the remote documents of a draft and the shared ones, by the address they would be fetched from."""
        documents = {}
        for file in sorted((self.folder / "remotes").rglob("*.json")):
            name = file.relative_to(self.folder / "remotes")
            if name.parts[0] == draft:
                documents[f"http://{self.address}/{name}"] = of_draft(self.read(file), draft)
            elif not name.parts[0].startswith("draft"):
                documents[f"http://{self.address}/{name}"] = self.read(file)
        return ReferencedSchemas.of(documents)


@pytest.fixture
def suite() -> Iterator[Suite]:
    """The suite. Checks afterwards that no remote document was requested."""
    folder = json_schema_suite()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield Suite(folder, f"127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(BlockingIOError):
            listener.accept()


def of_draft(schema: Any, draft: str) -> Any:
    return {"$schema": DRAFTS[draft], **schema} if isinstance(schema, dict) else schema


def wrong(compiled: CompiledJsonSchema, group: Any) -> list[str]:
    """Returns the cases with another result than the suite expects. Every invalid value needs an explanation, too."""
    found = []
    for case in group["tests"]:
        text = json.dumps(case["data"]).encode()
        value = parse(text)
        valid = compiled.is_valid(value)
        if valid != case["valid"]:
            found.append(case["description"])
        assert valid or 0 < len(compiled.explain(value, len(text))) < 4096
    return found


def compile_schema(schema: Any, surroundings: ReferencedSchemas = ALONE) -> CompiledJsonSchema | None:
    """Returns the compiled schema, or None if the schema is rejected."""
    try:
        return CompiledJsonSchema.compile("T", Version(1), schema, "T/1.json", surroundings=surroundings)
    except SchemaError:
        return None


@pytest.mark.timeout(900)  # The first run fetches the suite.
@pytest.mark.parametrize("draft", DRAFTS)
def test_every_required_case_passes_or_differs_on_purpose(suite: Suite, draft: str) -> None:
    tally = Counter[str]()
    remotes = suite.remotes(draft)
    for name, group in suite.groups(draft):
        schema = of_draft(group["schema"], draft)
        size = len(group["tests"])
        if compiled := compile_schema(schema):
            differing = wrong(compiled, group)
            remarks = [case for case in differing if case.endswith("is only an annotation by default")]
            assert differing == (remarks if name.startswith("format: ") else []), name
            tally["alone"] += size - len(remarks)
            tally["formats"] += len(remarks)
        elif compiled := compile_schema(schema, remotes):
            assert not wrong(compiled, group), name
            tally["with_remotes"] += size
        else:
            assert schema["$schema"].startswith(f"http://{suite.address}/"), f"{name} is refused"
            engine = jsonschema_rs.validator_for(schema, **remotes.options())
            assert all(engine.is_valid(case["data"]) == case["valid"] for case in group["tests"]), name
            tally["own_meta_schema"] += size
    assert Tally(**{field: tally[field] for field in Tally._fields}) == EXPECTED[draft]
