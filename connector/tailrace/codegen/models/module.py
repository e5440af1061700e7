"""A module of models before it becomes text: its classes and the types of their fields.

Types are Python expressions as written in the source. A model must accept every payload that its schema accepts: what a
type cannot express exactly becomes a wider type, and `Any` in the end. Payloads were validated before they were
published, so models need not do it again.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from tailrace.codegen.models.names import Taken, capitalized
from tailrace.schemas.strict_json import Json

ANY = "Any"
NONE = "None"
LONGEST_LITERAL = 60
"""Characters. A longer type gets its own name."""


@dataclass(frozen=True, slots=True)
class Property:
    """One field, by its name in payloads. `default` is source; None if the field is required."""

    name: str
    type: str
    default: str | None = None
    about: str = ""


@dataclass(slots=True)
class Model:
    """A class. One with a `root` represents a value that is no object; one that `is_open` keeps unknown fields."""

    name: str
    about: str = ""
    properties: list[Property] = field(default_factory=list)
    root: str | None = None
    is_open: bool = False


@dataclass(slots=True)
class Module:
    """The declarations so far, each after those it uses."""

    models: list[Model] = field(default_factory=list)
    literals: dict[str, list[str]] = field(default_factory=dict)
    """Named choices: the values, as source."""
    names: dict[Hashable, str] = field(default_factory=dict)
    """The class of each part of a schema."""
    taken: Taken = field(default_factory=Taken)

    def named(self, key: Hashable, outer: str, *parts: str) -> str:
        """Returns the class name for `key`; a new one, made of the outer class's name and `parts`, if it has none."""
        if key not in self.names:
            self.names[key] = self.taken.free(outer + capitalized(*parts))
        return self.names[key]

    def choice(self, values: Iterable[Json], key: Hashable, outer: str, *parts: str) -> str | None:
        """Returns a type for one of these values; None if Python has no such type."""
        listed = list(values)
        if not listed or not all(value is None or type(value) in (str, int, bool) for value in listed):
            return None
        written = list(dict.fromkeys(source(value) for value in listed if value is not None))
        text = f"Literal[{', '.join(written)}]" if written else NONE
        if len(text) > LONGEST_LITERAL:
            text = self.named(key, outer, *parts)
            self.literals[text] = written
        return union([text, *([NONE] if None in listed else [])])


def union(types: Iterable[str]) -> str:
    """Returns a union of several types, each once, None last."""
    parts: list[str] = []
    for each in types:
        bare = each.removesuffix(f" | {NONE}")
        parts += [*(bare.split(" | ") if "[" not in bare else [bare]), *([NONE] if bare != each else [])]
    if ANY in parts:
        return ANY
    once = list(dict.fromkeys(part for part in parts if part != NONE))
    return " | ".join([*once, *([NONE] if NONE in parts else [])]) or ANY


def optional(of: str) -> str:
    """Returns a type that also allows None for a missing field."""
    return of if of in (ANY, NONE) or of.endswith(f" | {NONE}") else f"{of} | {NONE}"


def source(value: str | int | bool) -> str:
    """Formats a value as Python's formatters do: in double quotes, unless that needs more escapes."""
    text = repr(value)
    plain = text[1:-1]
    return f'"{plain}"' if text[0] == "'" and '"' not in plain and "\\'" not in plain else text


def words(text: Json) -> str:
    """Returns a description as one line that is safe inside a docstring."""
    shown = "".join(each if unicodedata.category(each)[0] != "C" else " " for each in str(text or ""))
    return " ".join(shown.replace("\\", "\\\\").replace('"', "'").split())
