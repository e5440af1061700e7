"""A folder's schemas beside those of a registry: which it knows, which are new, which were changed since.

In the order of their references, because a registry takes a schema only after those it refers to. Folder and registry
each number versions their own way, so a reference is translated to what the registry calls it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from tailrace.errors import SchemaError
from tailrace.schemas.compiled import CompiledSchema, Reference, SchemaSet
from tailrace.schemas.json_schema import DRAFTS
from tailrace.schemas.registry.client import Found, RegistryClient
from tailrace.schemas.strict_json import Json

SubjectOf = Callable[[CompiledSchema], str]


class RegistryEntry(NamedTuple):
    """A schema of the folder, and under what the registry has it; `changed` if it has another under that version."""

    schema: CompiledSchema
    subject: str
    found: Found | None
    changed: bool = False


def compare(schemas: Sequence[CompiledSchema], client: RegistryClient, subject_of: SubjectOf) -> list[RegistryEntry]:
    """Every schema, looked up by what it says; those referred to come first."""
    entries: dict[tuple[str, int], RegistryEntry] = {}
    versions: dict[str, list[int]] = {}
    for schema in in_order(schemas):
        subject = subject_of(schema)
        references = _translated(schema, entries)
        found = None
        if references is not None:
            found = client.lookup(subject, stated(schema), schema.kind, references)
        if subject not in versions:
            versions[subject] = client.versions(subject)
        changed = found is None and schema.version in versions[subject]
        entries[schema.subject, schema.version] = RegistryEntry(schema, subject, found, changed)
    return list(entries.values())


def register(entries: Sequence[RegistryEntry], client: RegistryClient) -> Iterator[RegistryEntry]:
    """Registers what is new, in order, and tells of each as it is done. Doing it again changes nothing."""
    done: dict[tuple[str, int], RegistryEntry] = {}
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
    """A folder's contracts, each with what the registry calls it, so that records can carry that."""
    known: list[CompiledSchema] = []
    for schema, subject, found, _ in compare(schemas.schemas, client, subject_of):
        if found is None:
            raise SchemaError(
                f"{schema.file} is not registered under {subject} at {client.url}",
                why="Records carry the id that the registry gives a schema.",
                remedy="Register the folder's schemas with `tailrace schemas register`.",
            )
        # Contracts are frozen dataclasses, which the Protocol cannot say.
        known.append(cast(CompiledSchema, dataclasses.replace(cast(Any, schema), registered=found.registered)))
    return SchemaSet.of(known)


def stated(schema: CompiledSchema) -> Json:
    """The schema with its draft written down: without it, we take the newest and others take another."""
    document = schema.document
    if schema.kind == "json" and isinstance(document, dict) and "$schema" not in document:
        return {"$schema": DRAFTS[0], **document}
    return document


def in_order(schemas: Sequence[CompiledSchema]) -> list[CompiledSchema]:
    """Oldest version first, and what is referred to before what refers to it."""
    by_name = {(schema.subject, schema.version): schema for schema in schemas}
    ordered: dict[tuple[str, int], CompiledSchema] = {}

    def visit(schema: CompiledSchema, above: tuple[tuple[str, int], ...]) -> None:
        name = (schema.subject, schema.version)
        if name in above:
            raise SchemaError(
                f"{schema.file} refers to itself by way of other files",
                why="A registry takes a schema only after those it refers to.",
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


def _translated(schema: CompiledSchema, entries: dict[tuple[str, int], RegistryEntry]) -> tuple[Reference, ...] | None:
    """The contract's references as the registry has them; None if it does not have all of them."""
    references: list[Reference] = []
    for name, subject, version in schema.references:
        entry = entries[subject, version]
        if entry.found is None:
            return None
        references.append(Reference(name, entry.subject, entry.found.version))
    return tuple(references)
