"""Compiles an Avro schema document to a converter and the schema for the writer.

Every part is validated here, because fastavro's parser accepts much that no reader does (a union in a union, a default
of another type, a repeated field) and reports no place. A SchemaError says where the problem is. The writer's schema
has neither logical types nor defaults, because the converters handle both. Its types have other names, because fastavro
takes a type without a namespace for one of the enclosing namespace; names are not written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tailrace.errors import SchemaError
from tailrace.schemas.avro import container_converters as containers
from tailrace.schemas.avro import scalar_converters as scalars
from tailrace.schemas.avro.names import PRIMITIVES, full_name
from tailrace.schemas.avro.scalar_converters import MISSING, Convert, ValueMismatch
from tailrace.schemas.messages import cut, describe
from tailrace.schemas.strict_json import Json
from tailrace.schemas.validators import pointer

Path = tuple[str | int, ...]
Fits = Callable[[Json], bool]

MAX_DEPTH = 128
"""Levels of a schema, as of a payload. Only a document that this package did not parse can have more."""
_SAME: Mapping[str, type] = {"string": str, "boolean": bool, "double": float}
"""Types that accept one JSON type unchanged."""
_name = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII).fullmatch
_OBJECTS = frozenset({dict})


@dataclass(slots=True)
class Type:
    """A compiled type. The converter of a recursive record is set last.

    `name` is for messages, `tag` is the writer's name, `writer` is its schema for the writer, and `takes` are the JSON
    types that it may accept. `parts` are the types inside, in order; `optional` are the fields that may be absent.
    """

    name: str
    tag: str
    writer: Json
    takes: frozenset[type]
    convert: Convert
    default_fits: Fits
    same: type | None = None
    parts: Sequence[Type] = ()
    optional: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Compiled:
    """The result. `tried` are the memories of ambiguous unions, to be cleared after each payload."""

    top: Type
    tried: list[dict[int, Any]]


def compile_document(document: Json, file: str, named: Mapping[str, Json]) -> Compiled:
    """Compiles a document. `named` holds definitions from other documents, by full name."""
    compiler = _Compiler(file, named)
    try:
        top = compiler.type_of(document, "", ())
    except RecursionError:
        raise SchemaError(
            f"{file} refers to types in a chain that is too long", remedy="Make the chain shorter."
        ) from None
    return Compiled(top, compiler.tried)


class _Compiler:
    def __init__(self, file: str, named: Mapping[str, Json]) -> None:
        self._file = file
        self._named = named
        self._known: dict[str, Type] = {}
        self._elsewhere = ""
        self.tried: list[dict[int, Any]] = []

    def type_of(self, schema: Json, space: str, path: Path) -> Type:
        if len(path) > 2 * MAX_DEPTH:
            self._refuse(path[:8], "the schema is nested too deeply", f"Keep it under {MAX_DEPTH} levels.")
        if isinstance(schema, str):
            return self._plain(schema, {}) if schema in PRIMITIVES else self._reference(schema, space, path)
        if isinstance(schema, list):
            return self._union(schema, space, path)
        if not isinstance(schema, dict) or "type" not in schema:
            self._refuse(
                path, f"{describe(schema)} is not a schema", "Write a type's name, an object with `type` or a union."
            )
        kind = schema["type"]
        if isinstance(kind, list | dict):
            return self.type_of(kind, space, (*path, "type"))
        if kind in ("record", "error"):
            return self._record(schema, space, path)
        if kind == "array":
            item = self._part(schema, "items", space, path)
            return self._container("array", {"items": item.writer}, list, containers.array(item.convert), item)
        if kind == "map":
            item = self._part(schema, "values", space, path)
            return self._container("map", {"values": item.writer}, dict, containers.mapping(item.convert), item)
        if kind == "enum":
            return self._enum(schema, space, path)
        if kind == "fixed":
            return self._fixed(schema, space, path)
        if isinstance(kind, str) and kind in PRIMITIVES:
            return self._decimal(schema, kind, None, path) or self._plain(kind, schema)
        return self._reference(kind, space, (*path, "type"))

    def _plain(self, kind: str, schema: Mapping[str, Json]) -> Type:
        logical = schema.get("logicalType")
        plain, takes = scalars.PLAIN[kind]
        special = scalars.LOGICAL.get((kind, logical)) if isinstance(logical, str) else None
        convert, takes = special or (plain, takes)
        fits = containers.default_as_bytes if kind == "bytes" else containers.default_as_value(plain)
        return Type(kind, kind, kind, takes, convert, fits, None if special else _SAME.get(kind))

    def _reference(self, name: Json, space: str, path: Path) -> Type:
        full = f"{space}.{name}" if space and "." not in str(name) else str(name)
        if full not in self._known and full in self._named:
            outer, self._elsewhere = self._elsewhere, full
            found = self.type_of(self._named[full], "", ())
            self._elsewhere = outer
            if full in self._known:
                return found
        if full not in self._known:
            self._refuse(
                path,
                f"there is no type {describe(name)}",
                "Correct the name, or define it before its first use or in a schema that this one refers to.",
            )
        known = self._known[full]

        def convert(value: Json) -> Any:  # noqa: ANN401 - late, because a recursive record is not complete yet
            return known.convert(value)

        def default_fits(value: Json) -> bool:
            return known.default_fits(value)

        return Type(full, known.tag, known.tag, known.takes, convert, default_fits)

    def _union(self, schema: list[Json], space: str, path: Path) -> Type:
        branches: list[Type] = []
        for index, one in enumerate(schema):
            branch = self.type_of(one, space, (*path, index))
            if branch.name == "union":
                self._refuse((*path, index), "a union holds a union", "Write the inner one's types into the outer one.")
            if any(branch.name == other.name for other in branches):
                self._refuse((*path, index), f"a union holds {cut(branch.name)} twice", "Remove one of them.")
            branches.append(branch)
        if not branches:
            self._refuse(path, "a union holds no type", "Write at least one into it.")
        tried: dict[int, Any] = {}
        if sum(dict in branch.takes for branch in branches) > 1:
            self.tried.append(tried)
        return Type(
            "union",
            "union",
            [branch.writer for branch in branches],
            frozenset().union(*(branch.takes for branch in branches)),
            containers.union([containers.Branch(one.name, one.tag, one.convert, one.takes) for one in branches], tried),
            lambda value: any(branch.default_fits(value) for branch in branches),
            parts=branches,
        )

    def _container(self, kind: str, inner: dict[str, Json], takes: type, convert: Convert, item: Type) -> Type:
        def default_fits(value: Json) -> bool:
            parts = value.values() if isinstance(value, dict) else value
            return type(value) is takes and all(map(item.default_fits, parts))

        return Type(kind, kind, {"type": kind, **inner}, frozenset({takes}), convert, default_fits, parts=[item])

    def _record(self, schema: dict[str, Json], space: str, path: Path) -> Type:
        name, inner, known = self._define(schema, space, path, _OBJECTS)
        if known is not None:
            return known
        made = self._known[name]
        parts = schema.get("fields")
        if not isinstance(parts, list):
            self._refuse(path, "the record has no `fields`", "Write a list of fields, which may be empty.")
        fields: list[containers.Field] = []
        types: dict[str, Type] = {}
        writers: list[Json] = []
        for index, part in enumerate(parts):
            at = (*path, "fields", index)
            field = part.get("name") if isinstance(part, dict) else None
            if not isinstance(field, str) or not _name(field) or field in types:
                why = "a name that was there before" if isinstance(field, str) and field in types else "no usable name"
                self._refuse(at, f"a field has {why}", "Name each field once, with letters, digits and underscores.")
            of = types[field] = self._part(part, "type", inner, at)
            if "default" in part and not of.default_fits(part["default"]):
                self._refuse(
                    (*at, "default"),
                    f"the default {describe(part['default'])} is not of the field's type",
                    "Write a value of that type; of a union's first type, to suit every reader.",
                )
            absent = part.get("default", MISSING)
            fields.append(containers.Field(field, of.convert, None if absent is None else MISSING, of.same))
            writers.append({"name": field, "type": of.writer})
        required = {part["name"] for part in parts if "default" not in part}
        made.convert = containers.record(name, fields)
        made.default_fits = lambda value: (
            isinstance(value, dict)
            and required <= value.keys() <= types.keys()
            and all(types[field].default_fits(one) for field, one in value.items())
        )
        made.writer = {"type": "record", "name": made.tag, "fields": writers}
        made.parts = list(types.values())
        made.optional = frozenset(field.name for field in fields if field.absent is None)
        return made

    def _enum(self, schema: dict[str, Json], space: str, path: Path) -> Type:
        name, _, known = self._define(schema, space, path, frozenset({str}))
        if known is not None:
            return known
        symbols = schema.get("symbols")
        usable = isinstance(symbols, list) and all(isinstance(one, str) and _name(one) for one in symbols)
        if not isinstance(symbols, list) or not symbols or not usable or len(set(symbols)) != len(symbols):
            self._refuse(
                (*path, "symbols"),
                "the enum has no usable `symbols`",
                "List names of letters, digits and underscores, each once.",
            )
        if "default" in schema and schema["default"] not in symbols:
            self._refuse((*path, "default"), "the enum's default is none of its symbols", "Choose one of them.")
        return self._defined(
            name, {"type": "enum", "symbols": symbols}, frozenset({str}), scalars.symbol(symbols), None
        )

    def _fixed(self, schema: dict[str, Json], space: str, path: Path) -> Type:
        name, _, known = self._define(schema, space, path, frozenset({str}))
        if known is not None:
            return known
        size = schema.get("size")
        if type(size) is not int or not 0 <= size < 1 << 31:
            self._refuse((*path, "size"), "the fixed type has no usable `size`", "Write its number of bytes.")
        special = self._decimal(schema, "fixed", size, path)
        takes = special.takes if special else frozenset({str})
        if special:
            convert = special.convert
        elif schema.get("logicalType") == "uuid" and size == 16:
            convert = scalars.uuid_bytes
        else:
            convert = scalars.binary(size)
        fits = lambda value: containers.default_as_bytes(value) and len(value) == size  # noqa: E731
        return self._defined(name, {"type": "fixed", "size": size}, takes, convert, fits)

    def _decimal(self, schema: dict[str, Json], kind: str, size: int | None, path: Path) -> Type | None:
        if schema.get("logicalType") != "decimal" or kind not in ("bytes", "fixed"):
            return None
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if type(precision) is not int or not 0 < precision <= scalars.MAX_PRECISION:
            self._refuse(path, "the decimal has no usable `precision`", "Write how many digits it may have.")
        if type(scale) is not int or not 0 <= scale <= precision:
            self._refuse((*path, "scale"), "the decimal has no usable `scale`", "Write 0 to its precision.")
        if size is not None and (size == 0 or 10**precision > 1 << 8 * size - 1):
            self._refuse(path, f"{precision} digits do not fit into {size} bytes", "Raise size, or lower precision.")
        convert = scalars.decimal(precision, scale, size)
        return Type(kind, kind, kind, frozenset({str, int, float}), convert, containers.default_as_bytes)

    def _define(
        self, schema: dict[str, Json], space: str, path: Path, takes: frozenset[type]
    ) -> tuple[str, str, Type | None]:
        """Returns the full name, the inner namespace, and the type itself if another document has defined it."""
        name, inner = full_name(schema, space)
        if not all(map(_name, name.split("."))):
            self._refuse((*path, "name"), f"{describe(schema.get('name'))} is no name", "Name the type, as in Order.")
        if name in PRIMITIVES:
            self._refuse((*path, "name"), f"{name} is a built-in type of Avro", "Choose another name.")
        if name in self._known:
            # Definitions from other documents may contain each other; within one document a second one is a mistake.
            if self._elsewhere or name in self._named:
                return name, inner, self._reference(name, "", path)
            self._refuse(path, f"the type {cut(name)} is defined twice", "Refer to the first by its name.")
        tag = f"T{len(self._known)}"
        self._known[name] = Type(name, tag, tag, takes, _undefined, lambda _: False)
        return name, inner, None

    def _defined(
        self, name: str, writer: dict[str, Json], takes: frozenset[type], convert: Convert, fits: Fits | None
    ) -> Type:
        made = self._known[name]
        made.takes, made.convert, made.default_fits = (
            takes,
            convert,
            fits or containers.default_as_value(convert),
        )
        return Type(name, made.tag, {**writer, "name": made.tag}, takes, convert, made.default_fits)

    def _part(self, schema: dict[str, Json], name: str, space: str, path: Path) -> Type:
        if name not in schema:
            self._refuse(path, f"`{name}` is missing", f"Add `{name}`.")
        return self.type_of(schema[name], space, (*path, name))

    def _refuse(self, path: Path, what: str, remedy: str) -> NoReturn:
        inside = f", in the type {cut(self._elsewhere)} that it refers to" if self._elsewhere else ""
        raise SchemaError(f"{self._file} ({pointer(path)}){inside}: {what}", remedy=remedy)


def _undefined(value: Json) -> NoReturn:
    raise ValueMismatch("a type that is fully defined", value)
