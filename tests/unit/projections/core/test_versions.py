"""Whether an event may take effect now, by the version of its entity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.projections.core.store import EntityState
from tailrace.projections.core.versions import VersionCheck, Versions, check_version


@pytest.mark.parametrize(
    ("version", "known", "rules", "expected"),
    [
        (None, EntityState(7, deleted=False), Versions(gaps="wait"), VersionCheck.APPLY),
        (1, None, Versions(), VersionCheck.APPLY),
        (5, None, Versions(), VersionCheck.APPLY),
        (5, EntityState(2, deleted=False), Versions(), VersionCheck.APPLY),
        (2, EntityState(2, deleted=False), Versions(), VersionCheck.STALE),
        (1, EntityState(2, deleted=True), Versions(), VersionCheck.STALE),
        (3, EntityState(2, deleted=True), Versions(), VersionCheck.APPLY),
        (1, None, Versions(gaps="wait"), VersionCheck.APPLY),
        (2, None, Versions(gaps="wait"), VersionCheck.TOO_EARLY),
        (9, None, Versions(gaps="wait", first=None), VersionCheck.APPLY),
        (0, None, Versions(gaps="wait", first=0), VersionCheck.APPLY),
        (1, None, Versions(gaps="wait", first=0), VersionCheck.TOO_EARLY),
        (3, EntityState(2, deleted=False), Versions(gaps="wait"), VersionCheck.APPLY),
        (4, EntityState(2, deleted=False), Versions(gaps="wait"), VersionCheck.TOO_EARLY),
        (2, EntityState(2, deleted=False), Versions(gaps="wait"), VersionCheck.STALE),
    ],
)
def test_the_check_of_a_version(
    version: int | None, known: EntityState | None, rules: Versions, expected: VersionCheck
) -> None:
    assert check_version(version, known, rules) is expected


@given(st.lists(st.integers(1, 12), max_size=60), st.sampled_from(["ignore", "wait"]))
def test_versions_that_take_effect_only_grow(versions: list[int], gaps: str) -> None:
    """Versions in any order; without gaps, one by one."""
    rules = Versions(gaps="wait" if gaps == "wait" else "ignore")
    known: EntityState | None = None
    taken = []
    for version in versions:
        if check_version(version, known, rules) is VersionCheck.APPLY:
            known = EntityState(version, deleted=False)
            taken.append(version)
    assert taken == sorted(set(taken))
    if gaps == "wait":
        assert taken == list(range(1, len(taken) + 1))
