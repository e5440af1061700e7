"""Placement: records lie in commit order within a key, and in the partition of their key."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.routing.partition import hashes, murmur2
from tailrace.verify.fingerprints import checksum
from tailrace.verify.placement import (
    REMEMBERED,
    KnownKeys,
    OrderCheck,
    PartitionCheck,
    PartitionInfo,
    mongo_order,
    order_of,
    postgres_order,
)


def test_postgres_positions_sort_like_commits() -> None:
    texts = ["0/A:t1", "0/A:t2", "0/A:t10", "0/B:1", "0/B:2", "0/B:10", "0/10:1", "1/0:1", "A/0:1", "10/0:1"]
    orders = [postgres_order(text) for text in texts]
    assert orders == sorted(orders, key=lambda order: order or ())
    assert len(set(orders)) == len(texts)


def test_mongodb_positions_sort_like_commits() -> None:
    texts = ["9.1:1", "9.2:1", "9.2:2", "9.2:10", "9.10:1", "10.1:1"]
    orders = [mongo_order(text) for text in texts]
    assert orders == sorted(orders, key=lambda order: order or ())
    assert len(set(orders)) == len(texts)
    assert mongo_order("9.2:00112233aabbccdd") == mongo_order("9.2:1234567890123456"), (
        "documents of the initial read have no order"
    )
    assert (mongo_order("9.2:00112233aabbccdd") or ()) < (mongo_order("9.2:1") or ())


@pytest.mark.parametrize("text", ["", "x", "0/1", "0/1:", "0/1:t", "9.1:1", "0/x:1", "0/1/2:1", "orders[0]@7"])
def test_text_that_is_no_postgres_position(text: str) -> None:
    assert postgres_order(text) is None


@pytest.mark.parametrize("text", ["", "x", "9.1", "9.1:", "0/1:1", "9.1.1:1"])
def test_text_that_is_no_mongodb_position(text: str) -> None:
    assert mongo_order(text) is None


def test_order_of_a_database() -> None:
    assert (order_of("postgres"), order_of("mongo")) == (postgres_order, mongo_order)


COMMITS = {"postgres": ["0/9", "0/A", "0/10", "1/0", "nothing"], "mongo": ["5.1", "5.2", "10.1", "nothing"]}
NUMBERS = ["1", "2", "10", "t1", "t2", "0123456789012345", "00000000000000ff", "²", "", "x", "1:2"]


@pytest.mark.parametrize("database", ["postgres", "mongo"])
@given(data=st.data())
def test_a_position_that_goes_back_is_noticed(database: str, data: st.DataObject) -> None:
    made = st.builds("{}:{}".format, st.sampled_from(COMMITS[database]), st.sampled_from(NUMBERS))
    positions = data.draw(st.lists(made, max_size=8))
    check, parse = OrderCheck(order_of(database)), order_of(database)
    for position in positions:
        check.follow(position.encode())
    orders = [order for position in positions if (order := parse(position)) is not None]
    assert check.went_back == (orders != sorted(orders))


@given(st.lists(st.integers(0, 300), min_size=2))
@example([9, 10])
@example([10, 9])
def test_a_number_that_goes_back_within_a_transaction_is_noticed(numbers: list[int]) -> None:
    check = OrderCheck(order_of("postgres"))
    for number in numbers:
        check.follow(b"0/1A2B3C8:%d" % number)
    assert check.went_back == (numbers != sorted(numbers))


INFO = PartitionInfo("t", 0, 3)


@given(st.lists(st.binary(max_size=40)))
def test_hashes_of_many_keys_equal_the_hash_of_each(keys: list[bytes]) -> None:
    assert hashes(keys) == {key: murmur2(key) for key in keys}


def test_known_keys_are_bounded() -> None:
    known = KnownKeys()
    known.learn({None, b"a"})
    assert known.found[b"a"] == (murmur2(b"a") & 0x7FFFFFFF, checksum(b"a"))
    assert known.found[None][1] == checksum(None)
    known.learn({b"%d" % number for number in range(REMEMBERED)})
    assert b"a" not in known.found
    known.learn({b"a", b"1", None})
    assert {b"a", b"1", None} <= known.found.keys()
    assert len(known.found) <= REMEMBERED + 1


def test_a_record_is_misplaced_if_no_partition_count_explains_its_partition() -> None:
    # 5 % 3 == 2, 5 % 2 == 1, 5 % 1 == 0: it went to partition 0 only while there was one.
    firsts = {("t", 0): (1, 0), ("t", 1): (10, 0)}
    assert not PartitionCheck(firsts).is_wrong(INFO, 5, (5, 0)), "there may have been one partition"
    assert PartitionCheck(firsts).is_wrong(INFO, 5, (11, 0)), "partition 1 had a record by then"
    assert PartitionCheck({**firsts, ("t", 2): (3, 0)}).is_wrong(INFO, 5, (5, 0)), "and so had partition 2"
    assert PartitionCheck({}).is_wrong(PartitionInfo("t", 2, 3), 4, (5, 0)), (
        "the last partition gets nothing from fewer"
    )
    # 4 % 2 == 0: with two partitions it went there.
    assert not PartitionCheck(firsts).is_wrong(INFO, 4, (11, 0))
    assert PartitionCheck({**firsts, ("t", 2): (10, 5)}).is_wrong(INFO, 4, (11, 0))
