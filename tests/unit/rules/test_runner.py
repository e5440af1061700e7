"""Tests of runner.py: rules in their own process that pass, reject, raise, hang, or end the process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.errors import ConfigError, Reason
from tailrace.event import OutboxEvent
from tailrace.rules import runner as module
from tailrace.rules.runner import RuleRunner

MODULE = r"""
import os, re, signal, time
calls = 0

def check(event):
    word = event.payload["do"]
    if word == "reject":
        return f"{event.id} of {event.key} is wrong"
    if word == "raise":
        raise ValueError("oh")
    if word == "loop":
        while True:
            pass
    if word == "backtrack":  # holds the interpreter's lock
        re.match(r"(a+)+$", "a" * 40 + "b")
    if word == "sleep":
        time.sleep(3600)
    if word == "exit":
        os._exit(7)
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "close":
        os.closerange(0, 100)
        time.sleep(3600)
    if word == "garbage":
        for number in range(3, 10):
            try:
                os.write(number, b"garbage" * 10)
            except OSError:
                pass
    if word == "print":
        print("noise" * 100_000)
        os.write(1, b"noise")
    return None

def headers(event):
    return None if event.headers == {"source": "web"} else f"headers are {event.headers}"
"""


@pytest.fixture
def rules(tmp_path: Path) -> Iterator[RuleRunner]:
    (tmp_path / "rules_of_the_shop.py").write_text(MODULE)
    made = RuleRunner({"Order*": ["rules_of_the_shop:check"]}, limit=0.3, folder=tmp_path)
    yield made
    made.close()


def events(*words: str, kind: str = "OrderPlaced") -> list[OutboxEvent]:
    payloads = [b'{"do": "%s"}' % word.encode() for word in words]
    return [
        OutboxEvent(f"e{at}", kind, "order", b"k", payload, None, f"0/1:{at}", 5, [("source", b"web")])
        for at, payload in enumerate(payloads)
    ]


def outcomes(rules: RuleRunner, *words: str) -> list[Reason | None]:
    found = rules.check(events(*words))
    assert found is not None
    return [None if each is None else each.reason for each in found]


POISON, TIMEOUT, REFUSED = Reason.POISON_MESSAGE, Reason.PROCESSING_TIMEOUT, Reason.PERMANENT_FAILURE


def test_each_event_gets_its_own_verdict(rules: RuleRunner) -> None:
    assert outcomes(rules, "pass", "reject", "raise", "print", "pass") == [None, REFUSED, POISON, None, None]
    (rejected,) = rules.check(events("reject")) or ()
    assert rejected is not None
    assert rejected.explanation.endswith("check rejects the event: e0 of k is wrong")


@pytest.mark.parametrize("word", ["loop", "backtrack"])
def test_a_rule_that_does_not_finish_is_killed(rules: RuleRunner, word: str) -> None:
    assert outcomes(rules, "pass", word, "reject", "pass") == [None, TIMEOUT, REFUSED, None]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("exit", "exit code 7"),
        ("kill", "killed by signal 9"),
        ("close", "it closed the pipe to the connector"),
        ("garbage", "it wrote to the pipe to the connector"),
    ],
)
def test_a_rule_that_breaks_its_process_is_named(
    rules: RuleRunner, word: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_SECONDS", 0.2)
    found = rules.check(events("pass", word, "pass")) or []
    assert [each is None for each in found] == [True, False, True]
    assert found[1] is not None
    assert found[1].reason is POISON
    assert found[1].explanation.endswith(f"check ended its process: {expected}")


def test_a_rule_that_never_finishes_is_suspended_for_a_while(
    rules: RuleRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events are rejected without waiting, and later it is tried again."""
    monkeypatch.setattr(module, "SUSPEND_AFTER", 2)
    now = module.monotonic()
    monkeypatch.setattr(module, "monotonic", lambda: now)
    found = rules.check(events(*["sleep"] * module.SUSPEND_AFTER, *["pass"] * 500)) or []
    assert all(each is not None and each.reason is TIMEOUT for each in found)
    assert ["not tried" in str(each) for each in found] == [False] * module.SUSPEND_AFTER + [True] * 500
    now += module.SUSPEND_SECONDS + 1
    assert outcomes(rules, "pass", "pass") == [None, None]


def test_events_that_finish_in_between_prevent_a_suspension(rules: RuleRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUSPEND_AFTER", 2)
    assert outcomes(rules, *["sleep", "pass"] * 2) == [TIMEOUT, None] * 2


def test_a_killed_process_is_replaced_unnoticed(rules: RuleRunner) -> None:
    rules.start()
    assert rules._process is not None
    os.kill(rules._process.pid, signal.SIGKILL)
    assert outcomes(rules, "pass", "reject") == [None, REFUSED]


def test_waiting_ends_when_the_pipeline_stops(rules: RuleRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_SECONDS", 0.01)
    monkeypatch.setattr(rules, "_limit", 600.0)
    assert rules.check(events("sleep"), going=lambda: False) is None
    monkeypatch.setattr(rules, "_limit", 0.3)
    assert outcomes(rules, "pass") == [None]


def test_large_groups_of_large_events_pass_through_the_pipe(rules: RuleRunner) -> None:
    large = [
        each._replace(payload=b'{"do": "reject", "x": "%s"}' % (b"y" * 10_000)) for each in events(*["pass"] * 999)
    ]
    found = rules.check(large) or []
    assert [each is not None and each.reason is REFUSED for each in found] == [True] * 999


def test_no_process_is_started_for_events_without_rules(rules: RuleRunner) -> None:
    assert rules.check(events("loop", kind="UserCreated")) == [None]
    assert rules._process is None


def test_columns_are_visible_as_headers(tmp_path: Path) -> None:
    (tmp_path / "rules_of_the_shop.py").write_text(MODULE)
    rules = RuleRunner({"*": ["rules_of_the_shop:headers"]}, limit=5, folder=tmp_path)
    try:
        assert outcomes(rules, "pass") == [None]
    finally:
        rules.close()


def test_a_rule_that_cannot_be_loaded_is_an_error_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "rules_of_the_shop.py").write_text(MODULE)
    rules = RuleRunner({"*": ["rules_of_the_shop:calls"]}, limit=5, folder=tmp_path)
    with pytest.raises(ConfigError, match="calls is of type int"):
        rules.start()
    (tmp_path / "ending_rules.py").write_text("import os\nos._exit(9)")
    rules = RuleRunner({"*": ["ending_rules:check"]}, limit=5, folder=tmp_path)
    with pytest.raises(ConfigError, match="exit code 9"):
        rules.start()
