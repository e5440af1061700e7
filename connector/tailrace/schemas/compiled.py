"""Contract: one registered schema, ready to check with. SchemaSet: all of them, by subject and version.

A subject is a name that schemas are registered under, usually the event's type. What kind of schema a contract is made
of (JSON Schema, Avro) is its own affair: whoever checks a payload asks whether a value is valid, and why not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from tailrace.errors import SchemaError
from tailrace.schemas.strict_json import Json

Kind = Literal["json", "avro"]
EncodeText = Callable[[bytes, bool], bytes | None]
"""Encodes a payload's text in one step, or returns None if the payload must be parsed and validated first. The second
argument says whether the database has parsed the text before: then it is JSON, and no object in it repeats a key."""


class Reference(NamedTuple):
    """Another registered schema that one refers to: under which name, and which it is."""

    name: str
    subject: str
    version: int


class RegistryIds(NamedTuple):
    """What a registry calls a schema: the number that goes before a value, the id that goes into a header."""

    id: int
    guid: str | None = None


class CompiledSchema(Protocol):
    """A schema that can be checked. `file` is where it came from, for messages."""

    @property
    def kind(self) -> Kind: ...
    @property
    def subject(self) -> str: ...
    @property
    def version(self) -> int: ...
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
        """Whether a parsed payload obeys. An attribute rather than a method: it is called once per event."""

    @property
    def encode_text(self) -> EncodeText | None:
        """A shorter way from a valid payload to its binary form; None if the contract has none."""

    def explain(self, value: Json, size: int) -> str:
        """Why `value`, of `size` bytes as JSON, does not obey: which field, what was expected, what came."""

    def encode(self, content: Json) -> bytes:
        """What was checked in the schema's own binary form; only Avro has one."""


class SchemaLookup(Protocol):
    """Where the checker gets its contracts from."""

    @property
    def known(self) -> dict[tuple[str, str | None], CompiledSchema]:
        """What needs no looking for: by subject and version as events spell it, None meaning the latest."""

    def find(self, subject: str, version: str | None) -> CompiledSchema | None:
        """What `known` does not hold; None if it is not registered. Raises RegistryUnavailable, or SchemaError if what
        is registered cannot be used."""

    def versions(self, subject: str) -> list[int]:
        """The registered versions, oldest first; empty if there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class SchemaSet:
    """Contracts that are all at hand, as those of a folder are."""

    schemas: tuple[CompiledSchema, ...]
    known: dict[tuple[str, str | None], CompiledSchema]

    @classmethod
    def of(cls, schemas: Iterable[CompiledSchema] = ()) -> SchemaSet:
        by_subject: dict[str, dict[int, CompiledSchema]] = {}
        for schema in schemas:
            other = by_subject.setdefault(schema.subject, {}).setdefault(schema.version, schema)
            if other is not schema:
                raise SchemaError(
                    f"version {schema.version} of {schema.subject} is registered twice: {other.file} and {schema.file}",
                    remedy="Keep one of them.",
                )
        ordered = tuple(versions[number] for versions in by_subject.values() for number in sorted(versions))
        known: dict[tuple[str, str | None], CompiledSchema] = {}
        for schema in ordered:
            known[schema.subject, str(schema.version)] = schema
            known[schema.subject, None] = schema  # the last one stays: the latest
        return cls(ordered, known)

    def __iter__(self) -> Iterator[CompiledSchema]:
        return iter(self.schemas)

    def find(self, subject: str, version: str | None) -> CompiledSchema | None:
        return self.known.get((subject, version))

    def versions(self, subject: str) -> list[int]:
        return [schema.version for schema in self.schemas if schema.subject == subject]
