"""The modes: which earlier versions count, in which direction, and how the versions are called."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from tailrace.schemas.compatibility.check import MAX_PROBLEMS, Conflict, Direction, Document, Mode, Problem, conflicts
from tailrace.schemas.compiled import Kind


def order(*required: str, **properties: str) -> Document:
    fields = {name: {"type": kind} for name, kind in properties.items()}
    return Document({"type": "object", "properties": fields, "required": list(required)})


def record(*fields: dict[str, Any]) -> Document:
    return Document({"type": "record", "name": "Order", "fields": list(fields)})


# Version 1 does not fit, version 2 does not fit the other way round, version 3 fits both ways.
EARLIER = [
    (1, order(id="string")),
    (2, order("id", "total", "note", id="string", total="integer", note="string")),
    (3, order("id", "total", id="string", total="integer")),
]
NEW = order("id", "total", id="string", total="integer", tags="array")


@pytest.mark.parametrize(
    ("mode", "found"),
    [
        (Mode.NONE, []),
        (Mode.BACKWARD, []),
        (Mode.FORWARD, []),
        (Mode.FULL, []),
        (Mode.BACKWARD_TRANSITIVE, [(1, "backward")]),
        (Mode.FORWARD_TRANSITIVE, [(2, "forward")]),
        (Mode.FULL_TRANSITIVE, [(2, "forward"), (1, "backward")]),
    ],
)
def test_transitive_means_every_earlier_version(mode: Mode, found: list[tuple[int, Direction]]) -> None:
    assert [(each.earlier, each.direction) for each in conflicts(mode, "json", NEW, EARLIER)] == found


@pytest.mark.parametrize(
    ("mode", "found"),
    [
        (Mode.NONE, []),
        (Mode.BACKWARD, []),
        (Mode.FORWARD, [(2, "forward")]),
        (Mode.FULL, [(2, "forward")]),
        (Mode.BACKWARD_TRANSITIVE, [(1, "backward")]),
        (Mode.FORWARD_TRANSITIVE, [(2, "forward")]),
        (Mode.FULL_TRANSITIVE, [(2, "forward"), (1, "backward")]),
    ],
)
def test_the_last_version_is_the_highest_in_whatever_order(mode: Mode, found: list[tuple[int, Direction]]) -> None:
    for earlier in (EARLIER[:2], EARLIER[1::-1]):
        assert [(each.earlier, each.direction) for each in conflicts(mode, "json", NEW, earlier)] == found


def test_a_first_version_fits() -> None:
    for mode in Mode:
        assert conflicts(mode, "json", NEW, []) == []


def test_backward_the_new_version_reads() -> None:
    new = order("id", id="string")
    assert conflicts(Mode.BACKWARD, "json", new, [(7, order(id="string"))]) == [
        Conflict(7, "backward", (Problem("#/properties/id", "is required in the new version, but not in version 7"),))
    ]


def test_forward_the_earlier_version_reads() -> None:
    old = order("id", id="string")
    assert conflicts(Mode.FORWARD, "json", order(id="string"), [(7, old)]) == [
        Conflict(7, "forward", (Problem("#/properties/id", "is required in version 7, but not in the new version"),))
    ]


def test_avro_goes_by_its_own_rules() -> None:
    one, other = {"name": "id", "type": "int"}, {"name": "total", "type": "long"}
    found = conflicts(Mode.FULL, "avro", record(one, other), [(1, record(one))])
    what = "has no default in the new version, and version 1 does not write it"
    assert found == [Conflict(1, "backward", (Problem("#/fields/total", what),))]


def test_the_strict_reading_is_asked_for() -> None:
    old, new = order(id="string"), order(id="string", note="string")
    assert conflicts(Mode.BACKWARD, "json", new, [(1, old)]) == []
    (conflict,) = conflicts(Mode.BACKWARD, "json", new, [(1, old)], strict=True)
    assert [problem.place for problem in conflict.problems] == ["#/properties/note/type"]


def test_many_problems_are_counted_not_listed() -> None:
    names = [f"p{i}" for i in range(MAX_PROBLEMS + 20)]
    new = order(*names, **dict.fromkeys(names, "string"))
    (conflict,) = conflicts(Mode.BACKWARD, "json", new, [(1, order(**dict.fromkeys(names, "string")))])
    assert len(conflict.problems) == MAX_PROBLEMS + 1
    assert conflict.problems[-1] == Problem("#", "has 20 more problems")


@pytest.mark.parametrize("kind", get_args(Kind))
def test_what_is_no_schema_is_a_conflict(kind: Kind) -> None:
    for new, old in ((Document(5), record()), (record(), Document(5))):
        (conflict,) = conflicts(Mode.BACKWARD, kind, new, [(1, old)])
        assert len(conflict.problems) == 1
