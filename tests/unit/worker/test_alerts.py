"""Alerts: reported once, then as sums; nothing is lost, and nothing waits.

A real HTTP server answers. The clock is controlled by the test.
"""

from __future__ import annotations

import logging
import shlex
import time
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.webhook import (
    INVALID,
    POISON,
    SECRET,
    SLACK,
    A,
    Answering,
    B,
    HandClock,
    Hook,
    Start,
    drip,
    hang,
    lines,
    status,
)
from tailrace.testkit.stack import wait_until
from tailrace.worker.alerts import (
    LONGEST_TYPE,
    MAX_PAIRS,
    OTHER,
    RECOVERY,
    STALL,
    Alert,
    AlertCounter,
    Alerts,
)
from tailrace.worker.logs import StructuredLogger


class TestAlertCounter:
    def test_a_new_pair_is_due_at_once_and_later_ones_as_a_sum_per_interval(self) -> None:
        counter = AlertCounter(60)
        assert counter.add(A, 2, at=10)
        assert counter.take(100) == [Alert(*A, 2, 10, 10)]
        assert not counter.add(A, 1, at=11)
        assert not counter.add(A, 3, at=12)
        assert counter.next_due() == 160
        assert counter.take(159.9) == []
        assert counter.take(160) == [Alert(*A, 4, 11, 12)]

    def test_a_pair_without_dead_letters_is_removed_and_then_new_again(self) -> None:
        counter = AlertCounter(60)
        counter.add(A, 1, at=0)
        counter.take(0)
        assert counter.take(60) == []
        assert counter.next_due() == float("inf")
        assert counter.add(A, 1, at=61)

    def test_dead_letters_counted_during_a_report_are_in_the_next_one(self) -> None:
        counter = AlertCounter(60)
        counter.add(A, 1, at=0)
        alert = counter.due(0)
        assert alert
        counter.add(A, 5, at=1)
        counter.settle(alert, 2)
        assert counter.unreported() == 5
        assert counter.take(62) == [Alert(*A, 5, 0, 1)]

    def test_a_postponed_alert_comes_after_the_others(self) -> None:
        counter = AlertCounter(60)
        counter.add(A, 1, at=0)
        counter.add(B, 1, at=0)
        first = counter.due(0)
        assert first == Alert(*A, 1, 0, 0)
        counter.postpone(first)
        assert counter.take(0) == [Alert(*B, 1, 0, 0), first]

    @given(st.lists(st.tuples(st.sampled_from([INVALID, POISON]), st.integers(0, 400), st.integers(1, 5))))
    def test_the_total_is_correct_and_the_number_of_pairs_limited(self, letters: list[tuple[str, int, int]]) -> None:
        counter, alerts = AlertCounter(60), []
        for at, (reason, number, count) in enumerate(letters):
            counter.add((reason, f"T{number}"), count, at)
            if at % 7 == 0:
                alerts += counter.take(at)
        alerts += counter.take(float("inf"))
        for reason in (INVALID, POISON):
            assert sum(n.dead_letters for n in alerts if n.reason == reason) == sum(
                c for r, _, c in letters if r == reason
            )
        assert len(counter._pairs) <= MAX_PAIRS + 2
        assert counter.unreported() == 0


