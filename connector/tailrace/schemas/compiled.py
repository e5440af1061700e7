"""CompiledSchema: a registered schema, ready to validate with. SchemaSet: several of them, by subject and version.

A subject is the name that versions of a schema are registered under, usually the event's type. The kind of schema (JSON
Schema, Avro) is hidden behind the protocol: code that validates only asks whether a value is valid, and why not.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from tailrace.errors import SchemaError
from tailrace.schema_versions import Version
from tailrace.schemas.strict_json import Json

Kind = Literal["json", "avro"]
EncodeText = Callable[[bytes, bool], bytes | None]
"""Encodes a payload's text in one step, or returns None if the payload must be parsed and validated first. The
second argument is true if the database has parsed the text before: then it is valid JSON, and no object in it
repeats a key."""
SUBJECT_CHARS = 1300
"""Room for a type and a topic of the maximum length, and the template around them."""

_is_plain = re.compile(r"[A-Za-z0-9_.:$-]+").fullmatch


class Reference(NamedTuple):
    """A reference to another registered schema, under the name that the referring schema uses for it."""

    name: str
    subject: str
    version: Version


class RegistryIds(NamedTuple):
    """The identifiers that a registry gave a schema: `id` is written before a value, `guid` into a header."""

    id: int
    guid: str | None = None


class CompiledSchema(Protocol):
    """A schema that payloads can be validated against. `file` says where it came from, for messages."""

    @property
    def kind(self) -> Kind: ...
    @property
    def subject(self) -> str: ...
    @property
    def version(self) -> Version: ...
    @property
    def file(self) -> str: ...
    @property
    def document(self) -> Json: ...
    @property
    def references(self) -> tuple[Reference, ...]: ...
    @property
    def registered(self) -> RegistryIds | None: ...
    @property
    def is_valid(self) -> Callable[[Any], bool]:
        """Returns whether a parsed payload is valid. An attribute rather than a method, because it is called for
        every event."""

    @property
    def encode_text(self) -> EncodeText | None:
        """A faster path from a valid payload to its binary form; None if there is none for this schema."""

    def explain(self, value: Json, size: int) -> str:
        """Returns why `value`, of `size` bytes as JSON, is not valid: which field, what was expected, what was
        found."""

    def encode(self, content: Json) -> bytes:
        """Encodes a validated value in the schema's binary form. Only Avro has one."""


class SchemaLookup(Protocol):
    """Finds the compiled schema of an event."""

    @property
    def known(self) -> dict[tuple[str, str | None], CompiledSchema]:
        """Schemas that need no lookup, by subject and version as events write it. None as version means the latest."""

    def find(self, subject: str, version: str | None) -> CompiledSchema | None:
        """Looks up a schema that is not in `known`. Returns None if it is not registered. Raises
        RegistryUnavailable, or SchemaError if the registered schema cannot be used."""

    def versions(self, subject: str) -> list[Version]:
        """Returns the registered versions, oldest first; empty if there are none."""


@dataclass(frozen=True, slots=True, eq=False)
class SchemaSet:
    """Compiled schemas that are all in memory, such as those of a folder."""

    schemas: tuple[CompiledSchema, ...]
    known: dict[tuple[str, str | None], CompiledSchema]

    @classmethod
    def of(cls, schemas: Iterable[CompiledSchema] = ()) -> SchemaSet:
        by_subject: dict[str, dict[Version, CompiledSchema]] = {}
        for schema in schemas:
            other = by_subject.setdefault(schema.subject, {}).setdefault(schema.version, schema)
            if other is not schema:
                raise SchemaError(
                    f"version {schema.version} of {schema.subject} is registered twice: {other.file} and {schema.file}",
                    why="A whole number N and N.0.0 are the same version." if schema.version.whole else "",
                    remedy="Keep one of them.",
                )
        ordered = tuple(versions[number] for versions in by_subject.values() for number in sorted(versions))
        known: dict[tuple[str, str | None], CompiledSchema] = {}
        for schema in ordered:
            for text in schema.version.spellings:
                known[schema.subject, text] = schema
            known[schema.subject, None] = schema  # the latest version comes last and stays
        return cls(ordered, known)

    def __iter__(self) -> Iterator[CompiledSchema]:
        return iter(self.schemas)

    def find(self, subject: str, version: str | None) -> CompiledSchema | None:
        return self.known.get((subject, version))

    def versions(self, subject: str) -> list[Version]:
        return [schema.version for schema in self.schemas if schema.subject == subject]


def subject_flaw(subject: str) -> str | None:
    """Returns why no schema can be registered under `subject`, or None if one can.

    The service chooses the event's type, and the subject derived from it becomes part of a registry's URLs. Invalid
    subjects are rejected without a request.
    """
    if not subject:
        return "it is empty"
    if subject in {".", ".."}:
        return "in a URL, . and .. are path segments"
    if len(subject) > SUBJECT_CHARS:
        return f"it has {len(subject):,} characters, {SUBJECT_CHARS:,} are allowed"
    if any(unicodedata.category(character) == "Cc" for character in subject):
        return "it contains a control character"
    return None


def is_plain(subject: str) -> bool:
    """Whether every registry and proxy accepts `subject` in a URL unchanged."""
    return _is_plain(subject) is not None
