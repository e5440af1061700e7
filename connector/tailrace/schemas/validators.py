"""Options of every JSON Schema validator, and JSON pointers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import urljoin

import jsonschema_rs

from tailrace.schemas.strict_json import Json

BASE = "https://schemas.invalid/"
"""Base address of our own documents. No host can have this name, and nothing is fetched."""


@dataclass(frozen=True, slots=True)
class ReferencedSchemas:
    """The documents that a schema may refer to, and the address that its own references are relative to.

    `known` are the addresses of those documents; `missing` are addresses that are referred to but not among them.
    """

    address: str = BASE
    known: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    registry: jsonschema_rs.Registry | None = None

    @classmethod
    def of(cls, documents: Mapping[str, Json], ids: Iterable[str] = ()) -> Self:
        """`ids` are the `$id`s of documents. The registry finds those itself and must not be given them."""
        missing: set[str] = set()

        def missing_document(address: str) -> Json:
            missing.add(address)
            return False

        registry = jsonschema_rs.Registry(list(documents.items()), retriever=missing_document) if documents else None
        return cls(BASE, frozenset((*documents, *ids)), frozenset(missing), registry)

    def at(self, address: str) -> ReferencedSchemas:
        """Returns the same documents, seen from another address."""
        return replace(self, address=address)

    def target(self, reference: str) -> str:
        """Returns the address of the document that a reference leads to."""
        return urljoin(self.address, reference).partition("#")[0]

    def options(self) -> dict[str, Any]:
        """Options for every validator: formats are checked, patterns run in linear time, nothing is fetched."""
        return {
            "validate_formats": True,
            "pattern_options": jsonschema_rs.RegexOptions(),
            "offline": True,
            "base_uri": self.address,
            "registry": self.registry,
        }


def pointer(path: Iterable[str | int]) -> str:
    """Formats a path as a JSON pointer, `#/properties/a~1b`."""
    return "#" + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def path_of(place: str) -> tuple[str, ...]:
    """Returns the path of a JSON pointer."""
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in place.partition("#")[2].split("/")[1:])
