"""CompiledJsonSchema: a JSON Schema, compiled.

A schema compiles only if validating with it is safe: it is valid against its meta-schema, it refers only to itself and
to registered documents (validation must never open a connection or a file), and it has no pattern that needs
backtracking (one event could otherwise block the pipeline forever). Anything else raises a SchemaError that names the
file and the place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jsonschema_rs

from tailrace.errors import Reason, Rejected, SchemaError
from tailrace.schema_versions import Version
from tailrace.schemas.compiled import EncodeText, Kind, Reference, RegistryIds
from tailrace.schemas.messages import Explainer
from tailrace.schemas.strict_json import Json
from tailrace.schemas.validators import ReferencedSchemas, pointer

DRAFTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-04/schema#",
)
"""Accepted values of `$schema`. The first is the default."""

ALONE = ReferencedSchemas()
"""For a schema that refers only to itself."""
Path = tuple[str | int, ...]
Locate = Callable[[Path], str]

KNOWN_DRAFTS = {draft.partition("://")[2].rstrip("#") for draft in DRAFTS}
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


@dataclass(frozen=True, slots=True, eq=False)
class CompiledJsonSchema:
    """Implements `CompiledSchema` with a JSON Schema."""

    subject: str
    version: Version
    file: str
    document: Json
    validator: jsonschema_rs.Validator
    is_valid: Callable[[Any], bool]
    explainer: Explainer
    references: tuple[Reference, ...] = ()
    registered: RegistryIds | None = None
    kind: Kind = "json"
    encode_text: EncodeText | None = None

    @classmethod
    def compile(
        cls,
        subject: str,
        version: Version,
        document: Json,
        file: str,
        *,
        surroundings: ReferencedSchemas = ALONE,
        references: tuple[Reference, ...] = (),
        registered: RegistryIds | None = None,
        locate: Locate | None = None,
    ) -> CompiledJsonSchema:
        """Compiles a schema document. Raises SchemaError if it cannot be used.

        `locate` formats a place in the document for messages, with its line number if known.
        """
        locate = locate or (lambda path: f"{file} at {pointer(path)}")
        require_draft(document, file, locate)
        _require_references(document, surroundings, locate)
        try:
            validator = jsonschema_rs.validator_for(document, **surroundings.options())
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise _unusable(error, document, file, surroundings, locate) from None
        except BaseException as error:
            # A panic of the Rust library is a BaseException.
            if type(error).__name__ != "PanicException":
                raise
            raise SchemaError(f"{file} cannot be compiled: {error}", remedy="Simplify its references.") from None
        explainer = Explainer(document, file, validator, surroundings)
        return cls(subject, version, file, document, validator, validator.is_valid, explainer, references, registered)

    def explain(self, value: Json, size: int) -> str:
        return self.explainer.explain(value, size)

    def encode(self, content: Json) -> bytes:
        raise Rejected(
            Reason.SCHEMA_VALIDATION_FAILED,
            f"version {self.version} of {self.subject} is a JSON Schema, and the value's format is Avro",
            remedy=f"Register an Avro schema for {self.subject}, or set format.value: json.",
        )


def outside_references(document: Json) -> Iterator[tuple[Path, str]]:
    """Yields every reference that leaves the document, and its path. Whether it can be used is decided by the
    compiler."""
    return ((path, ref) for path, ref in _references(document) if not ref.startswith("#"))


def _references(document: Json) -> Iterator[tuple[Path, str]]:
    todo: list[tuple[Path, Json]] = [((), document)]
    while todo:
        path, node = todo.pop()
        if isinstance(node, dict):
            yield from (((*path, key), node[key]) for key in _REFERENCES if isinstance(node.get(key), str))
            todo.extend(((*path, name), child) for name, child in node.items())
        elif isinstance(node, list):
            todo.extend(((*path, index), child) for index, child in enumerate(node))


def _require_references(document: Json, surroundings: ReferencedSchemas, locate: Locate) -> None:
    """Rejects references that the compiler would silently resolve to the wrong place or to nothing."""
    for path, ref in _references(document):
        if path[-1] == "$recursiveRef" and ref != "#":
            raise SchemaError(
                f"{locate(path)}: $recursiveRef can only be #, not {ref[:120]!r}",
                remedy="Use $ref to refer to a part of the document or to another one.",
            )
        if surroundings.target(ref) in surroundings.missing:
            raise _missing(locate(path), ref)


def require_draft(document: Json, file: str, locate: Locate) -> None:
    if not isinstance(document, dict | bool):
        raise SchemaError(
            f"{file} is not a schema: it holds {type(document).__name__}, not an object",
            remedy=f"Write a JSON Schema object into {file}.",
        )
    named = document.get("$schema", DRAFTS[0]) if isinstance(document, dict) else DRAFTS[0]
    if not isinstance(named, str) or named.partition("://")[2].rstrip("#") not in KNOWN_DRAFTS:
        raise SchemaError(
            f"{locate(('$schema',))}: $schema names an unknown draft, {str(named)[:120]!r}",
            why="Its rules would have to be fetched, and nothing is ever fetched.",
            remedy=f"Use one of {', '.join(DRAFTS)}.",
        )


def _unusable(
    error: Exception, document: Json, file: str, surroundings: ReferencedSchemas, locate: Locate
) -> SchemaError:
    """Words an error of the compiler."""
    if not isinstance(error, jsonschema_rs.ValidationError):
        return SchemaError(f"{file} cannot be compiled: {error}", remedy=f"Correct {file}.")
    kind, place = error.kind, locate(tuple(error.instance_path))
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Referencing):
        for path, ref in sorted(outside_references(document), key=str):
            if surroundings.target(ref) not in surroundings.known:
                return _missing(locate(path), ref)
        return SchemaError(
            f"{file} has a reference without a target: {kind.error.message}",
            remedy=f"Correct the $ref, or add what it names to {file}.",
        )
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Format) and kind.format == "regex":
        return SchemaError(
            f"{place}: the pattern cannot be used",
            why="It is malformed, too large, or needs backtracking (lookaround, back references), with "
            "which one event could block the pipeline forever.",
            remedy="Rewrite it without (?=…), (?!…), (?<…) and \\1, perhaps as several patterns under allOf.",
        )
    return SchemaError(
        f"{place}: this is not a valid schema: {error.message[:300]}",
        why=f"The meta-schema of its draft forbids it ({pointer(error.schema_path)}).",
        remedy=f"Correct {place}.",
    )


def _missing(place: str, ref: str) -> SchemaError:
    if "://" in ref.partition("#")[0]:
        return SchemaError(
            f"{place}: the reference {ref[:120]!r} leads to a document that is not registered",
            why="It would have to be fetched, and nothing is ever fetched.",
            remedy="Register that document as well, and refer to it by its $id or by its path, such as "
            "../Address/1.json.",
        )
    return SchemaError(
        f"{place}: the reference {ref[:120]!r} leads to a file that does not exist",
        why="References are relative to the file that contains them.",
        remedy="Add that file to the schema folder, or correct the reference, such as ../Address/1.json.",
    )
