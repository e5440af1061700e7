"""How a failed batch is split."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from helpers.worker_setup import event
from tailrace.projections.core.failure_policy import split_batch


@given(st.integers(2, 50), st.data())
def test_a_split_keeps_all_events_in_order(size: int, data: st.DataObject) -> None:
    index = data.draw(st.none() | st.integers(0, size - 1))
    part = [event(number) for number in range(size)]
    pieces = split_batch(part, index)
    assert [each for piece in pieces for each in piece] == part
    assert all(0 < len(piece) < size for piece in pieces)
    if index is not None:
        assert [part[index]] in [list(piece) for piece in pieces]
