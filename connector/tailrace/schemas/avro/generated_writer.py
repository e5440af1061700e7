"""Generates a Python function for a schema that validates a payload and writes it as Avro in one pass.

The reference path (`scalar_converters`, `container_converters`, fastavro) converts the payload first and then walks
through the result. The generated function goes straight through the fields and only builds bytes, which is three times
as fast. It never decides that a payload is invalid: it raises any exception for what it does not handle, and the
reference path decides. So it may refuse too much, but it must never accept what the reference path rejects, nor write
other bytes. Everything beyond a type check is therefore done by the converters of the reference path.

A schema may come from a registry, so no text of it becomes part of the source: names and symbols are passed as
constants. A schema that is too large gets no function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from struct import Struct
from typing import Any

from tailrace.schemas.avro.code import SMALL, Body, varint
from tailrace.schemas.avro.scalar_converters import LOGICAL, PLAIN, Convert, day
from tailrace.schemas.avro.schema import Type
from tailrace.schemas.strict_json import Json

Write = Callable[[Any], bytes]

MAX_TYPES = 1000
"""Fields, items and branches in total, which takes 0.1 s to generate. Real schemas have a tenth of it."""
_DEEPEST = 10
"""Nested blocks in one function; Python allows 20 loops. Deeper types get their own function."""
REMEMBERED = 1000
"""Days and minutes whose number is cached: events of the same time share them."""
_JSON_TYPES = (str, int, float, bool, dict, list)


class Unsure(Exception):
    """The payload must be handled by the reference path."""


def generate(top: Type) -> Write | None:
    """Returns the function for a schema's type; None if the schema is too large. It may raise any exception."""
    try:
        source = Source(top)
        source.whole(top)
    except (RecursionError, TooLarge):
        return None
    exec("\n".join(source.lines), source.constants)  # noqa: S102 - the source contains no text of the schema
    fast: Write = source.constants["write"]
    return fast


class TooLarge(Exception):
    pass


class Source:
    """Generates the functions of a schema: one for the whole, and one for each shared record and deeply nested type."""

    def __init__(self, top: Type) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {
            "SMALL": SMALL,
            "Unsure": Unsure,
            "varint": varint,
            "join": b"".join,
            "pack_double": Struct("<d").pack,
            "pack_float": Struct("<f").pack,
        }
        self._functions: dict[int, str] = {}
        self.defined: dict[str, Type] = {}
        self._referred: set[str] = set()
        self._types = 0
        self._survey(top)

    def _survey(self, of: Type) -> None:
        self._types += 1
        if self._types > MAX_TYPES:
            raise TooLarge
        if isinstance(of.writer, dict) and "name" in of.writer:
            self.defined[of.tag] = of
        elif of.tag in self.defined:
            self._referred.add(of.tag)
        for part in of.parts:
            self._survey(part)

    def constant(self, thing: object) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = thing
        return name

    def whole(self, of: Type) -> None:
        """Adds `write`, a function from a value to its bytes."""
        body = Body()
        self.write(body, of, "v0")
        body.flush()
        self.lines += ["def write(v0):", " out = []", *body.lines, " return join(out)"]

    def _function(self, of: Type) -> str:
        """Returns the name of a function that appends a value to a list. It is generated once, because records may
        be recursive."""
        name = self._functions.get(id(of))
        if name is None:
            name = self._functions[id(of)] = f"write{len(self._functions)}"
            body = Body()
            self.write(body, of, "v0", inline=True)
            body.flush()
            self.lines += [f"def {name}(v0, out):", *body.lines]
        return name

    def write(self, body: Body, of: Type, v: str, *, inline: bool = False) -> None:
        """Adds the code that writes the variable `v` as a value of a type."""
        of = self.defined.get(of.tag, of)
        kind = kind_of(of)
        if kind not in ("record", "array", "map", "union"):
            self.scalar(body, of, kind, v)
        elif not inline and (of.tag in self._referred or body.depth > _DEEPEST):
            body.flush()
            body.add(f"{self._function(of)}({v}, out)")
        elif kind == "record":
            self.record(body, of, v)
        elif kind == "union":
            self.union(body, of, v)
        else:
            self.items(body, of, v, keyed=kind == "map")

    def record(self, body: Body, of: Type, v: str) -> None:
        names = [field["name"] for field in of.writer["fields"]]
        fields = [(body.variable(), self.constant(name), name in of.optional) for name in names]
        wrong = f"type({v}) is not dict" + ("" if of.optional else f" or len({v}) != {len(fields)}")
        body.add(f"if {wrong}: raise Unsure")
        if of.optional:
            known = self.constant(frozenset(names))
            with body.block(f"if len({v}) == {len(fields)}:"):
                for variable, key, optional in fields:
                    if optional:
                        body.add(f"{variable} = {v}[{key}]")
            with body.block(f"elif {known}.issuperset({v}):"):
                for variable, key, optional in fields:
                    if optional:
                        body.add(f"{variable} = {v}.get({key})")
            body.add("else: raise Unsure")
        for (variable, key, optional), part in zip(fields, of.parts, strict=True):
            if not optional:
                body.add(f"{variable} = {v}[{key}]")
            self.write(body, part, variable)

    def items(self, body: Body, of: Type, v: str, *, keyed: bool) -> None:
        body.add(f"if type({v}) is not {'dict' if keyed else 'list'}: raise Unsure")
        self.blocks(body, of, v, keyed=keyed)

    def blocks(self, body: Body, of: Type, v: str, *, keyed: bool) -> None:
        """Writes all items as one block, followed by the end marker. An empty block is the end marker itself."""
        key, item = body.variable(), body.variable()
        self.length(body, v)
        with body.block(f"for {key}, {item} in {v}.items():" if keyed else f"for {item} in {v}:"):
            if keyed:
                self.text(body, key)
            self.write(body, of.parts[0], item)
        body.pieces.append(f"(b'\\0' if {v} else b'')")

    def union(self, body: Body, of: Type, v: str) -> None:
        """Tries the first branch that accepts the JSON type. If that fails, the reference path tries the others."""
        header = "if"
        for index, branch in enumerate(of.parts):
            if type(None) in branch.takes:
                with body.block(f"if {v} is None:"):
                    body.pieces.append(repr(varint(index)))
                header = "elif"
        for kind in _JSON_TYPES:
            fitting = [(index, branch) for index, branch in enumerate(of.parts) if kind in branch.takes]
            if kind is float:
                fitting.sort(key=lambda one: one[1].name == "float")
            if fitting:
                index, branch = fitting[0]
                with body.block(f"{header} type({v}) is {kind.__name__}:"):
                    body.pieces.append(repr(varint(index)))
                    self.write(body, branch, v)
                header = "elif"
        body.add("else: raise Unsure")

    def length(self, body: Body, v: str) -> None:
        body.pieces.append(f"SMALL[n] if (n := len({v})) < {len(SMALL)} else varint(n)")

    def text(self, body: Body, v: str) -> None:
        body.add(f"if type({v}) is not str: raise Unsure")
        body.add(f"{v} = {v}.encode()")
        self.length(body, v)
        body.pieces.append(v)

    def scalar(self, body: Body, of: Type, kind: str, v: str) -> None:
        convert = of.convert
        plain = kind in PLAIN and convert is PLAIN[kind][0]
        if kind == "null":
            body.add(f"if {v} is not None: raise Unsure")
        elif kind == "boolean":
            body.add(f"if type({v}) is not bool: raise Unsure")
            body.pieces.append(f"b'\\1' if {v} else b'\\0'")
        elif kind == "string" and plain:
            self.text(body, v)
        elif kind in ("int", "long"):
            small = f"SMALL[{v}] if type({v}) is int and 0 <= {v} < {len(SMALL)} else " if plain else ""
            body.pieces.append(f"{small}{self.constant(integer(convert))}({v})")
        elif kind in ("float", "double"):
            body.pieces.append(f"pack_{kind}({v} if type({v}) is float else {self.constant(convert)}({v}))")
        elif kind == "enum":
            symbols = {symbol: varint(index) for index, symbol in enumerate(of.writer["symbols"])}
            body.add(f"if type({v}) is not str: raise Unsure")
            body.pieces.append(f"{self.constant(symbols)}[{v}]")
        else:  # formatted text, bytes, and fixed, whose length is not written
            body.add(f"{v} = {self.constant(convert)}({v}){'.encode()' if kind == 'string' else ''}")
            if kind != "fixed":
                self.length(body, v)
            body.pieces.append(v)


