"""Runs rules in a separate process, with a time limit that holds: a process that exceeds it is killed.

Events are sent in groups, so a rule costs little more than its own time. If the process does not answer in time or
ends, it is started again and gets the rest one by one: so the event and the rule that are the cause are found. A rule
that fails to finish several times in a row is suspended for a while, because each time costs the pipeline two limits;
its events are rejected without trying.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import pickle
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import IO, Any

from tailrace.errors import ConfigError, Rejected
from tailrace.event import OutboxEvent
from tailrace.rules.rule import RulePatterns, Verdict
from tailrace.rules.worker_main import FLUSH_SECONDS, LENGTH

START_SECONDS = 30.0
"""How long importing the modules of the rules may take."""
SLICES = 10
"""The limit is waited for in so many parts: then a pause of the whole machine does not use it up."""
SLACK_SECONDS = 0.1
ASK_SECONDS = 1.0
MAX_ANSWER = 64 * 1024 * 1024
SUSPEND_AFTER = 3
SUSPEND_SECONDS = 60.0


class _Stopped(Exception):
    """The process did not answer in time (`outcome` is timed_out) or ended (crashed)."""

    def __init__(self, outcome: str, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome
        self.text = text


class _Interrupted(Exception):
    """The caller does not want to wait any longer."""


class RuleRunner:
    """The rules of a pipeline. Belongs to one thread."""

    def __init__(self, checks: Mapping[str, Sequence[str]], *, limit: float, folder: Path | None = None) -> None:
        """`checks` maps patterns of event types to names of rules; `limit` is in seconds, for one rule and event."""
        self._checks = {pattern: list(names) for pattern, names in checks.items()}
        self._limit = limit
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._rule = ""
        self._going: Callable[[], bool] = lambda: True
        self._slow: dict[str, int] = {}
        self._suspended: dict[str, float] = {}
        self.of_type = RulePatterns(checks).of_type
        self._asked_at = 0.0

    def start(self) -> None:
        """Starts the process, which loads the rules. Raises ConfigError if one cannot be loaded."""
        if self._process is not None:
            return
        atexit.register(self.close)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tailrace.rules.worker_main", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        for pipe in (self._process.stdin, self._process.stdout):
            os.set_blocking(_fileno(pipe), False)
        folder = None if self._folder is None else str(self._folder.absolute())
        try:
            self._send(json.dumps({"checks": self._checks, "folder": folder}).encode())
            answer = self._receive(START_SECONDS)
        except _Stopped as stopped:
            self.close()
            raise ConfigError(
                f"the rules cannot be loaded: {stopped.text}",
                why="Importing their modules takes too long, or ends the process.",
                remedy="Correct the modules under rules.checks: importing one must not do any work.",
            ) from None
        if "error" in answer:
            self.close()
            what, why, remedy = answer["error"]
            raise ConfigError(what, why=why, remedy=remedy)

    def close(self) -> None:
        """Ends the process. It is started again when it is needed."""
        process, self._process, self._received = self._process, None, b""
        if process is None:
            return
        atexit.unregister(self.close)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def check(
        self, events: Sequence[OutboxEvent], going: Callable[[], bool] = lambda: True
    ) -> list[Rejected | None] | None:
        """Returns for each event why it does not pass, or None.

        `going` is called about every second while it waits; if it returns False, the result is None.
        """
        self._going, self._asked_at = going, monotonic()
        verdicts: list[Verdict | None] = [None] * len(events)
        left = [index for index, event in enumerate(events) if self.of_type(event.type)]
        one_by_one = False
        while left:
            left = [index for index in left if not self._is_suspended(events[index], index, verdicts)]
            if not left:
                break
            try:
                self.start()
                self._exchange(events, left, verdicts, one_by_one=one_by_one)
            except _Stopped as stopped:
                self.close()
                if one_by_one:
                    verdicts[left.pop(0)] = self._culprit(stopped)
                self._rule = ""
                one_by_one = not one_by_one
            except _Interrupted:
                self.close()
                return None
            except BaseException:
                self.close()  # an answer may be under way
                raise
        return [None if verdict is None else verdict.rejection() for verdict in verdicts]

    def _exchange(
        self, events: Sequence[OutboxEvent], left: list[int], verdicts: list[Verdict | None], *, one_by_one: bool
    ) -> None:
        """Has the events of these indexes checked, and removes those that are done from `left`."""
        sent = list(left)
        # A group of events is answered now and then, behind an event; one by one, each rule is announced.
        rules = 1 if one_by_one else max(len(self.of_type(events[index].type)) for index in left)
        seconds = self._limit * rules + FLUSH_SECONDS + SLACK_SECONDS
        self._send(pickle.dumps(([_plain(events[index]) for index in sent], one_by_one)))
        while left:
            self._rule = self._rule or self.of_type(events[left[0]].type)[0]
            answer = self._receive(seconds)
            if "rule" in answer:
                self._rule = str(answer["rule"])
                continue
            self._rule = ""
            try:
                for at, outcome, rule, text in answer["failed"]:
                    verdicts[sent[at]] = Verdict(outcome, rule, text)
                done = int(answer["done"]) - (len(sent) - len(left))
            except (LookupError, TypeError, ValueError):
                raise _unreadable() from None
            if self._slow:
                for name in {name for index in left[:done] for name in self.of_type(events[index].type)}:
                    self._slow.pop(name, None)
            del left[:done]

    def _culprit(self, stopped: _Stopped) -> Verdict:
        if stopped.outcome == "crashed":
            return Verdict("crashed", self._rule, stopped.text)
        self._slow[self._rule] = count = self._slow.get(self._rule, 0) + 1
        if count >= SUSPEND_AFTER:
            self._suspended[self._rule] = monotonic() + SUSPEND_SECONDS
        return Verdict("timed_out", self._rule, f"its limit is {self._limit:g} s")

    def _is_suspended(self, event: OutboxEvent, index: int, verdicts: list[Verdict | None]) -> bool:
        for name in self.of_type(event.type) if self._suspended else ():
            if self._suspended.get(name, 0.0) > monotonic():
                text = f"it was not tried, because it did not finish for the {SUSPEND_AFTER} events before"
                verdicts[index] = Verdict("timed_out", name, text)
                return True
        return False

    def _send(self, body: bytes) -> None:
        data = memoryview(LENGTH.pack(len(body)) + body)
        target = _fileno(self._process.stdin if self._process else None)
        while data:
            self._wait(START_SECONDS, target, select.POLLOUT)
            try:
                data = data[os.write(target, data) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise self._ended() from None

    def _receive(self, seconds: float) -> dict[str, Any]:
        source = _fileno(self._process.stdout if self._process else None)
        while (size := self._complete()) is None:
            self._wait(seconds, source, select.POLLIN)
            try:
                found = os.read(source, 1 << 16)
            except BlockingIOError:
                continue
            if not found:
                raise self._ended()
            self._received += found
        body, self._received = self._received[LENGTH.size : size], self._received[size:]
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise _unreadable()
        return answer

    def _complete(self) -> int | None:
        """Returns the size of the first frame, if it is complete."""
        if len(self._received) < LENGTH.size:
            return None
        size = LENGTH.size + int(LENGTH.unpack_from(self._received)[0])
        if size > MAX_ANSWER:
            raise _unreadable()
        return size if len(self._received) >= size else None

    def _wait(self, seconds: float, pipe: int, event: int) -> None:
        """Waits for a pipe; raises _Stopped after `seconds`, and _Interrupted if it is not to wait any longer."""
        poll = select.poll()
        poll.register(pipe, event)
        part = min(seconds / SLICES, ASK_SECONDS)
        for _ in range(math.ceil(seconds / part)):
            found = poll.poll(part * 1000)
            if monotonic() - self._asked_at >= ASK_SECONDS:
                if not self._going():
                    raise _Interrupted
                self._asked_at = monotonic()
            if found:
                return
        raise _Stopped("timed_out", f"no answer within {seconds:.1f} s")

    def _ended(self) -> _Stopped:
        try:
            code = self._process.wait(ASK_SECONDS) if self._process else 0
        except subprocess.TimeoutExpired:
            return _Stopped("crashed", "it closed the pipe to the connector")
        return _Stopped("crashed", f"killed by signal {-code}" if code < 0 else f"exit code {code}")


def _unreadable() -> _Stopped:
    return _Stopped("crashed", "it wrote to the pipe to the connector")


def _plain(event: OutboxEvent) -> tuple[Any, ...]:
    return (event.id, event.type, event.aggregate, event.key, event.payload, event.version, event.extra)


def _fileno(pipe: IO[bytes] | None) -> int:
    if pipe is None:
        raise _Stopped("crashed", "it is not running")
    return pipe.fileno()
