"""Compares a folder's schemas with a registry, and registers those that are missing.

A registry accepts a schema only after those it refers to, so schemas are handled in the order of their references.
Folder and registry number versions independently, so references are translated to the registry's numbers. A registry
has only numbers: a schema of version 1.4.0 is registered with the member `x-version`, which states it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from tailrace.errors import SchemaError
from tailrace.schema_versions import ANNOTATION, Version, stated_version
from tailrace.schemas.compiled import CompiledSchema, Reference, SchemaSet
from tailrace.schemas.json_schema import DRAFTS
from tailrace.schemas.registry.client import RegisteredNumber, RegistryClient
from tailrace.schemas.strict_json import Json

SubjectOf = Callable[[CompiledSchema], str]
Name = tuple[str, Version]


class RegistryEntry(NamedTuple):
    """A schema of the folder, and where the registry has it. `changed` means it has another one under that version."""

    schema: CompiledSchema
    subject: str
    found: RegisteredNumber | None
    changed: bool = False


def compare(schemas: Sequence[CompiledSchema], client: RegistryClient, subject_of: SubjectOf) -> list[RegistryEntry]:
    """Looks up every schema by its content; referenced schemas come first."""
    entries: dict[Name, RegistryEntry] = {}
    numbers: dict[str, list[int]] = {}
    for schema in in_order(schemas):
        subject = subject_of(schema)
        references = _translated(schema, entries)
        found = None
        if references is not None:
            found = _lookup(client, subject, schema, references)
        if subject not in numbers:
            numbers[subject] = client.numbers(subject)
        changed = found is None and _number_of(schema.version, subject, numbers[subject], client) is not None
        entries[schema.subject, schema.version] = RegistryEntry(schema, subject, found, changed)
    return list(entries.values())


def register(entries: Sequence[RegistryEntry], client: RegistryClient) -> Iterator[RegistryEntry]:
    """Registers missing schemas in order and yields each one when it is done. A second run changes nothing."""
    done: dict[Name, RegistryEntry] = {}
    for entry in entries:
        schema = entry.schema
        name = (schema.subject, schema.version)
        done[name] = entry
        if entry.found is None:
            references = _translated(schema, done) or ()
            found = client.register(entry.subject, stated(schema), schema.kind, references)
            done[name] = entry._replace(found=found)
            yield done[name]


def identified(schemas: SchemaSet, client: RegistryClient, subject_of: SubjectOf) -> SchemaSet:
    """Returns the folder's schemas with the ids that the registry gave them."""
    known: list[CompiledSchema] = []
    for schema, subject, found, _ in compare(schemas.schemas, client, subject_of):
        if found is None:
            raise SchemaError(
                f"{schema.file} is not registered under {subject} at {client.url}",
                why="Records carry the id that the registry gives a schema.",
                remedy="Register the folder's schemas with `tailrace schemas register`.",
            )
        # Compiled schemas are frozen dataclasses, which the Protocol cannot express.
        known.append(cast(CompiledSchema, dataclasses.replace(cast(Any, schema), registered=found.registered)))
    return SchemaSet.of(known)


def stated(schema: CompiledSchema) -> Json:
    """Returns the schema with its draft written down, because other tools assume another default, and its version,
    unless that is a plain number."""
    document = _with_draft(schema)
    if "." not in schema.version.text:
        return document
    if isinstance(document, dict):
        return {**document, ANNOTATION: schema.version.text}
    return {"type": document, ANNOTATION: schema.version.text} if schema.kind == "avro" else document


def number_in(client: RegistryClient, entry: RegistryEntry) -> int | None:
    """Returns the registry's number of the version of a folder's schema; None if it has no such version."""
    return _number_of(entry.schema.version, entry.subject, client.numbers(entry.subject), client)


def _number_of(version: Version, subject: str, numbers: list[int], client: RegistryClient) -> int | None:
    """Finds a version among those that the registry has. Number N is not version N if its schema states another."""
    likely_first = sorted(numbers, key=lambda number: (number != version.major, -number))
    return next((number for number in likely_first if client.version(subject, number) == version), None)


def _with_draft(schema: CompiledSchema) -> Json:
    document = schema.document
    if schema.kind == "json" and isinstance(document, dict) and "$schema" not in document:
        return {"$schema": DRAFTS[0], **document}
    return document


def _lookup(
    client: RegistryClient, subject: str, schema: CompiledSchema, references: tuple[Reference, ...]
) -> RegisteredNumber | None:
    """Finds a schema by its content, with or without its version: other tools register the file as it is."""
    found = client.lookup(subject, stated(schema), schema.kind, references)
    if found is None and "." in schema.version.text and stated_version(schema.document) is None:
        found = client.lookup(subject, _with_draft(schema), schema.kind, references)
    return found


def in_order(schemas: Sequence[CompiledSchema]) -> list[CompiledSchema]:
    """Sorts by version, and referenced schemas before those that refer to them."""
    by_name = {(schema.subject, schema.version): schema for schema in schemas}
    ordered: dict[Name, CompiledSchema] = {}

    def visit(schema: CompiledSchema, above: tuple[Name, ...]) -> None:
        name = (schema.subject, schema.version)
        if name in above:
            raise SchemaError(
                f"{schema.file} refers to itself through other files",
                why="A registry accepts a schema only after those it refers to.",
                remedy="Put the definitions that need each other into one file.",
            )
        if name in ordered:
            return
        for _, subject, version in schema.references:
            visit(by_name[subject, version], (*above, name))
        ordered[name] = schema

    for name in sorted(by_name):
        visit(by_name[name], ())
    return list(ordered.values())


def _translated(schema: CompiledSchema, entries: dict[Name, RegistryEntry]) -> tuple[Reference, ...] | None:
    """Returns the schema's references with the registry's numbers; None if the registry lacks one of them."""
    references: list[Reference] = []
    for name, subject, version in schema.references:
        entry = entries[subject, version]
        if entry.found is None:
            return None
        references.append(Reference(name, entry.subject, Version(entry.found.number)))
    return tuple(references)
