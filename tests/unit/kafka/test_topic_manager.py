"""A change of the number of partitions is logged once, with both numbers."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tailrace.kafka.topic_manager import PartitionWatch


def fields(record: logging.LogRecord) -> dict[str, Any]:
    return dict(record.fields)  # type: ignore[attr-defined]


def test_each_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = PartitionWatch("orders")
    watch.note({"a": 3, "b": 1, "other": 1}, ["a", "b"])
    watch.note({"a": 3, "b": 1, "other": 9}, ["a", "b"])
    assert caplog.records == []
    watch.note({"a": 6, "b": 1}, ["a", "b"])
    watch.note({"a": 6}, ["a", "b"])
    (logged,) = caplog.records
    assert logged.levelno == logging.WARNING
    assert {name: fields(logged)[name] for name in ("pipeline", "topic", "before", "now")} == {
        "pipeline": "orders",
        "topic": "a",
        "before": 3,
        "now": 6,
    }
    assert "order of a key is not kept across the change" in fields(logged)["why"]
    watch.note({"a": 9}, ["a"])
    assert fields(caplog.records[-1])["before"] == 6
