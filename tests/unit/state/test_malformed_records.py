"""Records of the offsets topic that something else wrote: JSON that no parser of ours expects."""

from __future__ import annotations

import pytest

from tailrace.errors import OffsetRecordCorrupt
from tailrace.kafka.client import KafkaOptions
from tailrace.state import offsets, rewind_marker
from tailrace.state.owner_watch import parse_owner
from tailrace.state.status import parse_failure

OPTIONS = KafkaOptions("localhost:1", "p")
INFINITE = (
    b'{"source": "postgres", "lsn": "0/1", "at_ms": 1e999, "log": {"system_id": "7", "timeline": 1, "database": "d",'
)
STRANGE = [
    INFINITE + b' "slot": "s", "table": "t", "publication": "x"}}',
    b"[" * 100_000,
    b'{"source": "postgres", "cut": [1]}',
    b"null",
    b"\xff",
]


@pytest.mark.parametrize("value", STRANGE, ids=["infinite", "deep", "list", "null", "not UTF-8"])
def test_a_strange_record_is_refused_or_ignored(value: bytes) -> None:
    for parse in (offsets.parse, rewind_marker.parse):
        with pytest.raises(OffsetRecordCorrupt):
            parse(OPTIONS, value)
    assert parse_failure(value) == ""
    assert parse_owner(value) is not None


def test_an_owner_with_an_infinite_number_still_counts_as_an_owner() -> None:
    value = b'{"instance": "i", "host": "h", "pid": 1e999, "since_ms": 2, "process": ""}'
    owner = parse_owner(value)
    assert owner is not None
    assert owner.host == ""
