"""Checks whether one Avro schema can read what was written with another, by Avro's rules of schema resolution.

Reader and writer are compared part by part: a field that the writer lacks needs a default, a number may only become
wider, a symbol must be known or have a default. Aliases of the reader count. Names are compared without their
namespace, as the specification says. A decimal's precision and scale must stay; other logical types count as their base
types.

Recursive records are compared by assuming the pair under comparison. The work is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.schemas.compatibility.avro_types import NAMED, AvroType, AvroTypes
from tailrace.schemas.compatibility.document import Document, Incomparable, Problem
from tailrace.schemas.messages import cut
from tailrace.schemas.strict_json import Json

MAX_STEPS = 100_000
"""Comparisons of pairs of types. Only a schema that was built to take long needs more."""
MAX_NESTING = 100
"""Levels of nested types."""

_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_SHOWN = 5

Place = tuple[str, ...]
Pair = tuple[str, str]


def avro_problems(reader: Document, writer: Document, reader_name: str, writer_name: str) -> tuple[Problem, ...]:
    """Returns why `reader` may fail to read what was written with `writer`; empty if it never does."""
    try:
        comparison = _Comparison(AvroTypes(reader), AvroTypes(writer), reader_name, writer_name)
        return tuple(dict.fromkeys(comparison.problems()))
    except Incomparable as error:
        return (error.problem,)


class _Comparison:
    """Compares the types of a reader and a writer; `reader` and `writer` are their names in messages."""

    def __init__(self, reading: AvroTypes, writing: AvroTypes, reader: str, writer: str) -> None:
        self._reading, self._writing = reading, writing
        self._reader, self._writer = reader, writer
        self._found: dict[Pair, list[Problem]] = {}
        self._open: set[Pair] = set()
        self._steps = self._nesting = 0

    def problems(self) -> list[Problem]:
        return self._compare(self._reading.root, "", self._writing.root, "", ())

    def _compare(self, reading: Json, reading_in: str, writing: Json, writing_in: str, place: Place) -> list[Problem]:
        reader = self._reading.resolve(reading, reading_in, _shown(place), "reader")
        writer = self._writing.resolve(writing, writing_in, _shown(place), "writer")
        return self._types(reader, writer, place)

    def _types(self, reader: AvroType, writer: AvroType, place: Place) -> list[Problem]:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise Incomparable("#", f"is too complex to compare; the comparison was given up at {_shown(place)}")
        if self._nesting > MAX_NESTING:
            raise Incomparable(_shown(place), f"is nested more than {MAX_NESTING} levels deep, so it was not compared")
        self._nesting += 1
        found = list(self._pair(reader, writer, place))
        self._nesting -= 1
        return found

    def _pair(self, reader: AvroType, writer: AvroType, place: Place) -> Iterator[Problem]:
        if writer.kind == "union":
            for branch in writer.branches:
                each = self._writing.resolve(branch, writer.space, _shown(place), "writer")
                yield from self._types(reader, each, place)
        elif reader.kind == "union":
            yield from self._one_of(reader, writer, place)
        elif reader.kind != writer.kind:
            if reader.kind not in _PROMOTED.get(writer.kind, ()):
                yield _problem(place, f"is {reader.shown} in {self._reader}, but {writer.shown} in {self._writer}")
        elif reader.kind in ("array", "map"):
            inside = "items" if reader.kind == "array" else "values"
            yield from self._compare(
                reader.node[inside], reader.space, writer.node[inside], writer.space, (*place, inside)
            )
        elif reader.kind in NAMED and not _called_alike(reader, writer):
            yield _problem(
                place,
                f"is called {cut(reader.name)} in {self._reader}, but {cut(writer.name)} in {self._writer}, "
                "and has no alias for it",
            )
        else:
            yield from self._same_kind(reader, writer, place)

    def _same_kind(self, reader: AvroType, writer: AvroType, place: Place) -> Iterator[Problem]:
        if reader.kind == "record":
            yield from self._records(reader, writer, place)
        elif reader.kind == "enum":
            known = {symbol for symbol in reader.node["symbols"] if isinstance(symbol, str)}
            missing = [str(symbol) for symbol in writer.node["symbols"] if symbol not in known]
            if missing and reader.node.get("default") not in known:
                listed = ", ".join(map(cut, missing[:_SHOWN])) + (" and more" if len(missing) > _SHOWN else "")
                what = f"lack {listed} in {self._reader}, which {self._writer} has, and there is no default for them"
                yield _problem((*place, "symbols"), what)
        elif reader.kind == "fixed" and reader.node["size"] != writer.node["size"]:
            sizes = f"is {reader.node['size']} in {self._reader}, but {writer.node['size']} in {self._writer}"
            yield _problem((*place, "size"), sizes)
        if reader.decimal and writer.decimal and reader.decimal != writer.decimal:
            ours, theirs = (
                "{} digits, {} of them after the point,".format(*each.decimal or ()) for each in (reader, writer)
            )
            yield _problem(place, f"is a decimal of {ours} in {self._reader}, but of {theirs} in {self._writer}")

    def _records(self, reader: AvroType, writer: AvroType, place: Place) -> list[Problem]:
        pair = reader.name, writer.name
        if pair in self._open:
            return []
        if pair not in self._found:
            self._open.add(pair)
            found = list(dict.fromkeys(self._fields(reader, writer, place)))  # once, however often a type is used
            self._open.discard(pair)
            if found:
                # Results found in the meantime may rest on this pair, which does not hold.
                self._found = {each: problems for each, problems in self._found.items() if problems}
            self._found[pair] = found
        return self._found[pair]

    def _fields(self, reader: AvroType, writer: AvroType, place: Place) -> Iterator[Problem]:
        written = writer.fields(_shown(place))
        for name, field in reader.fields(_shown(place)).items():
            inside = (*place, "fields", name)
            names = [name, *(alias for alias in field.get("aliases") or () if isinstance(alias, str))]
            other = next((written[each] for each in names if each in written), None)
            if other is not None:
                yield from self._compare(field["type"], reader.space, other["type"], writer.space, inside)
            elif "default" not in field:
                yield _problem(inside, f"has no default in {self._reader}, and {self._writer} does not write it")

    def _one_of(self, reader: AvroType, writer: AvroType, place: Place) -> Iterator[Problem]:
        """A reader takes the first type of its union that fits."""
        nearest: list[Problem] | None = None
        for index, branch in enumerate(reader.branches):
            one = self._reading.resolve(branch, reader.space, _shown(place), "reader")
            found = self._types(one, writer, (*place, str(index)))
            if not found:
                return
            if one.kind == writer.kind and (one.kind not in NAMED or _called_alike(one, writer)):
                nearest = found
        if nearest is not None:
            yield from nearest
        else:
            yield _problem(
                place, f"has no type in {self._reader} that reads {writer.shown}, which {self._writer} writes"
            )


def _problem(place: Place, what: str) -> Problem:
    return Problem(_shown(place), what)


def _called_alike(reader: AvroType, writer: AvroType) -> bool:
    return reader.name.rpartition(".")[2] == writer.name.rpartition(".")[2] or writer.name in reader.aliases()


def _shown(place: Place) -> str:
    return "#" + "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in place)
