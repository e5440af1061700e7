"""Tests of table_rescan.py: the name of a slot's copy."""

from __future__ import annotations

from tailrace.sources.postgres.table_rescan import LONGEST, copy_name


def test_a_copy_is_named_after_its_slot() -> None:
    assert copy_name("tailrace_orders", "k7xq2m", "ab12") == "tailrace_orders_replay_k7xq2m_ab12"
    long = copy_name("x" * LONGEST, "k7xq2m", "ab12")
    assert len(long) == LONGEST
    assert long.endswith("x_replay_k7xq2m_ab12")
