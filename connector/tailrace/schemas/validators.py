"""How every JSON Schema validator is built, and how places in documents are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import urljoin

import jsonschema_rs

from tailrace.schemas.strict_json import Json

BASE = "https://schemas.invalid/"
"""What the addresses of our own documents begin with. No host has such a name, ever; and nothing is fetched."""


@dataclass(frozen=True, slots=True)
class ReferencedSchemas:
    """What a schema may refer to: other documents by address, and the address that its own references start from.

    `known` are the addresses of those documents, `missing` those that some document refers to in vain.
    """

    address: str = BASE
    known: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    registry: jsonschema_rs.Registry | None = None

    @classmethod
    def of(cls, documents: Mapping[str, Json], ids: Iterable[str] = ()) -> Self:
        """`ids` are the `$id`s of documents: the registry finds those itself, and stumbles if told twice."""
        missing: set[str] = set()

        def asked_for(address: str) -> Json:
            missing.add(address)
            return False

        registry = jsonschema_rs.Registry(list(documents.items()), retriever=asked_for) if documents else None
        return cls(BASE, frozenset((*documents, *ids)), frozenset(missing), registry)

    def at(self, address: str) -> ReferencedSchemas:
        """The same, seen from another document."""
        return replace(self, address=address)

    def target(self, reference: str) -> str:
        """The address of the document that a reference leads to."""
        return urljoin(self.address, reference).partition("#")[0]

    def options(self) -> dict[str, Any]:
        """How every validator is built: formats count, patterns run in linear time, nothing is fetched."""
        return {
            "validate_formats": True,
            "pattern_options": jsonschema_rs.RegexOptions(),
            "offline": True,
            "base_uri": self.address,
            "registry": self.registry,
        }


def pointer(path: Iterable[str | int]) -> str:
    """A place in a document as a JSON pointer, `#/properties/a~1b`."""
    return "#" + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def path_of(place: str) -> tuple[str, ...]:
    """The path that a JSON pointer describes."""
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in place.partition("#")[2].split("/")[1:])