def kind_of(of: Type) -> str:
    if isinstance(of.writer, list):
        return "union"
    return str(of.writer["type"] if isinstance(of.writer, dict) else of.writer)


def _moments(convert: Convert, digits: int) -> Write:
    """Converts the last second of the minute once: if it is valid, so are the seconds and fractions before it."""

    @lru_cache(REMEMBERED)
    def last(minute: str, zone: str) -> int:
        return int(convert(f"{minute}59{zone}"))

    seconds = {f"{number:02}": (number - 59) * 10**digits for number in range(60)}
    minutes: dict[str, int] = {}

    def write(value: Json) -> bytes:
        if type(value) is str:
            second = seconds.get(value[17:19])
            if second is not None:
                if len(value) == 20 and value[19] == "Z":  # the most common form
                    minute = value[:17]
                    at = minutes.get(minute)
                    if at is None:
                        if len(minutes) >= REMEMBERED:
                            minutes.clear()
                        at = minutes[minute] = last(minute, "Z")
                    return varint(at + second)
                zone = "Z" if value[-1:] == "Z" else value[-6:]
                fraction = value[19 : -len(zone)]
                if not fraction or fits(fraction):
                    return varint(last(value[:17], zone) + second + int(fraction[1:].ljust(digits, "0")))
        return varint(convert(value))

    def fits(fraction: str) -> bool:
        return (
            fraction[0] == "." and 1 < len(fraction) <= digits + 1 and fraction[1:].isdecimal() and fraction.isascii()
        )

    return write


QUICK: Mapping[Convert, Write] = {
    day: lru_cache(REMEMBERED, typed=True)(lambda value: varint(day(value))),
    **{
        convert: _moments(convert, digits)
        for unit, digits in (("millis", 3), ("micros", 6))
        for convert, _ in [LOGICAL["long", f"timestamp-{unit}"]]
    },
}
"""Conversions that are slow and similar in many events. Nanoseconds are missing: the last minute would exceed 64
bits."""


def integer(convert: Convert) -> Write:
    return QUICK.get(convert) or (lambda value: varint(convert(value)))
