"""unread.py: which inserts no collection has any more."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.recovery.unread import Unread

INSERT = {"operationType": "insert", "ns": {"coll": "outbox"}}
OTHER = {"operationType": "insert", "ns": {"coll": "other"}}
DROP = {"operationType": "drop", "ns": {"coll": "outbox"}}
AWAY = {"operationType": "rename", "ns": {"coll": "outbox"}, "to": {"coll": "old"}}
OVER = {"operationType": "rename", "ns": {"coll": "new"}, "to": {"coll": "outbox"}}


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ([], {}),
        ([INSERT, INSERT], {}),
        ([INSERT, DROP, INSERT], {"outbox": 1}),
        ([INSERT, OTHER, AWAY], {"outbox": 1}),
        ([INSERT, OVER, INSERT], {"outbox": 1}),
        ([DROP, INSERT], {}),
        ([INSERT, OTHER, {"operationType": "dropDatabase", "ns": {}}], {"outbox": 1, "other": 1}),
        ([INSERT, {"operationType": "invalidate"}], {"outbox": 1}),
        ([INSERT, DROP, {"operationType": "invalidate"}], {"outbox": 1}),
    ],
)
def test_what_is_left_behind(changes: list[dict[str, Any]], left: dict[str, int]) -> None:
    unread = Unread()
    for change in changes:
        unread.feed(change)
    assert +unread.left == left
