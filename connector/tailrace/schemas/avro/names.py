"""Named types of Avro schemas: which ones a schema defines, and which it uses from other files of the folder.

A type that a schema uses without defining it is looked up in the other files. If several versions define it, the latest
counts. A type that two subjects define is rejected, because either could be meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tailrace.errors import SchemaError
from tailrace.schema_versions import Version
from tailrace.schemas.strict_json import Json

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_COMPLEX = frozenset({"record", "error", "enum", "fixed", "array", "map"})


class Place(Protocol):
    """The origin of a document."""

    @property
    def subject(self) -> str: ...
    @property
    def version(self) -> Version: ...
    def locate(self, path: Sequence[str | int]) -> str: ...


P = TypeVar("P", bound=Place)


@dataclass(frozen=True, slots=True)
class Names(Generic[P]):
    """All named types of some schemas: each definition and its file, in the latest version."""

    defined: Mapping[str, tuple[Json, P]]

    def needed_by(self, document: Json, place: P) -> tuple[dict[str, Json], list[tuple[str, P]]]:
        """Returns the definitions that `document` lacks, including transitive ones, and the origin of each direct
        one."""
        named: dict[str, Json] = {}
        direct: list[tuple[str, P]] = []
        todo = sorted(set(used(document)) - {name for name, _ in definitions(document)})
        own = list(todo)
        while todo:
            name = todo.pop()
            if name in named:
                continue
            if name not in self.defined:
                raise SchemaError(
                    f"{place.locate(())}: the type {name[:120]!r} is not defined",
                    why="It is neither a built-in type of Avro nor defined in a file of the folder.",
                    remedy="Correct the name, or add the file that defines it.",
                )
            definition, other = self.defined[name]
            named[name] = definition
            if name in own:
                direct.append((name, other))
            todo += sorted(set(used(definition)) - {inner for inner, _ in definitions(definition)} - named.keys())
        return named, direct


def names_of(documents: Iterable[tuple[Json, P]]) -> Names[P]:
    defined: dict[str, tuple[Json, P]] = {}
    for document, place in documents:
        for name, definition in definitions(document):
            other = defined.get(name)
            if other is not None and other[1].subject != place.subject:
                raise SchemaError(
                    f"{place.locate(())}: the type {name[:120]!r} is also defined by {other[1].locate(())}",
                    why="A use of the name could mean either.",
                    remedy="Define it in one file and use its name in the other.",
                )
            if other is None or other[1].version < place.version:
                defined[name] = (definition, place)
    return Names(defined)


def definitions(schema: Json, space: str = "") -> Iterator[tuple[str, Json]]:
    """Yields every named type that a schema defines, by full name."""
    for node, inherited in _nodes(schema, space):
        if isinstance(node, dict) and node.get("type") in ("record", "error", "enum", "fixed"):
            name, own_space = full_name(node, inherited)
            yield name, {**node, "namespace": own_space} if "." not in str(node.get("name", "")) else node


def used(schema: Json, space: str = "") -> Iterator[str]:
    """Yields the full name of every type that a schema mentions, except Avro's own."""
    for node, inherited in _nodes(schema, space):
        if isinstance(node, str) and node not in PRIMITIVES | _COMPLEX:
            yield node if "." in node or not inherited else f"{inherited}.{node}"


def full_name(node: Mapping[str, Json], inherited: str) -> tuple[str, str]:
    """Returns a definition's full name and the namespace for the types inside it."""
    name = str(node.get("name", ""))
    if "." in name:
        return name, name.rpartition(".")[0]
    space = str(node.get("namespace", inherited) or "")
    return (f"{space}.{name}" if space else name), space


def _nodes(schema: Json, space: str) -> Iterator[tuple[Json, str]]:
    """Yields every schema inside a schema, with its namespace. Iterative, because files may be deeply nested."""
    todo: list[tuple[Json, str]] = [(schema, space)]
    while todo:
        node, here = todo.pop()
        yield node, here
        if isinstance(node, list):
            todo += [(branch, here) for branch in node]
        elif isinstance(node, dict):
            kind = node.get("type")
            if kind in ("record", "error"):
                here = full_name(node, here)[1]
                fields = node.get("fields")
                todo += [(field.get("type"), here) for field in fields or () if isinstance(field, dict)]
            elif kind == "array":
                todo.append((node.get("items"), here))
            elif kind == "map":
                todo.append((node.get("values"), here))
            elif kind not in ("enum", "fixed"):
                todo.append((kind, here))
