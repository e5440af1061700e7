"""The course of a partition: a position that goes back is never passed over."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.verify.position_order import OrderCheck, order_of

COMMITS = {"postgres": ["0/9", "0/A", "0/10", "1/0", "nothing"], "mongo": ["5.1", "5.2", "10.1", "nothing"]}
NUMBERS = ["1", "2", "10", "t1", "t2", "0123456789012345", "00000000000000ff", "²", "", "x", "1:2"]


@pytest.mark.parametrize("database", ["postgres", "mongo"])
@given(data=st.data())
def test_as_each_position_says(database: str, data: st.DataObject) -> None:
    made = st.builds("{}:{}".format, st.sampled_from(COMMITS[database]), st.sampled_from(NUMBERS))
    positions = data.draw(st.lists(made, max_size=8))
    course, parse = OrderCheck(order_of(database)), order_of(database)
    for position in positions:
        course.follow(position.encode())
    orders = [order for position in positions if (order := parse(position)) is not None]
    assert course.has_turned == (orders != sorted(orders))


@given(st.lists(st.integers(0, 300), min_size=2))
@example([9, 10])
@example([10, 9])
def test_within_a_transaction(numbers: list[int]) -> None:
    course = OrderCheck(order_of("postgres"))
    for number in numbers:
        course.follow(b"0/1A2B3C8:%d" % number)
    assert course.has_turned == (numbers != sorted(numbers))
