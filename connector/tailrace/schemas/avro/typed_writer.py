"""Generates a function that reads a payload into types made for its schema, and writes it as Avro.

msgspec parses JSON into classes made for the schema and rejects other types, so the generated function checks nothing
twice. Like the one of `generated_writer`, it never decides that a payload is invalid: it returns None for what it does
not handle, and the payload is parsed and validated instead. Numbers are restricted more than in the schema: an integer
in a float field must be represented exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from tailrace.schemas.avro.code import SMALL, Body, varint
from tailrace.schemas.avro.generated_writer import Source, TooLarge, integer, kind_of
from tailrace.schemas.avro.scalar_converters import PLAIN
from tailrace.schemas.avro.schema import Type
from tailrace.schemas.compiled import EncodeText
from tailrace.schemas.strict_json import has_nul

_RANGES = {"int": 1 << 31, "long": 1 << 63}
_EXACT = {"float": 1 << 24, "double": 1 << 53}
"""Integers below these limits are exact as fractions."""
_SCALARS: dict[str, Any] = {
    "boolean": bool,
    **{kind: Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)] for kind, limit in _RANGES.items()},
    **{kind: Annotated[float, msgspec.Meta(gt=-limit, lt=limit)] for kind, limit in _EXACT.items()},
}


class Untyped(Exception):
    """The schema has something that no msgspec type represents."""


def typed(top: Type) -> EncodeText | None:
    """Returns an `EncodeText` for a schema's type; None if there is none."""
    if kind_of(top) != "record":
        return None
    try:
        source = _TypedSource(top)
        read = msgspec.json.Decoder(source.type_of(top)).decode
        source.whole(top)
    except (RecursionError, TooLarge, Untyped):
        return None
    exec("\n".join(source.lines), source.constants)  # noqa: S102 - the source contains no text of the schema
    write: Callable[[Any], bytes] = source.constants["write"]
    written = msgspec.json.Encoder().encode

    def encode_text(payload: bytes, rewritten: bool) -> bytes | None:
        # 92 is the backslash: without one there is no escaped NUL and no escaped colon.
        if 92 in payload and (not rewritten or has_nul(payload)):
            return None
        try:
            value = read(payload)
            # A repeated key is read once, so its colon is missing.
            if not rewritten and payload.count(b":") != written(value).count(b":"):
                return None
            return write(value)
        except Exception:  # noqa: BLE001 - any exception leaves the payload to the other paths
            return None

    return encode_text


class _TypedSource(Source):
    """Generates code for values that msgspec has read: every value already has its type."""

    def __init__(self, top: Type) -> None:
        super().__init__(top)
        self.constants["UNSET"] = msgspec.UNSET
        self._classes: dict[str, type | None] = {}

    def type_of(self, of: Type) -> Any:  # noqa: ANN401 - a type expression
        """Returns the type that msgspec reads a value into."""
        of = self.defined.get(of.tag, of)
        kind = kind_of(of)
        if kind == "record":
            return self._class(of)
        if kind == "array":
            return list[self.type_of(of.parts[0])]  # type: ignore[misc]
        if kind == "map":
            return dict[str, self.type_of(of.parts[0])]  # type: ignore[misc]
        if kind == "union":
            return self.type_of(of.parts[1 - _null(of)]) | None
        if kind in _SCALARS and of.convert is PLAIN[kind][0]:
            return _SCALARS[kind]
        if kind == "null":
            raise Untyped
        return str  # text has one form; numbers for logical types are left to the other paths

    def _class(self, of: Type) -> type:
        if of.tag in self._classes:
            known = self._classes[of.tag]
            if known is None:
                raise Untyped  # it is recursive
            return known
        if not of.parts:
            raise Untyped  # nothing would be written
        self._classes[of.tag] = None
        names = {f"f{number}": field["name"] for number, field in enumerate(of.writer["fields"])}
        fields = [
            (name, self.type_of(part) | msgspec.UnsetType, msgspec.UNSET)
            if names[name] in of.optional
            else (name, self.type_of(part))
            for name, part in zip(names, of.parts, strict=True)
        ]
        made = self._classes[of.tag] = msgspec.defstruct(
            of.tag, fields, rename=names, forbid_unknown_fields=True, kw_only=True, gc=False
        )
        return made

    def record(self, body: Body, of: Type, v: str) -> None:
        for number, part in enumerate(of.parts):
            variable = body.variable()
            body.add(f"{variable} = {v}.f{number}")
            if of.writer["fields"][number]["name"] in of.optional:
                body.add(f"if {variable} is UNSET: {variable} = None")
            self.write(body, part, variable)

    def length(self, body: Body, v: str) -> None:
        """A length beyond the table raises, which leaves the payload to the other paths."""
        body.pieces.append(f"SMALL[len({v})]")

    def items(self, body: Body, of: Type, v: str, *, keyed: bool) -> None:
        self.blocks(body, of, v, keyed=keyed)

    def union(self, body: Body, of: Type, v: str) -> None:
        null = _null(of)
        with body.block(f"if {v} is None:"):
            body.pieces.append(repr(varint(null)))
        with body.block("else:"):
            body.pieces.append(repr(varint(1 - null)))
            self.write(body, of.parts[1 - null], v)

    def text(self, body: Body, v: str) -> None:
        body.add(f"{v} = {v}.encode()")
        self.length(body, v)
        body.pieces.append(v)

    def scalar(self, body: Body, of: Type, kind: str, v: str) -> None:
        plain = kind in PLAIN and of.convert is PLAIN[kind][0]
        if kind == "boolean":
            body.pieces.append(f"b'\\1' if {v} else b'\\0'")
        elif kind in _RANGES and plain:
            body.pieces.append(f"SMALL[{v}] if 0 <= {v} < {len(SMALL)} else varint({v})")
        elif kind in _RANGES:
            body.pieces.append(f"{self.constant(integer(of.convert))}({v})")
        elif kind in _EXACT:
            body.pieces.append(f"pack_{kind}({v})")
        elif kind == "enum":
            symbols = {symbol: varint(index) for index, symbol in enumerate(of.writer["symbols"])}
            body.pieces.append(f"{self.constant(symbols)}[{v}]")
        else:
            super().scalar(body, of, kind, v)


def _null(union: Type) -> int:
    """Returns the index of the null branch. After reading, only null and one other type can be distinguished."""
    kinds = [kind_of(part) for part in union.parts]
    if len(kinds) != 2 or kinds.count("null") != 1:
        raise Untyped
    return kinds.index("null")
