"""Placing: a record lies where its key goes, or went when the topic had fewer partitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.routing.partition import hashes, murmur2
from tailrace.verify.expected_partition import REMEMBERED, KnownKeys, Lot, PartitionCheck
from tailrace.verify.fingerprints import label

LOT = Lot("t", 0, 3)


@given(st.lists(st.binary(max_size=40)))
def test_hashes_of_many_keys_are_those_of_each(keys: list[bytes]) -> None:
    assert hashes(keys) == {key: murmur2(key) for key in keys}


def test_known_keys_are_bounded() -> None:
    known = KnownKeys()
    known.learn({None, b"a"})
    assert known.found[b"a"] == (murmur2(b"a") & 0x7FFFFFFF, label(b"a"))
    assert known.found[None][1] == label(None)
    known.learn({b"%d" % number for number in range(REMEMBERED)})
    assert b"a" not in known.found
    known.learn({b"a", b"1", None})
    assert {b"a", b"1", None} <= known.found.keys()
    assert len(known.found) <= REMEMBERED + 1


def test_a_record_that_no_number_of_partitions_sends_there() -> None:
    # 5 % 3 == 2, 5 % 2 == 1, 5 % 1 == 0: to partition 0 it went only while there was one.
    firsts = {("t", 0): (1, 0), ("t", 1): (10, 0)}
    assert not PartitionCheck(firsts).is_wrong(LOT, 5, (5, 0)), "there may have been one partition"
    assert PartitionCheck(firsts).is_wrong(LOT, 5, (11, 0)), "partition 1 had a record by then"
    assert PartitionCheck({**firsts, ("t", 2): (3, 0)}).is_wrong(LOT, 5, (5, 0)), "and so had partition 2"
    assert PartitionCheck({}).is_wrong(Lot("t", 2, 3), 4, (5, 0)), "the last partition gets nothing from fewer"
    # 4 % 2 == 0: with two partitions it went there.
    assert not PartitionCheck(firsts).is_wrong(LOT, 4, (11, 0))
    assert PartitionCheck({**firsts, ("t", 2): (10, 5)}).is_wrong(LOT, 4, (11, 0))
