"""Tells people that events were set aside: a log line and, if there is one, a call of a webhook.

Once at once for what is new, a pair of reason and event type, then at most once in an interval with the number since.
The pipeline only counts: a thread of our own writes and calls, so whatever a webhook does, nothing waits for it. What
cannot be told yet stays counted, and the next call has the sum. The number of pairs is bounded; what goes beyond it
is counted as `other`.

Neither line nor call holds a payload or an explanation, which may quote it: those are in the letters. A process that
is killed may leave some untold. The letters are in Kafka all the same; notices are a help, not the record.
"""

from __future__ import annotations

import glob
import json
import math
import shlex
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from random import random
from typing import NamedTuple, Protocol

from tailrace import backoff
from tailrace.worker.logs import StructuredLogger
from tailrace.worker.webhook import Answer, Verdict, WebhookCaller, WebhookOptions

MAX_PAIRS = 100
"""More kinds of trouble than a person reads about in a minute; beyond it they are counted together,"""
OTHER = "other"
"""under this name, still by reason."""
LONGEST_TYPE = 200
"""A type's name is a column of somebody's table and may be of any length."""
LOG_SECONDS = 60.0
"""Between two lines on the same pair, unless the webhook has an interval of its own."""


class Clock(Protocol):
    def monotonic(self) -> float: ...
    def wall(self) -> float: ...
    def wait(self, bell: threading.Condition, seconds: float | None) -> object: ...


class _SystemClock:
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    wait = staticmethod(threading.Condition.wait)


class Alert(NamedTuple):
    """How many letters of a pair there were, and when the first and the last of them."""

    reason: str
    type: str
    letters: int
    since: float
    until: float


class _Pair:
    __slots__ = ("count", "due", "since", "tries", "until")

    def __init__(self, count: int, at: float) -> None:
        self.count = count
        self.since = self.until = at
        self.due = -math.inf
        self.tries = 0


