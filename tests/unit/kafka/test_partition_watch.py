"""Partitions that change are told once, with both numbers."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tailrace.kafka.partition_watch import PartitionWatch


def fields(record: logging.LogRecord) -> dict[str, Any]:
    return dict(record.fields)  # type: ignore[attr-defined]


def test_every_change_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = PartitionWatch("orders")
    watch.note({"a": 3, "b": 1, "other": 1}, ["a", "b"])
    watch.note({"a": 3, "b": 1, "other": 9}, ["a", "b"])
    assert caplog.records == []
    watch.note({"a": 6, "b": 1}, ["a", "b"])
    watch.note({"a": 6}, ["a", "b"])
    (told,) = caplog.records
    assert told.levelno == logging.WARNING
    assert {name: fields(told)[name] for name in ("pipeline", "topic", "before", "now")} == {
        "pipeline": "orders",
        "topic": "a",
        "before": 3,
        "now": 6,
    }
    assert "order of a key across the change is not kept" in fields(told)["why"]
    watch.note({"a": 9}, ["a"])
    assert fields(caplog.records[-1])["before"] == 6
