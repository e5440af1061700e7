"""The rules for Postgres and Kafka, at their limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.check.result import State
from tailrace.check.rules import (
    check_clock,
    check_copies,
    check_encryption,
    check_free,
    check_kept,
    check_order,
    check_partitions,
    check_rules,
    check_slot,
    check_standby,
    check_synchronous,
    check_version,
    check_window,
)
from tailrace.routing.parsing import parse_spec
from tailrace.routing.specs import SpecOrigin, TopicSpec
from tailrace.routing.view import View
from tailrace.sources.postgres.replay_window import ReplayWindow
from tailrace.sources.postgres.resume_check import SlotState

SLOT = SlotState("s", "pgoutput", "shop", None, 0x1000, "reserved", None, 2048, None)


@pytest.mark.parametrize(
    ("number", "state"),
    [
        (130022, State.WARN),
        (140018, State.WARN),
        (140019, State.OK),
        (150013, State.WARN),
        (150014, State.OK),
        (160009, State.WARN),
        (160010, State.OK),
        (170005, State.WARN),
        (170006, State.OK),
        (180000, State.OK),
        (190001, State.OK),
    ],
)
def test_version(number: int, state: State) -> None:
    check = check_version(number)
    assert check.state is state
    assert bool(check.remedy) == (state is not State.OK)


def test_encryption() -> None:
    assert check_encryption("10.0.0.1", encrypted=True, sslmode="verify-full").state is State.OK
    for mode in ("prefer", "require", "verify-ca"):
        found = check_encryption("10.0.0.1", encrypted=True, sslmode=mode)
        assert (found.state, "sslmode=verify-full" in found.remedy) == (State.WARN, True)
        assert check_encryption("127.0.0.1", encrypted=True, sslmode=mode).state is State.OK
    assert check_encryption("127.0.0.1", encrypted=False).state is State.OK
    found = check_encryption("10.0.0.1", encrypted=False)
    assert found.state is State.WARN
    assert "sslmode=verify-full" in found.remedy


@pytest.mark.parametrize(
    ("most", "state"), [(-1, State.WARN), (0, State.WARN), ((1 << 30) - 1, State.WARN), (1 << 30, State.OK)]
)
def test_retained_wal(most: int, state: State) -> None:
    assert check_kept(most).state is state


def test_free_slots_and_wal_senders() -> None:
    assert check_free("slots", 9, 10, needed=True).state is State.OK
    assert check_free("slots", 10, 10, needed=False).state is State.OK
    assert "max_replication_slots = 20" in check_free("slots", 10, 10, needed=True).remedy
    assert "max_wal_senders = 10" in check_free("wal senders", 0, 0, needed=True).remedy


def test_slot() -> None:
    assert check_slot(None, "s", "shop").state is State.OK
    assert "keeps 2.0 kB" in check_slot(SLOT, "s", "shop").found
    assert "server process 7" in check_slot(replace(SLOT, active_pid=7), "s", "shop").found
    assert "invalidated after 1.0 MB more" in check_slot(replace(SLOT, safe_bytes=1 << 20), "s", "shop").found
    assert check_slot(replace(SLOT, wal_status="unreserved"), "s", "shop").state is State.WARN
    for bad in (
        replace(SLOT, wal_status="lost"),
        replace(SLOT, invalidation="idle_timeout"),
        replace(SLOT, plugin="wal2json"),
        replace(SLOT, database="other"),
    ):
        check = check_slot(bad, "s", "shop")
        assert check.state is State.FAIL
        assert check.remedy


@pytest.mark.parametrize(
    ("match", "key", "expected"),
    [
        ({"column": {"tenant": "acme"}}, None, "t.yaml:3: match.column.tenant uses tenant, which no row has"),
        ({"column": {"region": "eu"}}, None, ""),
        ({"aggregate": "order"}, "customer", "t.yaml:4: key uses customer"),
        ({"aggregate": "order"}, "region", ""),
        ({"aggregate": "order"}, "aggregateid", ""),
        ({"subject": "a.b"}, None, ""),
        ({"column": {"tenant": "acme"}, "pipeline": "other"}, None, ""),
    ],
)
def test_rules(match: dict[str, object], key: str | None, expected: str) -> None:
    view = View("orders", parts={"id": "id", "aggregatetype": "aggregate", "aggregateid": "key", "payload": "payload"})
    document = {"topic": "t", "match": match, **({"key": key} if key else {})}
    lines = {("match", "column", "tenant"): 3, ("key",): 4}
    spec = parse_spec(document, SpecOrigin("t.yaml", lines))
    columns = frozenset({"id", "aggregatetype", "aggregateid", "payload", "region"})
    checks = check_rules([spec], view, columns)
    assert [check.state for check in checks] == [State.WARN] * bool(expected)
    assert all(expected in check.found and "region" in check.remedy for check in checks)
    assert check_rules([spec], view, frozenset()) == []


def test_partitions() -> None:
    spec = TopicSpec("t", 3, origin=SpecOrigin("t.yaml", {("partitions",): 2}))
    assert check_partitions(spec, 3) is None
    assert check_partitions(TopicSpec("t"), 3) is None
    for live, expected in ((6, "two partitions"), (1, "has 1 partition, but its spec declares 3")):
        check = check_partitions(spec, live)
        assert check is not None
        assert check.state is State.WARN
        assert expected in check.found
        assert f"partitions: {live} in its spec (t.yaml:2)" in check.remedy
        assert ("--grow" in check.remedy) == (live < 3)


@pytest.mark.parametrize(
    ("window", "most", "state", "word"),
    [
        ("24 h", -1, State.WARN, "without a bound on its size"),
        ("24 h", 50 << 30, State.OK, "24 h"),
        ("24 h, 2 GiB", -1, State.OK, "2"),
        ("2 GiB", 3 << 30, State.WARN, "of max_slot_wal_keep_size"),
        ("1 GiB", 3 << 30, State.OK, "1"),
    ],
)
def test_a_replay_window_and_max_slot_wal_keep_size(window: str, most: int, state: State, word: str) -> None:
    check = check_window(ReplayWindow.parse(window), most)
    assert check is not None
    assert (check.state, word in check.found) == (state, True)
    assert bool(check.remedy) == (state is State.WARN)
    assert check_window(ReplayWindow(), most) is None


@pytest.mark.parametrize(
    ("window", "most", "state", "word"),
    [
        ("24 h", -1, State.OK, "40.0 GB now"),
        ("50 GiB", -1, State.WARN, "limited to the free space"),
        ("30 GiB", 40 << 30, State.WARN, "of max_slot_wal_keep_size"),
        ("30 GiB", -1, State.OK, "30"),
    ],
)
def test_a_replay_window_and_free_disk_space(window: str, most: int, state: State, word: str) -> None:
    check = check_window(ReplayWindow.parse(window), most, 40 << 30)
    assert check is not None
    assert (check.state, word in check.found) == (state, True), check.found


@pytest.mark.parametrize(
    ("ahead_ms", "state", "word"),
    [
        (0, State.OK, "as this machine's"),
        (-4000, State.OK, "as this machine's"),
        (7_300_000, State.WARN, "2 h ahead of this machine's"),
        (-60_000, State.WARN, "60 s behind this machine's"),
    ],
)
def test_clock(ahead_ms: int, state: State, word: str) -> None:
    check = check_clock(1_800_000_000_000 + ahead_ms, 1_800_000_000_000.0)
    assert (check.state, word in check.found) == (state, True), check


@pytest.mark.parametrize(
    ("copies", "leaderless", "brokers", "state"),
    [
        (1, 0, 1, None),
        (3, 0, 3, None),
        (2, 0, 3, None),
        (1, 0, 3, State.WARN),
        (1, 0, 2, State.WARN),
        (1, 1, 3, State.FAIL),
        (3, 2, 3, State.FAIL),
        (1, 1, 1, State.FAIL),
    ],
)
def test_replicas(copies: int, leaderless: int, brokers: int, state: State | None) -> None:
    check = check_copies("offsets topic", "tailrace-offsets", copies, leaderless, brokers)
    assert (check and check.state) is state
    assert check is None or (check.remedy and "tailrace-offsets" in check.found)


def test_standby() -> None:
    assert check_standby(in_recovery=False, has_slot=False) is None
    assert [getattr(check_standby(in_recovery=True, has_slot=has), "state", None) for has in (False, True)] == [
        State.FAIL,
        State.WARN,
    ]


@pytest.mark.parametrize(
    ("setting", "state"),
    [
        ("", None),
        ("  ", None),
        ("*", State.WARN),
        ('"*"', State.WARN),
        ("FIRST 1 (*)", State.WARN),
        ("ANY 2 (s1, Tailrace, s2)", State.WARN),
        ('2 ("tailrace", s1)', State.WARN),
        ("s1, s2", State.OK),
        ("FIRST 1 (tailrace_standby, s2)", State.OK),
    ],
)
def test_synchronous_standbys(setting: str, state: State | None) -> None:
    check = check_synchronous(setting, "tailrace")
    assert (check and check.state) is state


@pytest.mark.parametrize(
    ("order_by", "state"),
    [(("created_at", "id"), None), (("seq",), None), (("id",), State.WARN), (("kind", "seq"), State.WARN)],
)
def test_order(order_by: tuple[str, ...], state: State | None) -> None:
    check = check_order(order_by, {"created_at": 1184, "seq": 20, "id": 2950, "kind": 25})
    assert (check and check.state) is state
    assert check is None or ", ".join(order_by) in check.found
