"""Records of target states."""

from __future__ import annotations

import pytest

from tailrace.state.target_state import TARGETS, parse_target, target_key


def test_the_key_is_below_the_name_of_the_pipeline() -> None:
    assert target_key("orders") == b"orders/target"


@pytest.mark.parametrize("target", TARGETS)
def test_reads_target_states(target: str) -> None:
    assert parse_target(b'{"target": "%s", "at_ms": 1}' % target.encode()) == target


@pytest.mark.parametrize("value", [None, b"", b"{", b"[]", b'"PAUSED"', b'{"target": "ASLEEP"}', b'{"target": []}'])
def test_anything_else_is_no_target_state(value: bytes | None) -> None:
    assert parse_target(value) is None
