"""Whether a new version of a schema fits the earlier ones, under the modes that schema registries know.

BACKWARD: the new version reads what was written with the last one, so consumers are moved first. FORWARD: the last
version reads what is written with the new one, so producers are. FULL: both. With TRANSITIVE, not only the last
version counts but every earlier one, as it must where a topic keeps events for longer than a version lives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from tailrace.schemas.compatibility.avro import avro_problems
from tailrace.schemas.compatibility.document import Document, Problem
from tailrace.schemas.compatibility.json_schema import json_problems
from tailrace.schemas.compiled import Kind

__all__ = ["Conflict", "Direction", "Document", "Mode", "Problem", "conflicts"]

Direction = Literal["backward", "forward"]
MAX_PROBLEMS = 100
"""Of one conflict: more are counted, not listed."""
_NEW = "the new version"


class Mode(StrEnum):
    """What is demanded of a new version."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        return self.value.endswith("_TRANSITIVE")

    @property
    def directions(self) -> tuple[Direction, ...]:
        kind = self.value.removesuffix("_TRANSITIVE")
        known: dict[str, tuple[Direction, ...]] = {"BACKWARD": ("backward",), "FORWARD": ("forward",)}
        return ("backward", "forward") if kind == "FULL" else known.get(kind, ())


@dataclass(frozen=True, slots=True)
class Conflict:
    """An earlier version that the new one does not fit, in one direction, and why."""

    earlier: int
    direction: Direction
    problems: tuple[Problem, ...]


def conflicts(
    mode: Mode, kind: Kind, new: Document, earlier: Sequence[tuple[int, Document]], *, strict: bool = False
) -> list[Conflict]:
    """The new version against the earlier ones, in any order; the latest first. `strict` is for JSON Schema alone."""
    newest_first = sorted(earlier, key=lambda each: each[0], reverse=True)
    found = []
    for version, document in newest_first if mode.transitive else newest_first[:1]:
        for direction in mode.directions:
            problems = _problems(kind, direction, new, document, f"version {version}", strict)
            if problems:
                found.append(Conflict(version, direction, tuple(_listed(problems))))
    return found


def _problems(
    kind: Kind, direction: Direction, new: Document, old: Document, old_name: str, strict: bool
) -> tuple[Problem, ...]:
    reader, writer, names = (new, old, (_NEW, old_name)) if direction == "backward" else (old, new, (old_name, _NEW))
    if kind == "avro":
        return avro_problems(reader, writer, *names)
    return json_problems(reader, writer, *names, strict=strict)


def _listed(problems: tuple[Problem, ...]) -> Iterator[Problem]:
    yield from problems[:MAX_PROBLEMS]
    if len(problems) > MAX_PROBLEMS:
        yield Problem("#", f"has {len(problems) - MAX_PROBLEMS} more problems")
