"""A compiled schema -> a function that reads a payload into just its types, and writes it as Avro.

msgspec reads JSON into classes made for the schema, and refuses by itself what is not of their types; so the generated
function need not look at anything twice. As the one of `generated`, it never has the last word: what it does not know
makes it return None, and then the payload is parsed and checked with care. What numbers may be is narrower here than
in the schema: a whole number in a field of fractions must come out whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from tailrace.schemas.avro.code import SMALL, Body, varint
from tailrace.schemas.avro.generated import Source, TooLarge, integer, kind_of
from tailrace.schemas.avro.schema import Type
from tailrace.schemas.avro.values import PLAIN
from tailrace.schemas.compiled import EncodeText
from tailrace.schemas.strict_json import has_nul

_RANGES = {"int": 1 << 31, "long": 1 << 63}
_EXACT = {"float": 1 << 24, "double": 1 << 53}
"""Whole numbers below are fractions, too, each another one."""
_SCALARS: dict[str, Any] = {
    "boolean": bool,
    **{kind: Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)] for kind, limit in _RANGES.items()},
    **{kind: Annotated[float, msgspec.Meta(gt=-limit, lt=limit)] for kind, limit in _EXACT.items()},
}


class Untyped(Exception):
    """The schema has something that no type of msgspec stands for."""


def typed(top: Type) -> EncodeText | None:
    """An `EncodeText` for the schema's type; None if there is none for it."""
    if kind_of(top) != "record":
        return None
    try:
        source = _TypedSource(top)
        read = msgspec.json.Decoder(source.type_of(top)).decode
        source.whole(top)
    except (RecursionError, TooLarge, Untyped):
        return None
    exec("\n".join(source.lines), source.constants)  # noqa: S102 - nothing in it is from outside: see `generated`
    write: Callable[[Any], bytes] = source.constants["write"]
    written = msgspec.json.Encoder().encode

    def encode_text(payload: bytes, rewritten: bool) -> bytes | None:
        # 92 is the backslash: without one there is no escaped NUL, and no colon that does not look like one.
        if 92 in payload and (not rewritten or has_nul(payload)):
            return None
        try:
            value = read(payload)
            # A key that is there twice is read once, and so is its colon.
            if not rewritten and payload.count(b":") != written(value).count(b":"):
                return None
            return write(value)
        except Exception:  # noqa: BLE001 - it raises anything to say that it does not know
            return None

    return encode_text


class _TypedSource(Source):
    """Writes what msgspec has read: every value has its type already."""

    def __init__(self, top: Type) -> None:
        super().__init__(top)
        self.constants["UNSET"] = msgspec.UNSET
        self._classes: dict[str, type | None] = {}

    def type_of(self, of: Type) -> Any:  # noqa: ANN401 - types are of many types
        """What msgspec reads a value of this type into."""
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
        return str  # as text, other scalars have one form; numbers that stand for them are for others to look at

    def _class(self, of: Type) -> type:
        if of.tag in self._classes:
            known = self._classes[of.tag]
            if known is None:
                raise Untyped  # it holds itself
            return known
        if not of.parts:
            raise Untyped  # there would be nothing to write
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
        """What is longer than most raises, and is for others to look at."""
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
    """Which of two branches is null; only null or one other type can be told by what was read."""
    kinds = [kind_of(part) for part in union.parts]
    if len(kinds) != 2 or kinds.count("null") != 1:
        raise Untyped
    return kinds.index("null")
