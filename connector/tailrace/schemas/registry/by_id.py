"""Fetches schemas by id or GUID, as consumers do: a record carries neither subject nor version.

The schema of an id never changes.
"""

from __future__ import annotations

from typing import Any

from tailrace.errors import RegistryRefused, SchemaError
from tailrace.schemas.compiled import Reference, RegistryIds
from tailrace.schemas.registry.client import KINDS, FetchedSchema, RegistryClient
from tailrace.schemas.registry.requests import NotRegistered
from tailrace.schemas.strict_json import NotJsonError, parse


class ReadersClient(RegistryClient):
    """Requests of consumers."""

    def written_with(self, name: int | str) -> FetchedSchema | None:
        """Fetches the schema of an id or a GUID; None if the registry has none. Schemas that it refers to are not
        fetched."""
        by_number = isinstance(name, int)
        place = f"{self.url}/schemas/{'ids' if by_number else 'guids'}/{name}"
        ask: Any = self._client.get_schema if by_number else self._client.get_schema_by_guid
        try:
            kind, text, references = self._ask(lambda: _taken_apart(ask(name)))
        except NotRegistered:
            return None
        except RegistryRefused:
            if by_number:
                raise
            # Not every registry supports GUIDs. Any other answer means that it does not.
            self.subjects()
            return None
        if kind not in KINDS:
            raise SchemaError(
                f"{place} is a schema of type {kind[:40]}, which is not supported",
                why="Values are read by JSON Schema or Avro.",
                remedy="Give the projection its own `decode`.",
            )
        try:
            document = parse(text.encode("utf-8", "surrogatepass"))
        except NotJsonError as error:
            raise SchemaError(f"{place} is not JSON: {error}", remedy="Register the schema again.") from None
        registered = RegistryIds(name) if isinstance(name, int) else RegistryIds(0, name)
        return FetchedSchema(f"schema {name}", 1, KINDS[kind], document, references, registered, place)


def _taken_apart(schema: Any) -> tuple[str, str, tuple[Reference, ...]]:  # noqa: ANN401 - the library's Schema
    """Returns its type, text and references. Raises TypeError if one of them has an unexpected type."""
    kind, text = schema.schema_type or "AVRO", schema.schema_str
    references = tuple(Reference(each.name, each.subject, each.version) for each in schema.references or ())
    if type(kind) is not str or type(text) is not str:
        raise TypeError("a schema has no text")
    if any([type(part) for part in each] != [str, str, int] for each in references):
        raise TypeError("a reference has no name, subject or version")
    return kind, text, references
