"""Compatibility modes: which earlier versions are compared, in which direction, and how messages name them."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from tailrace.schema_versions import Version
from tailrace.schemas.compatibility.check import MAX_PROBLEMS, Conflict, Direction, Document, Mode, Problem, conflicts
from tailrace.schemas.compiled import Kind


def order(*required: str, **properties: str) -> Document:
    fields = {name: {"type": kind} for name, kind in properties.items()}
    return Document({"type": "object", "properties": fields, "required": list(required)})


def record(*fields: dict[str, Any]) -> Document:
    return Document({"type": "record", "name": "Order", "fields": list(fields)})


# Version 1 is not backward compatible, version 2 is not forward compatible, version 3 is both.
EARLIER = [
    (Version(1), order(id="string")),
    (Version(2), order("id", "total", "note", id="string", total="integer", note="string")),
    (Version(3), order("id", "total", id="string", total="integer")),
]
NEW = order("id", "total", id="string", total="integer", tags="array")


@pytest.mark.parametrize(
    ("mode", "found"),
    [
        (Mode.NONE, []),
        (Mode.BACKWARD, []),
        (Mode.FORWARD, []),
        (Mode.FULL, []),
        (Mode.BACKWARD_TRANSITIVE, [(Version(1), "backward")]),
        (Mode.FORWARD_TRANSITIVE, [(Version(2), "forward")]),
        (Mode.FULL_TRANSITIVE, [(Version(2), "forward"), (Version(1), "backward")]),
    ],
)
def test_transitive_modes_compare_every_earlier_version(mode: Mode, found: list[tuple[Version, Direction]]) -> None:
    assert [(each.earlier, each.direction) for each in conflicts(mode, "json", NEW, EARLIER)] == found


@pytest.mark.parametrize(
    ("mode", "found"),
    [
        (Mode.NONE, []),
        (Mode.BACKWARD, []),
        (Mode.FORWARD, [(Version(2), "forward")]),
        (Mode.FULL, [(Version(2), "forward")]),
        (Mode.BACKWARD_TRANSITIVE, [(Version(1), "backward")]),
        (Mode.FORWARD_TRANSITIVE, [(Version(2), "forward")]),
        (Mode.FULL_TRANSITIVE, [(Version(2), "forward"), (Version(1), "backward")]),
    ],
)
def test_other_modes_compare_the_highest_version(mode: Mode, found: list[tuple[Version, Direction]]) -> None:
    for earlier in (EARLIER[:2], EARLIER[1::-1]):
        assert [(each.earlier, each.direction) for each in conflicts(mode, "json", NEW, earlier)] == found


def test_a_first_version_is_compatible() -> None:
    for mode in Mode:
        assert conflicts(mode, "json", NEW, []) == []


def test_backward_means_that_the_new_version_reads() -> None:
    new = order("id", id="string")
    assert conflicts(Mode.BACKWARD, "json", new, [(Version(7), order(id="string"))]) == [
        Conflict(
            Version(7),
            "backward",
            (Problem("#/properties/id", "is required in the new version, but not in version 7"),),
        )
    ]


def test_forward_means_that_the_earlier_version_reads() -> None:
    old = order("id", id="string")
    assert conflicts(Mode.FORWARD, "json", order(id="string"), [(Version(7), old)]) == [
        Conflict(
            Version(7), "forward", (Problem("#/properties/id", "is required in version 7, but not in the new version"),)
        )
    ]


def test_avro_has_its_own_rules() -> None:
    one, other = {"name": "id", "type": "int"}, {"name": "total", "type": "long"}
    found = conflicts(Mode.FULL, "avro", record(one, other), [(Version(1), record(one))])
    what = "has no default in the new version, and version 1 does not write it"
    assert found == [Conflict(Version(1), "backward", (Problem("#/fields/total", what),))]


def test_strict_is_passed_on() -> None:
    old, new = order(id="string"), order(id="string", note="string")
    assert conflicts(Mode.BACKWARD, "json", new, [(Version(1), old)]) == []
    (conflict,) = conflicts(Mode.BACKWARD, "json", new, [(Version(1), old)], strict=True)
    assert [problem.place for problem in conflict.problems] == ["#/properties/note/type"]


def test_problems_beyond_the_limit_are_counted() -> None:
    names = [f"p{i}" for i in range(MAX_PROBLEMS + 20)]
    new = order(*names, **dict.fromkeys(names, "string"))
    (conflict,) = conflicts(Mode.BACKWARD, "json", new, [(Version(1), order(**dict.fromkeys(names, "string")))])
    assert len(conflict.problems) == MAX_PROBLEMS + 1
    assert conflict.problems[-1] == Problem("#", "has 20 more problems")


@pytest.mark.parametrize("kind", get_args(Kind))
def test_an_invalid_schema_is_a_conflict(kind: Kind) -> None:
    for new, old in ((Document(5), record()), (record(), Document(5))):
        (conflict,) = conflicts(Mode.BACKWARD, kind, new, [(Version(1), old)])
        assert len(conflict.problems) == 1
