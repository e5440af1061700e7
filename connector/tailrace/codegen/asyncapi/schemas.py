"""The schemas of an AsyncAPI document: their names, their embedded form and their draft.

AsyncAPI tools must support JSON Schema draft 7 and need not support any other. So a schema of another draft that means
the same in draft 7 is written as draft 7; others keep their draft, for tools that support it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from tailrace.codegen.asyncapi.embedding import Dialect, Key, embedded, key_of
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.strict_json import Json

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
AVRO = "application/vnd.apache.avro;version=1.9.0"

_not_legal = re.compile(r"[^A-Za-z0-9._-]")
_draft = re.compile(r"draft-0[467]|2019-09|2020-12")
K = TypeVar("K")

_CONTENT = frozenset({"contentMediaType", "contentEncoding"})
_SINCE_7 = _CONTENT | {"if", "then", "else"}
_UNKNOWN_BEFORE = {
    "draft-06": _SINCE_7,
    "draft-04": _SINCE_7 | {"const", "contains", "propertyNames", "exclusiveMinimum", "exclusiveMaximum"},
}
"""Keywords that mean something in draft 7 and nothing, or something else, in earlier drafts."""
_LATER = _CONTENT | {
    *("$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "$vocabulary", "contentSchema"),
    *("prefixItems", "minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties", "additionalItems"),
    *("dependentRequired", "dependentSchemas", "dependencies"),
}
"""Keywords whose meaning differs between draft 7 and later drafts."""
_SAYS_NOTHING = frozenset({"$ref", "$schema", "$defs", "definitions", "$comment", "title", "description", "examples"})
"""Keywords beside a `$ref` that draft 7 ignores, and that do not affect validity."""


class Schemas:
    """The schemas of one document. They refer only to each other."""

    def __init__(self, compiled_schemas: Sequence[CompiledSchema]) -> None:
        self._by_key = {key_of(compiled): compiled for compiled in compiled_schemas}
        self._names = legal_names({key: f"{subject}.v{number}" for key in self._by_key for subject, number in [key]})
        self._kept = self._keep_their_draft()

    def _keep_their_draft(self) -> set[Key]:
        """Returns the schemas that draft 7 would read differently, and all connected to them by references: they
        need one draft."""
        kept = {
            key
            for key, compiled in self._by_key.items()
            if compiled.kind == "json" and not means_the_same_in_draft_7(compiled.document)
        }
        pairs = [
            (key, (other.subject, other.version)) for key in self._by_key for other in self._by_key[key].references
        ]
        while joined := {key for pair in pairs if not kept.isdisjoint(pair) for key in pair} - kept:
            kept |= joined
        return kept

    def place(self, compiled: CompiledSchema) -> str:
        """Returns a reference to the component."""
        return f"#/components/schemas/{self._names[key_of(compiled)]}"

    def format(self, compiled: CompiledSchema) -> str:
        if compiled.kind == "avro":
            return AVRO
        document = compiled.document if key_of(compiled) in self._kept else None
        named = document.get("$schema", "2020-12") if isinstance(document, dict) else DRAFT_7
        found = _draft.search(named)
        return f"application/schema+json;version={found.group() if found else 'draft-07'}"

    def components(self) -> dict[str, Json]:
        places = {key: f"{self.place(compiled)}/schema" for key, compiled in self._by_key.items()}
        written = {}
        for key, compiled in self._by_key.items():
            schema = embedded(compiled, self._by_key, places)
            if compiled.kind == "json" and key not in self._kept and isinstance(schema, dict):
                schema = {**schema, "$schema": DRAFT_7}
            written[self._names[key]] = {"schemaFormat": self.format(compiled), "schema": schema}
        return written


def means_the_same_in_draft_7(document: Json) -> bool:
    """Whether a JSON Schema uses only what draft 7 understands in the same way. In doubt, no."""
    draft = str(document.get("$schema", "2020-12")) if isinstance(document, dict) else ""
    if "draft-07" in draft or not draft:
        return True
    old = next((words for name, words in _UNKNOWN_BEFORE.items() if name in draft), None)
    for pointer, _, node in Dialect.of(document).schemas(document, "", ""):
        if not (_LATER if old is None else old).isdisjoint(node) or (pointer and "$schema" in node):
            return False
        if "json-schema.org/" in str(node.get("$ref")):  # a meta-schema has its own draft
            return False
        if old is None and "$ref" in node and not _SAYS_NOTHING.issuperset(node):
            return False
    return True


def legal_names(wanted: Mapping[K, str]) -> dict[K, str]:
    """Returns distinct names that are valid as keys of a document and in references."""
    names: dict[K, str] = {}
    taken: set[str] = set()
    for key, name in wanted.items():
        legal = _not_legal.sub("_", name) or "_"
        number = 1
        while (free := legal if number == 1 else f"{legal}-{number}") in taken:
            number += 1
        taken.add(free)
        names[key] = free
    return names
