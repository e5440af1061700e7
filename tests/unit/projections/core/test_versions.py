"""Whether an event may take effect now, by the version of its entity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.projections.core.settings import Versions
from tailrace.projections.core.store import EntityState
from tailrace.projections.core.versions import Turn, turn


@pytest.mark.parametrize(
    ("version", "known", "rules", "expected"),
    [
        (None, EntityState(7, deleted=False), Versions(gaps="wait"), Turn.NOW),
        (1, None, Versions(), Turn.NOW),
        (5, None, Versions(), Turn.NOW),
        (5, EntityState(2, deleted=False), Versions(), Turn.NOW),
        (2, EntityState(2, deleted=False), Versions(), Turn.STALE),
        (1, EntityState(2, deleted=True), Versions(), Turn.STALE),
        (3, EntityState(2, deleted=True), Versions(), Turn.NOW),
        (1, None, Versions(gaps="wait"), Turn.NOW),
        (2, None, Versions(gaps="wait"), Turn.LATER),
        (9, None, Versions(gaps="wait", first=None), Turn.NOW),
        (0, None, Versions(gaps="wait", first=0), Turn.NOW),
        (1, None, Versions(gaps="wait", first=0), Turn.LATER),
        (3, EntityState(2, deleted=False), Versions(gaps="wait"), Turn.NOW),
        (4, EntityState(2, deleted=False), Versions(gaps="wait"), Turn.LATER),
        (2, EntityState(2, deleted=False), Versions(gaps="wait"), Turn.STALE),
    ],
)
def test_turns(version: int | None, known: EntityState | None, rules: Versions, expected: Turn) -> None:
    assert turn(version, known, rules) is expected


@given(st.lists(st.integers(1, 12), max_size=60), st.sampled_from(["ignore", "wait"]))
def test_versions_that_take_effect_only_grow(versions: list[int], gaps: str) -> None:
    """Whatever comes in whatever order; without gaps, one by one."""
    rules = Versions(gaps="wait" if gaps == "wait" else "ignore")
    known: EntityState | None = None
    taken = []
    for version in versions:
        if turn(version, known, rules) is Turn.NOW:
            known = EntityState(version, deleted=False)
            taken.append(version)
    assert taken == sorted(set(taken))
    if gaps == "wait":
        assert taken == list(range(1, len(taken) + 1))
