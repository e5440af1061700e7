"""Ids and trace contexts of new events."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid

import pytest

from tailrace.outbox.writer.event import trace_context, uuid7

GIVEN = f"00-{'a' * 32}-{'b' * 16}-01"


def test_ids_are_uuids_of_version_7_in_the_order_of_time() -> None:
    before = time.time_ns() // 1_000_000
    texts = [uuid7() for _ in range(1000)]
    after = time.time_ns() // 1_000_000
    ids = [uuid.UUID(text) for text in texts]
    assert [str(each) for each in ids] == texts
    assert {each.version for each in ids} == {7}
    assert {each.variant for each in ids} == {uuid.RFC_4122}
    assert len(set(ids)) == 1000
    times = [each.int >> 80 for each in ids]
    assert before <= times[0]
    assert times[-1] <= after
    assert times == sorted(times)


def test_ids_of_one_millisecond_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1_700_000_000_000_000_000, 1_700_000_000_001_000_000, 1000))
    monkeypatch.setattr(time, "time_ns", lambda: next(clock))
    texts = [uuid7() for _ in range(1000)]
    assert texts == sorted(texts)
    assert len({text[:13] for text in texts}) == 1  # all of the same millisecond


FORK = """
import os, time
from tailrace.outbox.writer.event import uuid7

time.time_ns = lambda: 1_700_000_000_000_000_000
uuid7()
child = os.fork()
if child:
    os.waitpid(child, 0)
for _ in range(100):
    print(uuid7())
"""


def test_a_forked_process_makes_other_ids() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    assert len(set(done.stdout.split())) == 200


@pytest.mark.parametrize(
    "malformed",
    [
        "",
        "x",
        GIVEN.upper(),
        f"ff{GIVEN[2:]}",
        f"00-{'0' * 32}-{'b' * 16}-01",
        f"00-{'a' * 32}-{'0' * 16}-01",
        f"{GIVEN}-x",
    ],
)
def test_a_malformed_traceparent_is_ignored(malformed: str) -> None:
    assert trace_context(GIVEN) == (GIVEN, None)
    assert trace_context(malformed) == (None, None)


def test_without_a_span_there_is_no_trace() -> None:
    assert trace_context(None) == (None, None)
