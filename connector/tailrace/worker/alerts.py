"""Reports to people what needs attention: as log lines and, if configured, by calls of a webhook.

New dead letters are counted by reason and event type. A pair of these that is new is reported at once, then at most
once per interval with the number since. The pipeline only counts; one daemon thread writes and calls, so a slow webhook
delays nothing. Alerts that could not be delivered stay counted, and the next call carries the sum. The number of pairs
is bounded; the rest counts as `other`.

Everything else is a notice of some kind (`metric_table.ALERTS`): a stall, a log in danger, a slow leak of dead letters,
a recovery. Of each kind, the latest is sent; `alert_rules.py` decides when there is one.

Alerts contain no payload and no explanation, which may quote a payload. A killed process may leave some unsent; the
dead letters themselves are in Kafka.
"""

from __future__ import annotations

import glob
import json
import math
import shlex
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from random import random
from typing import NamedTuple, Protocol

from tailrace import backoff
from tailrace.worker.logs import StructuredLogger
from tailrace.worker.metric_table import ALERTS
from tailrace.worker.webhook import CallOutcome, CallResult, WebhookCaller, WebhookOptions

DEAD_LETTERS, LEAK, STALL, LOG_IN_DANGER, RECOVERY = ALERTS
MAX_PAIRS = 100
OTHER = "other"
"""The event type under which further pairs are counted, by reason."""
LONGEST_TYPE = 200
"""Longer names of event types are cut: they come from a column of any length."""
LOG_SECONDS = 60.0
"""Between two log lines for the same pair, unless the webhook has an interval."""


class Clock(Protocol):
    def monotonic(self) -> float: ...
    def wall(self) -> float: ...
    def wait(self, changed: threading.Condition, seconds: float | None) -> object: ...


class _SystemClock:
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    wait = staticmethod(threading.Condition.wait)


class Alert(NamedTuple):
    """The number of dead letters of one pair, and when the first and the last of them were counted."""

    reason: str
    type: str
    dead_letters: int
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that people should know: what, why and the remedy; `at` is a Unix time."""

    kind: str
    what: str
    why: str
    remedy: str
    at: float


@dataclass(slots=True)
class _PairCount:
    count: int
    since: float
    until: float
    due: float = -math.inf


class AlertCounter:
    """Dead letters not yet reported, by pair. `add` takes wall time; `due` and `settle` take a monotonic clock."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._pairs: dict[tuple[str, str], _PairCount] = {}

    def add(self, pair: tuple[str, str], count: int, at: float) -> bool:
        """Counts, and returns whether the pair is new and therefore due at once."""
        if pair not in self._pairs and len(self._pairs) >= MAX_PAIRS:
            pair = (pair[0], OTHER)
        counted = self._pairs.get(pair)
        if counted is None:
            self._pairs[pair] = _PairCount(count, at, at)
            return True
        if not counted.count:
            counted.since = at
        counted.count += count
        counted.until = at
        return False

    def next_due(self) -> float:
        return min((counted.due for counted in self._pairs.values()), default=math.inf)

    def due(self, now: float) -> Alert | None:
        """Returns the first alert that is due, which stays counted, and forgets pairs without dead letters since."""
        for pair, counted in list(self._pairs.items()):
            if counted.due <= now and counted.count:
                return Alert(*pair, counted.count, counted.since, counted.until)
            if counted.due <= now:
                del self._pairs[pair]
        return None

    def settle(self, alert: Alert, now: float) -> None:
        """Removes a reported alert. What was counted meanwhile is due after the interval."""
        counted = self._pairs[alert.reason, alert.type]
        counted.count -= alert.dead_letters
        counted.since = alert.until
        counted.due = now + self._interval

    def postpone(self, alert: Alert) -> None:
        """Moves an alert behind the others: the webhook may reject this one only."""
        pair = (alert.reason, alert.type)
        self._pairs[pair] = self._pairs.pop(pair)

    def take(self, now: float) -> list[Alert]:
        """Returns everything that is due, settled."""
        taken = []
        while alert := self.due(now):
            self.settle(alert, now)
            taken.append(alert)
        return taken

    def unreported(self) -> int:
        return sum(counted.count for counted in self._pairs.values())


