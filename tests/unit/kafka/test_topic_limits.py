"""Limits of topics, from their settings and from rejections."""

from __future__ import annotations

import pytest

from tailrace.kafka.topic_limits import BATCH_BYTES, OLD_MS, TopicLimits, publish_time

NOW = 1_800_000_000_000


def test_the_smallest_limit_counts_and_may_change() -> None:
    limits = TopicLimits()
    assert limits.batch_bytes > BATCH_BYTES
    assert limits.age_ms == OLD_MS
    limits.note("orders", {"max.message.bytes": "1048588", "segment.bytes": "1073741824"})
    assert (limits.batch_bytes, limits.age_ms) == (1048588, OLD_MS)
    limits.note("parcels", {"max.message.bytes": "100000", "segment.bytes": "50000"})
    assert limits.batch_bytes == 50_000
    limits.note("parcels", {"max.message.bytes": "200000", "segment.bytes": None})
    assert limits.batch_bytes == 200_000
    assert limits.record_bytes("parcels", 200_000) == 200_000
    assert limits.record_bytes("unknown", 200_000) == 100_000


def test_timestamps_are_limited_only_if_the_producer_sets_them() -> None:
    limits = TopicLimits()
    narrow = {"message.timestamp.before.max.ms": "600000"}
    limits.note("by broker", {"message.timestamp.type": "LogAppendTime", **narrow})
    assert limits.age_ms == OLD_MS
    limits.note("by producer", {"message.timestamp.type": "CreateTime", **narrow})
    assert limits.age_ms == 300_000
    assert limits.distrust_times()
    assert limits.age_ms == 0
    assert not limits.distrust_times(), "there is nothing left to try"


def test_batches_shrink_until_each_record_is_alone() -> None:
    limits = TopicLimits()
    size, steps = BATCH_BYTES, 0
    while limits.shrink(size):
        assert limits.batch_bytes < size
        limits.note("orders", {"max.message.bytes": "1048588"})  # what was tried is not forgotten
        size, steps = limits.batch_bytes, steps + 1
    assert (size, steps) == (1, 10)


@pytest.mark.parametrize(
    ("committed_ms", "stamped"),
    [
        (NOW, NOW),
        (NOW - 5, NOW - 5),
        (NOW + 5, NOW),
        (NOW + 90 * OLD_MS, NOW),
        (NOW - OLD_MS, NOW),
        (0, NOW),
        (NOW - OLD_MS + 1, NOW - OLD_MS + 1),
    ],
)
def test_a_commit_long_ago_or_in_the_future_gets_the_time_of_publishing(committed_ms: int, stamped: int) -> None:
    assert publish_time(committed_ms, NOW) == stamped
