"""Checks whether a new version of a schema is compatible with earlier ones, under the modes of schema registries.

BACKWARD: the new version reads what was written with the previous one, so consumers are upgraded first. FORWARD: the
previous version reads what is written with the new one, so producers are upgraded first. FULL: both. TRANSITIVE: all
earlier versions count, not only the previous one. Use it where a topic keeps events longer than a version is in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from tailrace.schema_versions import Version
from tailrace.schemas.compatibility.avro import avro_problems
from tailrace.schemas.compatibility.document import Document, Problem
from tailrace.schemas.compatibility.json_schema import json_problems
from tailrace.schemas.compiled import Kind

__all__ = ["Conflict", "Direction", "Document", "Mode", "Problem", "conflicts"]

Direction = Literal["backward", "forward"]
MAX_PROBLEMS = 100
"""Problems listed per conflict; the rest is counted."""
_NEW = "the new version"


class Mode(StrEnum):
    """The compatibility that is required of a new version."""

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
    """An earlier version that the new one is incompatible with, in one direction, and why."""

    earlier: Version
    direction: Direction
    problems: tuple[Problem, ...]


def conflicts(
    mode: Mode, kind: Kind, new: Document, earlier: Sequence[tuple[Version, Document]], *, strict: bool = False
) -> list[Conflict]:
    """Compares the new version with the earlier ones, the latest first. `strict` applies to JSON Schema only."""
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