class TestReporting:
    def test_a_new_pair_is_reported_at_once(self, start: Start, hook: Hook, clock: HandClock) -> None:
        start(hook.port).dead_lettered(INVALID, "OrderPlaced", 3)
        wait_until(lambda: hook.calls)
        at = datetime.fromtimestamp(clock.wall(), UTC).isoformat(timespec="milliseconds")
        assert hook.calls == [
            {
                "pipeline": "orders",
                "alert": "dead_letters",
                "reason": INVALID,
                "type": "OrderPlaced",
                "count": 3,
                "since": at,
                "until": at,
                "dead_letter_topic": "letters",
                "hint": f"tailrace dlq list orders.yaml --reason {INVALID} --type OrderPlaced",
            }
        ]
        assert hook.paths == ["/hook/T0KEN?v=1"]
        assert hook.headers[0]["Authorization"] == SECRET
        assert hook.headers[0]["Content-Type"] == "application/json"
        assert hook.headers[0]["Host"] == f"127.0.0.1:{hook.port}"

    def test_further_dead_letters_are_reported_as_a_sum_once_per_interval(
        self, start: Start, hook: Hook, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        alerts = start(hook.port, interval=30)
        alerts.dead_lettered(*A)
        clock.settle()
        for _ in range(5):
            clock.move(5)
            alerts.dead_lettered(*A, 2)
        clock.move(4.9)
        assert hook.counts() == [1]
        clock.move(0.1)
        clock.move(300)
        assert hook.counts() == [1, 10]
        assert hook.calls[1]["since"] < hook.calls[1]["until"]
        assert [line["dead_letters"] for line in lines(caplog)] == [1, 10]

    def test_each_reason_and_type_is_reported_separately(self, start: Start, hook: Hook, clock: HandClock) -> None:
        alerts = start(hook.port)
        for pair in ((INVALID, "A"), (POISON, "A"), (INVALID, "B"), (INVALID, "A")):
            alerts.dead_lettered(*pair)
        clock.settle()
        clock.move(60)
        found = sorted((call["reason"], call["type"]) for call in hook.calls)
        assert set(found) == {(INVALID, "A"), (INVALID, "B"), (POISON, "A")}
        assert sum(call["count"] for call in hook.calls) == 4

    def test_without_a_webhook_alerts_are_logged(
        self, start: Start, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        start(None).dead_lettered(INVALID, "OrderPlaced")
        clock.settle()
        (line,) = lines(caplog)
        assert line == {
            "pipeline": "orders",
            "reason": INVALID,
            "type": "OrderPlaced",
            "dead_letters": 1,
            "since": datetime.fromtimestamp(clock.wall(), UTC).isoformat(timespec="milliseconds"),
            "topic": "letters",
        }
        assert caplog.records[0].levelno == logging.WARNING

    def test_a_type_name_cannot_control_a_terminal_or_run_in_a_shell(
        self, start: Start, hook: Hook, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        start(hook.port).dead_lettered(INVALID, "*\x1b[2J\r\n'; rm -rf $HOME #")
        clock.settle()
        assert lines(caplog)[0]["type"] == "*�[2J��'; rm -rf $HOME #"
        option, pattern = shlex.split(hook.calls[0]["hint"])[-2:]
        assert option == "--type"
        assert fnmatchcase(hook.calls[0]["type"], pattern)
        assert not fnmatchcase("x" + hook.calls[0]["type"], pattern)

    def test_a_long_type_name_is_cut(self, start: Start, hook: Hook, clock: HandClock) -> None:
        start(hook.port).dead_lettered(INVALID, "x" * 1_000_000)
        clock.settle()
        assert hook.calls[0]["type"] == "x" * (LONGEST_TYPE - 1) + "…"
        assert "--type" not in hook.calls[0]["hint"]

    def test_a_hundred_thousand_types_need_little_memory_and_the_total_is_correct(
        self, start: Start, hook: Hook, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        hook.answer = status(500)
        alerts = start(hook.port)
        for number in range(MAX_PAIRS + 1):
            alerts.dead_lettered(INVALID, f"Type{number}")
        clock.settle()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for number in range(MAX_PAIRS + 1, 100_000):
                alerts.dead_lettered(INVALID, f"Type{number}")
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert grown < 100_000
        hook.answer, failed = status(204), len(hook.calls)
        clock.move(60)
        assert sum(call["count"] for call in hook.calls[failed:]) == 100_000
        (rest,) = [call for call in hook.calls if call["type"] == OTHER]
        assert "--type" not in rest["hint"]
        assert sum(line["dead_letters"] for line in lines(caplog)) == 100_000


class TestClosing:
    def test_closing_logs_and_sends_the_remaining_alerts(
        self, start: Start, hook: Hook, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        alerts = start(hook.port)
        alerts.dead_lettered(*A)
        clock.settle()
        alerts.dead_lettered(*A, 4)
        alerts.dead_lettered(*B, 2)
        alerts.close(SLACK)
        assert (hook.counts("A"), hook.counts("B")) == ([1, 4], [2])
        assert [line["dead_letters"] for line in lines(caplog) if line["type"] == "A"] == [1, 4]
        assert not lines(caplog, "webhook missed alerts")

    @pytest.mark.parametrize("behaviour", [hang, drip], ids=["hangs", "drips"])
    def test_closing_does_not_wait_for_a_running_call(
        self,
        behaviour: Callable[[Hook], Answering],
        start: Start,
        hook: Hook,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        hook.answer = behaviour(hook)
        alerts = start(hook.port, timeout=60)
        alerts.dead_lettered(*A, 2)
        wait_until(lambda: hook.calls)
        alerts.dead_lettered(*B, 3)
        began = time.monotonic()
        alerts.close(0.2)
        assert time.monotonic() - began < SLACK
        assert sum(line["dead_letters"] for line in lines(caplog)) == 5
        assert [line["dead_letters"] for line in lines(caplog, "webhook missed alerts")] == [5]

    def test_closing_tries_a_failing_webhook_once_more(
        self, start: Start, hook: Hook, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        hook.answer = status(500)
        alerts = start(hook.port)
        alerts.dead_lettered(*A)
        clock.settle()
        alerts.close(SLACK)
        assert len(hook.calls) == 2
        alerts.close(SLACK)
        assert [line["dead_letters"] for line in lines(caplog, "webhook missed alerts")] == [1]
        assert len(hook.calls) == 2


class TestNotices:
    def test_a_notice_is_logged_and_sent_at_once(
        self, start: Start, hook: Hook, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        start(hook.port).notify(STALL, "nothing moves", why="It is blocked.", remedy="Restart it.")
        clock.settle()
        assert hook.calls == [
            {
                "pipeline": "orders",
                "alert": "stall",
                "what": "nothing moves",
                "why": "It is blocked.",
                "remedy": "Restart it.",
                "at": "2023-11-14T22:30:00.000+00:00",
            }
        ]
        assert [line["alert"] for line in lines(caplog, "alert")] == ["stall"]

    def test_a_notice_waits_for_a_webhook_that_fails_and_the_latest_of_a_kind_counts(
        self, start: Start, hook: Hook, clock: HandClock
    ) -> None:
        hook.answer = status(500)
        alerts = start(hook.port)
        alerts.notify(STALL, "first")
        clock.settle()
        alerts.notify(RECOVERY, "it runs")
        alerts.notify(STALL, "second")
        hook.answer = status(204)
        clock.move(120)
        assert [(call["alert"], call["what"]) for call in hook.calls] == [
            ("stall", "first"),
            ("recovery", "it runs"),
            ("stall", "second"),
        ]

    def test_a_refused_notice_is_not_repeated(self, start: Start, hook: Hook, clock: HandClock) -> None:
        hook.answer = status(400)
        start(hook.port).notify(STALL, "first")
        clock.move(600)
        assert len(hook.calls) == 1

    def test_closing_sends_what_is_left_or_says_so(
        self, start: Start, hook: Hook, clock: HandClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        hook.answer = status(500)
        alerts = start(hook.port)
        alerts.notify(STALL, "first")
        clock.settle()
        alerts.close(SLACK)
        assert [line["notices"] for line in lines(caplog, "webhook missed alerts")] == [1]

    def test_every_alert_is_counted_by_kind(self, hook: Hook, clock: HandClock) -> None:
        raised: list[str] = []
        alerts = Alerts("orders", StructuredLogger(), None, dead_letter_topic="x", clock=clock, raised=raised.append)
        alerts.notify(STALL, "first")
        alerts.dead_lettered(*A, 5)
        alerts.close(SLACK)
        assert raised == ["stall", "dead_letters"]