class AlertCounter:
    """Letters that were not told of yet. A pair that is told rests for the interval; if nothing comes, it is forgotten.

    `add` counts in wall time, for people; everything else goes by a clock that never jumps.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._pairs: dict[tuple[str, str], _Pair] = {}

    def add(self, key: tuple[str, str], count: int, at: float) -> bool:
        """Whether the pair is new, and therefore due at once."""
        pair = self._pairs.get(key)
        if pair is None:
            if len(self._pairs) >= MAX_PAIRS:
                key = (key[0], OTHER)
                pair = self._pairs.get(key)
            if pair is None:
                self._pairs[key] = _Pair(count, at)
                return True
        if not pair.count:
            pair.since = at
        pair.count += count
        pair.until = at
        return False

    def next_due(self) -> float:
        return min((pair.due for pair in self._pairs.values()), default=math.inf)

    def due(self, now: float) -> Alert | None:
        """What has waited longest. It stays counted until it is settled."""
        found: tuple[tuple[str, str], _Pair] | None = None
        for key, pair in list(self._pairs.items()):
            if pair.due > now:
                continue
            if not pair.count:
                del self._pairs[key]
            elif found is None or pair.due < found[1].due:
                found = key, pair
        if found is None:
            return None
        (reason, type_name), pair = found
        return Alert(reason, type_name, pair.count, pair.since, pair.until)

    def settle(self, notice: Alert, now: float) -> None:
        """It was told, or never will be; what came meanwhile is next."""
        pair = self._pairs[notice.reason, notice.type]
        pair.count -= notice.letters
        pair.since = notice.until
        pair.tries = 0
        pair.due = now + self._interval

    def put_off(self, notice: Alert, now: float, chance: Callable[[], float]) -> None:
        """Others come first: a webhook may choke on this one alone."""
        pair = self._pairs[notice.reason, notice.type]
        pair.tries += 1
        pair.due = now + backoff.delay(pair.tries, chance=chance)

    def take(self, now: float) -> list[Alert]:
        """All that is due, settled."""
        taken = []
        while notice := self.due(now):
            self.settle(notice, now)
            taken.append(notice)
        return taken

    def left(self) -> int:
        return sum(pair.count for pair in self._pairs.values())


class Alerts:
    """One for the life of a process, with one daemon thread. `set_aside` from any thread, not after `close`."""

    def __init__(
        self,
        pipeline: str,
        log: StructuredLogger,
        webhook: WebhookOptions | None,
        *,
        dead_letter_topic: str,
        clock: Clock | None = None,
        chance: Callable[[], float] = random,
    ) -> None:
        self._pipeline = pipeline
        self._log = log
        self._topic = dead_letter_topic
        self._clock = clock or _SystemClock()
        self._chance = chance
        self._webhook = WebhookCaller(webhook) if webhook else None
        self._place = webhook.place if webhook else ""
        interval = webhook.interval if webhook else LOG_SECONDS
        self._lines, self._calls = AlertCounter(interval), AlertCounter(interval)
        self._lock = threading.Lock()
        self._bell = threading.Condition(self._lock)
        self._failures = 0
        self._not_before = -math.inf
        self._troubles: set[str] = set()
        self._refused = 0
        self._close_by: float | None = None
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)
        self._thread.start()

    def set_aside(self, reason: str, type_name: str, count: int = 1) -> None:
        """Letters that are committed to Kafka. Only counts them: takes no longer than that, and does not raise."""
        key = (reason, type_name if len(type_name) <= LONGEST_TYPE else type_name[: LONGEST_TYPE - 1] + "…")
        at = self._clock.wall()
        with self._lock:
            is_new = self._lines.add(key, count, at)
            if self._webhook is not None:
                is_new |= self._calls.add(key, count, at)
            if is_new:
                self._bell.notify()

    def close(self, seconds: float) -> None:
        """Writes what is left to write, tries for `seconds` to call for the rest, and says what it could not."""
        with self._lock:
            if self._close_by is not None:
                return
            self._close_by = self._clock.monotonic() + seconds
            self._failures = 0  # it may be well again: one last try
            lines = self._lines.take(math.inf)
            self._bell.notify()
        self._write(lines)
        self._thread.join(max(seconds, 0.0))
        with self._lock:
            left = self._calls.left() + self._refused
        if left:
            self._log.warning("webhook was not told of all", letters=left, webhook=self._place, topic=self._topic)

    def _run(self) -> None:
        going = True
        while going:
            with self._lock:
                now = self._wait()
                lines = self._lines.take(now)
                call = self._next_call(now)
                going = call is not None or self._close_by is None
                seconds = math.inf if self._close_by is None else self._close_by - now
            self._write(lines)
            if call is not None and self._webhook is not None:
                self._answered(call, self._webhook.post(self._body(call), seconds))

    def _wait(self) -> float:
        """Until something is due, or we are to close; returns the time."""
        while True:
            now = self._clock.monotonic()
            due = min(self._lines.next_due(), max(self._calls.next_due(), self._not_before))
            if due <= now or self._close_by is not None:
                return now
            self._clock.wait(self._bell, None if due == math.inf else due - now)

    def _next_call(self, now: float) -> Alert | None:
        if self._close_by is None:
            return self._calls.due(now) if now >= self._not_before else None
        # The last round: everything at once, until the time is over or a call fails.
        return self._calls.due(math.inf) if now < self._close_by and not self._failures else None

    def _answered(self, notice: Alert, answer: Answer) -> None:
        with self._lock:
            now = self._clock.monotonic()
            if answer.verdict is Verdict.FAILED:
                # Whichever pair it was about, the others call the same server.
                self._failures += 1
                self._not_before = now + backoff.delay(self._failures, chance=self._chance)
                self._calls.put_off(notice, now, self._chance)
            else:
                self._failures = 0
                self._not_before = -math.inf
                self._calls.settle(notice, now)
                self._refused += notice.letters if answer.verdict is Verdict.REFUSED else 0
        if answer.verdict is Verdict.TOLD:
            if self._troubles:
                self._log.info("webhook answers again", webhook=self._place, letters_refused=self._refused)
            self._troubles.clear()
        elif answer.words not in self._troubles:
            self._troubles.add(answer.words)
            then = "is tried again" if answer.verdict is Verdict.FAILED else "is not tried again with the same notice"
            self._log.warning(f"webhook {answer.verdict.value}", webhook=self._place, what=answer.words, then=then)

    def _write(self, lines: list[Alert]) -> None:
        for line in lines:
            self._log.warning(
                "set aside",
                reason=line.reason,
                # A name with control characters could write lines of its own, or worse on a terminal.
                type="".join(character if character.isprintable() else "�" for character in line.type),
                letters=line.letters,
                since=_iso(line.since),
                topic=self._topic,
            )

    def _body(self, notice: Alert) -> bytes:
        told = {
            "pipeline": self._pipeline,
            "reason": notice.reason,
            "type": notice.type,
            "count": notice.letters,
            "since": _iso(notice.since),
            "until": _iso(notice.until),
            "dead_letter_topic": self._topic,
            "hint": self._hint(notice),
        }
        return json.dumps(told).encode()

    def _hint(self, notice: Alert) -> str:
        """A command to be pasted into a shell: the type's name is somebody's data, and must stay a word and itself."""
        words = ["tailrace", "dlq", "list", f"{self._pipeline}.yaml", "--reason", notice.reason]
        if notice.type != OTHER and len(notice.type) < LONGEST_TYPE:
            words += ["--type", glob.escape(notice.type)]
        return shlex.join(words)


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