class Alerts:
    """Sends alerts for the life of a process. `dead_lettered` may be called from any thread until `close`."""

    def __init__(
        self,
        pipeline: str,
        log: StructuredLogger,
        webhook: WebhookOptions | None,
        *,
        dead_letter_topic: str,
        clock: Clock | None = None,
        chance: Callable[[], float] = random,
        raised: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`raised` is called with the kind of each alert."""
        self._raised = raised
        self._notices: dict[str, Notice] = {}
        """Notices that the webhook has not received, by kind."""
        self._pipeline = pipeline
        self._log = log
        self._topic = dead_letter_topic
        self._clock = clock or _SystemClock()
        self._chance = chance
        self._webhook = WebhookCaller(webhook) if webhook else None
        self._host = webhook.host if webhook else ""
        interval = webhook.interval if webhook else LOG_SECONDS
        self._lines, self._calls = AlertCounter(interval), AlertCounter(interval)
        self._changed = threading.Condition()
        """Guards everything that both threads use."""
        self._failures = 0
        self._not_before = -math.inf
        self._logged_failures: set[str] = set()
        self._refused = 0
        self._close_by: float | None = None
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)
        self._thread.start()

    def dead_lettered(self, reason: str, type_name: str, count: int = 1) -> None:
        """Counts dead letters that are committed to Kafka. Does not wait and does not raise."""
        pair = (reason, type_name if len(type_name) <= LONGEST_TYPE else type_name[: LONGEST_TYPE - 1] + "…")
        at = self._clock.wall()
        with self._changed:
            is_new = self._lines.add(pair, count, at)
            if self._webhook is not None:
                is_new |= self._calls.add(pair, count, at)
            if is_new:
                self._changed.notify()

    def notify(self, kind: str, what: str, *, why: str = "", remedy: str = "") -> None:
        """Logs a notice and sends it to the webhook. Does not wait for that and does not raise."""
        write = self._log.info if kind == RECOVERY else self._log.warning
        write("alert", alert=kind, what=what, why=why, remedy=remedy)
        self._raised(kind)
        if self._webhook is not None:
            with self._changed:
                self._notices.pop(kind, None)
                self._notices[kind] = Notice(kind, what, why, remedy, self._clock.wall())
                self._changed.notify()

    def close(self, seconds: float) -> None:
        """Writes the remaining log lines, calls the webhook for at most `seconds`, and logs what stays unsent."""
        with self._changed:
            if self._close_by is not None:
                return
            self._close_by = self._clock.monotonic() + seconds
            self._failures = 0  # allows one last try
            lines = self._lines.take(math.inf)
            self._changed.notify()
        self._write(lines)
        self._thread.join(max(seconds, 0.0))
        with self._changed:
            missed, notices = self._calls.unreported() + self._refused, len(self._notices)
        if missed or notices:
            fields: dict[str, object] = {"notices": notices} if notices else {}
            self._log.warning(
                "webhook missed alerts", dead_letters=missed, webhook=self._host, topic=self._topic, **fields
            )

    def _run(self) -> None:
        running = True
        while running:
            with self._changed:
                now = self._wait()
                lines = self._lines.take(now)
                alert = self._next_call(now)
                running = alert is not None or self._close_by is None
                seconds = math.inf if self._close_by is None else self._close_by - now
            self._write(lines)
            if alert is not None and self._webhook is not None:
                self._finish_call(alert, self._webhook.post(self._body(alert), seconds))

    def _wait(self) -> float:
        """Waits until something is due or `close` was called, and returns the time."""
        while True:
            now = self._clock.monotonic()
            call = -math.inf if self._notices else self._calls.next_due()
            due = min(self._lines.next_due(), max(call, self._not_before))
            if due <= now or self._close_by is not None:
                return now
            self._clock.wait(self._changed, None if due == math.inf else due - now)

    def _next_call(self, now: float) -> Alert | Notice | None:
        # When closing, everything is due, until time is up or a call fails.
        is_time = now >= self._not_before if self._close_by is None else now < self._close_by and not self._failures
        if not is_time:
            return None
        if self._notices:
            return next(iter(self._notices.values()))
        return self._calls.due(now if self._close_by is None else math.inf)

    def _finish_call(self, alert: Alert | Notice, result: CallResult) -> None:
        with self._changed:
            now = self._clock.monotonic()
            if result.outcome is CallOutcome.FAILED:
                self._failures += 1
                self._not_before = now + backoff.delay(self._failures, chance=self._chance)
                self._postpone(alert)
            else:
                self._failures = 0
                self._not_before = -math.inf
                self._settle(alert, now, refused=result.outcome is CallOutcome.REFUSED)
        if result.outcome is CallOutcome.DELIVERED:
            if self._logged_failures:
                self._log.info("webhook answers again", webhook=self._host, refused=self._refused)
            self._logged_failures.clear()
        elif result.detail not in self._logged_failures:
            self._logged_failures.add(result.detail)
            then = "the call is retried" if result.outcome is CallOutcome.FAILED else "the call is not repeated"
            self._log.warning(f"webhook {result.outcome.value}", webhook=self._host, what=result.detail, then=then)

    def _postpone(self, alert: Alert | Notice) -> None:
        if isinstance(alert, Alert):
            self._calls.postpone(alert)
        elif alert.kind in self._notices:
            self._notices[alert.kind] = self._notices.pop(alert.kind)

    def _settle(self, alert: Alert | Notice, now: float, *, refused: bool) -> None:
        if isinstance(alert, Alert):
            self._calls.settle(alert, now)
            self._refused += alert.dead_letters if refused else 0
        elif self._notices.get(alert.kind) is alert:
            del self._notices[alert.kind]

    def _write(self, alerts: list[Alert]) -> None:
        for alert in alerts:
            self._raised(DEAD_LETTERS)
            self._log.warning(
                "dead-lettered",
                reason=alert.reason,
                # Control characters in a name could forge log lines or control a terminal.
                type="".join(character if character.isprintable() else "�" for character in alert.type),
                dead_letters=alert.dead_letters,
                since=_iso(alert.since),
                topic=self._topic,
            )

    def _body(self, alert: Alert | Notice) -> bytes:
        if isinstance(alert, Notice):
            notice = {"what": alert.what, "why": alert.why, "remedy": alert.remedy, "at": _iso(alert.at)}
            return json.dumps({"pipeline": self._pipeline, "alert": alert.kind, **notice}).encode()
        # The hint is to be pasted into a shell, and the type's name is data: it is escaped as a pattern and quoted.
        hint = ["tailrace", "dlq", "list", f"{self._pipeline}.yaml", "--reason", alert.reason]
        if alert.type != OTHER and len(alert.type) < LONGEST_TYPE:
            hint += ["--type", glob.escape(alert.type)]
        content = {
            "pipeline": self._pipeline,
            "alert": DEAD_LETTERS,
            "reason": alert.reason,
            "type": alert.type,
            "count": alert.dead_letters,
            "since": _iso(alert.since),
            "until": _iso(alert.until),
            "dead_letter_topic": self._topic,
            "hint": shlex.join(hint),
        }
        return json.dumps(content).encode()


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
