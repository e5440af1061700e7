"""The timestamp of a record."""

from __future__ import annotations

import pytest

from tailrace.kafka.timestamps import OLD_MS, stamp

NOW = 1_800_000_000_000


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
def test_what_was_committed_long_ago_or_in_the_future_is_as_old_as_its_record(committed_ms: int, stamped: int) -> None:
    assert stamp(committed_ms, NOW) == stamped
