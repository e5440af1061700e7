"""Facts of one name come back together and in order, however often they went to disk."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO, Any

import pytest

from tailrace.errors import SourceError
from tailrace.verify.spill import SpillFile


def test_facts_come_back_together_and_in_order() -> None:
    with SpillFile(2, buckets=4, pending=3) as spill:
        for number in range(50):
            spill.add(number % 2, f"name {number % 7}", (f"name {number % 7}", number, b"key", None))
        found = [[fact[:2] for fact in facts] for buckets in spill.buckets(0, 1) for facts in buckets]
        assert sorted(fact for facts in found for fact in facts) == sorted((f"name {n % 7}", n) for n in range(50))
        for facts in found:
            assert [number for _, number in facts] == sorted(number for _, number in facts)
        # An even stream and an odd one per bucket: no name is in two of them.
        homes = [{fact[0] for fact in even + odd} for even, odd in zip(found[::2], found[1::2], strict=True)]
        assert sum(map(len, homes)) == len(set().union(*homes)) == 7


def test_read_again_after_more_was_added() -> None:
    with SpillFile(1, buckets=2) as spill:
        spill.add(0, "a", (1,))
        assert [fact for (facts,) in spill.buckets(0) for fact in facts] == [(1,)]
        spill.add(0, "a", (2,))
        assert [fact for (facts,) in spill.buckets(0) for fact in facts] == [(1,), (2,)]


def test_one_stream_can_be_cleared() -> None:
    with SpillFile(2, buckets=2, pending=1) as spill:
        spill.add(0, "a", (1,))
        spill.add(1, "a", (2,))
        spill.clear(0)
        spill.add(0, "a", (3,))
        assert [facts for facts in spill.buckets(0, 1) if any(facts)] == [[[(3,)], [(2,)]]]


def test_a_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> IO[bytes]:
        return Path("/dev/full").open("r+b", buffering=0)

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with SpillFile(1, pending=1) as spill, pytest.raises(SourceError, match="No space left") as caught:
        spill.add(0, "a", (1,))
    assert "TMPDIR" in caught.value.remedy
