"""JsonContract: a JSON Schema, compiled.

A contract compiles only if it can be checked safely: it is valid against its meta-schema, refers to nothing
outside itself (checking must never open a connection or a file) and uses no pattern that needs backtracking
(an event could otherwise hold the pipeline up for ever). Everything else is a SchemaError that names the file
and the place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jsonschema_rs

from tailrace.errors import Reason, Rejected, SchemaError
from tailrace.schemas.contracts import Kind, Reference, Registered
from tailrace.schemas.explaining import Explainer
from tailrace.schemas.json_text import Json
from tailrace.schemas.validators import options, pointer

DRAFTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-04/schema#",
)
"""What `$schema` may say; without it, the first."""

_KNOWN_DRAFTS = {draft.partition("://")[2].rstrip("#") for draft in DRAFTS}
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


@dataclass(frozen=True, slots=True, eq=False)
class JsonContract:
    """Implements `Contract` with a JSON Schema."""

    subject: str
    version: int
    file: str
    document: Json
    validator: jsonschema_rs.Validator
    is_valid: Callable[[Any], bool]
    explainer: Explainer
    references: tuple[Reference, ...] = ()
    registered: Registered | None = None
    kind: Kind = "json"

    @classmethod
    def compile(
        cls,
        subject: str,
        version: int,
        document: Json,
        file: str,
        *,
        registered: Registered | None = None,
    ) -> JsonContract:
        """Compiles a schema document, or says in a SchemaError why it cannot be used."""
        _require_draft(document, file)
        try:
            validator = jsonschema_rs.validator_for(document, **options())
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise _unusable(error, document, file) from None
        explainer = Explainer(document, file, validator)
        return cls(subject, version, file, document, validator, validator.is_valid, explainer, (), registered)

    def explain(self, value: Json, size: int) -> str:
        return self.explainer.explain(value, size)

    def encode(self, value: Json) -> bytes:
        raise Rejected(
            Reason.SCHEMA_VALIDATION_FAILED,
            f"version {self.version} of {self.subject} is a JSON Schema, and the value's format is Avro",
            remedy=f"Register an Avro schema for {self.subject}, or set format.value: json.",
        )


def _require_draft(document: Json, file: str) -> None:
    if not isinstance(document, dict | bool):
        raise SchemaError(
            f"{file} is not a schema: it holds {type(document).__name__}, not an object",
            remedy=f"Write a JSON Schema object into {file}.",
        )
    named = document.get("$schema", DRAFTS[0]) if isinstance(document, dict) else DRAFTS[0]
    if not isinstance(named, str) or named.partition("://")[2].rstrip("#") not in _KNOWN_DRAFTS:
        raise SchemaError(
            f"{file}: $schema names an unknown draft, {str(named)[:120]!r}",
            why="Its rules would have to be fetched, and nothing is ever fetched.",
            remedy=f"Use one of {', '.join(DRAFTS)}.",
        )


def _unusable(error: Exception, document: Json, file: str) -> SchemaError:
    """Says in our words what the compiler found."""
    if not isinstance(error, jsonschema_rs.ValidationError):
        return SchemaError(f"{file} cannot be compiled: {error}", remedy=f"Correct {file}.")
    kind, place = error.kind, pointer(error.instance_path)
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Referencing):
        outside = sorted(set(_outside_references(document)))
        if outside:
            shown = ", ".join(ref[:120] for ref in outside[:5])
            return SchemaError(
                f"{file} refers to something outside itself: {shown}",
                why="A reference to an address would be fetched while checking, which is never allowed, and "
                "references between files of the schema folder are not supported yet.",
                remedy="Copy the definition into the file's own $defs and refer to it as #/$defs/<name>.",
            )
        return SchemaError(
            f"{file} has a reference that leads nowhere: {kind.error.message}",
            remedy=f"Correct the $ref, or add what it names to {file}.",
        )
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Format) and kind.format == "regex":
        return SchemaError(
            f"{file}: the pattern at {place} cannot be used",
            why="It is malformed, too large, or needs backtracking (lookaround, back references), with "
            "which one event could hold the pipeline up for ever.",
            remedy="Rewrite it without (?=…), (?!…), (?<…) and \\1, perhaps as several patterns under allOf.",
        )
    return SchemaError(
        f"{file} is not a valid schema: at {place}, {error.message[:300]}",
        why=f"The meta-schema of its draft forbids it ({pointer(error.schema_path)}).",
        remedy=f"Correct {place} in {file}.",
    )


def _outside_references(document: Json) -> Iterator[str]:
    """Every reference that leaves the document. Only names them; the compiler decides."""
    todo = [document]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            for key in _REFERENCES:
                ref = node.get(key)
                if isinstance(ref, str) and not ref.startswith("#"):
                    yield ref
            todo.extend(node.values())
        elif isinstance(node, list):
            todo.extend(node)
