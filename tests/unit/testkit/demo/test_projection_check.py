"""The fold of a topic, and how a projection differs from it: each way by its own name, and none without a name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.testkit.demo.projection_check import Histories, compare, expected_histories
from tailrace.testkit.oracle import ConsumedRecord

FOLD = {"a": ["a1", "a2", "a3"], "b": ["b1"]}
WRONGS = ("missing", "twice", "phantom", "out_of_order")


def test_the_fold_goes_by_offsets_not_by_arrival() -> None:
    published = [
        ConsumedRecord("a2", "a", "orders", 0, 7),
        ConsumedRecord("b1", "b", "orders", 1, 3),
        ConsumedRecord("a1", "a", "orders", 0, 5),
        ConsumedRecord("a1", "a", "orders", 0, 9),
        ConsumedRecord("a3", "a", "orders", 0, 10),
    ]
    assert expected_histories(published) == FOLD


def test_the_same_is_well() -> None:
    comparison = compare(FOLD, {"b": ["b1"], "a": ["a1", "a2", "a3"]})
    assert comparison.ok
    assert (comparison.events, comparison.applied) == (4, 4)


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ({"a": ["a1", "a2", "a3"]}, {"missing": ["b1"]}),
        ({"a": ["a1", "a3"], "b": ["b1"]}, {"missing": ["a2"]}),
        ({"a": ["a1", "a1", "a2", "a3"], "b": ["b1"]}, {"twice": ["a1"]}),
        ({"a": ["a1", "a2", "a3", "a1", "a1"], "b": ["b1"]}, {"twice": ["a1"]}),
        ({"a": ["a1", "a2", "a3", "a4"], "b": ["b1"]}, {"phantom": ["a4"]}),
        ({"a": ["a1", "a2", "a3"], "b": ["b1"], "c": ["c1"]}, {"phantom": ["c1"]}),
        ({"a": ["a1", "a2", "a3", "b1"]}, {"missing": ["b1"], "phantom": ["b1"]}),
        ({"a": ["a2", "a1", "a3"], "b": ["b1"]}, {"out_of_order": ["a1"]}),
        ({"a": ["a3", "a1", "a2"], "b": ["b1"]}, {"out_of_order": ["a1", "a2"]}),
        ({"a": ["a2", "a1", "a1"], "b": ["b1"]}, {"missing": ["a3"], "twice": ["a1"], "out_of_order": ["a1"]}),
    ],
)
def test_each_wrong_has_its_name(found: Histories, wrong: dict[str, list[str]]) -> None:
    comparison = compare(FOLD, found)
    assert not comparison.ok
    assert {name: ids for name in WRONGS if (ids := getattr(comparison, name))} == wrong
    assert (comparison.events, comparison.applied) == (4, sum(map(len, found.values())))


EVENTS = st.lists(st.sampled_from("uvwxyz"), max_size=5)


@given(
    expected=st.dictionaries(st.sampled_from("abc"), EVENTS.map(lambda ids: list(dict.fromkeys(ids)))),
    found=st.dictionaries(st.sampled_from("abc"), EVENTS),
)
def test_only_the_fold_itself_is_well(expected: Histories, found: Histories) -> None:
    def rows(histories: Histories) -> Histories:
        return {key: ids for key, ids in histories.items() if ids}

    assert compare(expected, found).ok == (rows(expected) == rows(found))
