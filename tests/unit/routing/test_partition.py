"""murmur2 gives the values of the Java client. tests/integration/test_topics.py compares it with a broker."""

from __future__ import annotations

import pytest

from tailrace.routing.partition import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_known_hashes(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


def test_partitions_are_in_range_and_all_used() -> None:
    assert {partition_of(str(number).encode(), 7) for number in range(200)} == set(range(7))
