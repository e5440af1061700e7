"""Topics of a batch: signs of life while they are created; changed numbers of partitions are logged once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tailrace.kafka import topic_manager
from tailrace.kafka.topic_limits import TopicLimits
from tailrace.kafka.topic_manager import PartitionWatch, TopicManager
from tailrace.routing.specs import TopicSpec


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


def test_each_new_topic_is_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a batch with many new topics, and a slow Kafka, would look like a stall."""
    done: list[str] = []

    def create(_: object, topic: str) -> int:
        done.append(f"create {topic}")
        return 1

    monkeypatch.setattr(topic_manager, "partition_counts", lambda *_: {"b": 1})
    monkeypatch.setattr(TopicManager, "_create_topic", create)
    monkeypatch.setattr(TopicManager, "learn", lambda *_: None)
    admin: Any = None
    topics = TopicManager(admin, {}, TopicSpec("", 1, 1, {}), PartitionWatch("orders"), TopicLimits(), create=True)
    topics.require(["a", "b", "c"], lambda: done.append("alive"))
    assert done == ["alive", "create a", "alive", "alive", "create c"]
    topics.require(["a", "b", "c"], lambda: done.append("alive"))
    assert len(done) == 5
