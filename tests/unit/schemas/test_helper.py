"""Checking with a helper: the same verdicts as without, whatever the payloads and whatever becomes of the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import orjson
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.errors import Rejected
from tailrace.event import OutboxEvent
from tailrace.schemas import helper as helping
from tailrace.schemas.avro.contract import AvroContract
from tailrace.schemas.checking import UNREAD, Checker, Verdict
from tailrace.schemas.contracts import Written
from tailrace.schemas.folder import load_folder
from tailrace.schemas.helper import BLOCK_BYTES, HelpedChecker, Helper
from tailrace.stack import wait_until

ORDER = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "string", "pattern": "^o-"}, "to": {"$ref": "../Address/1.json#/$defs/city"}},
}
ADDRESS = {"$defs": {"city": {"type": "string", "maxLength": 5}}}
USER = {"type": "record", "name": "User", "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "long"}]}
HOLDER = {"type": "record", "name": "Holder", "fields": [{"name": "user", "type": "User"}]}
PAYLOADS: dict[str, list[bytes]] = {
    "Order": [
        b'{"id": "o-1", "to": "Oslo"}', b'{"id": "o-1", "to": "Helsinki"}', b'{"id": 1}', b'{"id": "o-1', b"", b"NaN",
        b'{"id": "o-\\u0000"}', b'{"id": "o-1", "id": "o-2"}', b'{"id": "o-1", "n": 123456789012345678901234}',
        b"[" * 300 + b"]" * 300, b'{"id": "o-' + b"x" * BLOCK_BYTES + b'"}', b'{"id": "o-' + b"y" * 9000 + b'"}',
    ],
    "User": [b'{"id": "u", "n": 5}', b'{"id": "u", "n": 5.5}', b'{"id": "u"}', b'{"id": "\\u0000", "n": 1}', b"{"],
    "Holder": [b'{"user": {"id": "u", "n": 5}}', b'{"user": {}}'],
    "Nobody": [b"{}"],
}  # fmt: skip
EVENTS = st.lists(
    st.sampled_from([(name, payload) for name, payloads in PAYLOADS.items() for payload in payloads])
    | st.tuples(st.just("Order"), st.binary(max_size=20)),
    max_size=300,
)


def event(name: str, payload: bytes | None, *, keys_unique: bool = False) -> OutboxEvent:
    return OutboxEvent("e", name, "order", b"k", payload, None, "0/1:0", 1, [], keys_unique)


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Checker:
    folder = tmp_path_factory.mktemp("schemas")
    for name, document in {
        "Order/1.json": ORDER,
        "Address/1.json": ADDRESS,
        "User.avsc": USER,
        "Holder.avsc": HOLDER,
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(orjson.dumps(document))
    return Checker(load_folder(folder), max_bytes=1_000_000)


class Helped:
    """A helper that has started, and what it warned of."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker
        self.warnings: list[str] = []
        self.helper = Helper(self.warnings.append)
        self.helped = HelpedChecker(checker, self.helper)
        assert not self.helped.ready(), "the first time it is only sent for"
        wait_until(self.helped.ready, 30, what="the helper")

    @property
    def pid(self) -> int:
        assert self.helper._process is not None
        return self.helper._process.pid

    def told(self, events: list[OutboxEvent]) -> list[tuple[object, ...]]:
        return [
            _comparable(verdict, self.checker) for verdict in self.helped.check_all([(each, "t") for each in events])
        ]

    def alone(self, events: list[OutboxEvent]) -> list[tuple[object, ...]]:
        verdicts: list[Verdict] = []
        for each in events:
            try:
                verdicts.append(self.checker.check(each, "t"))
            except Rejected as rejected:
                verdicts.append(rejected)
        return [_comparable(verdict, self.checker) for verdict in verdicts]


def _comparable(verdict: Verdict, checker: Checker) -> tuple[object, ...]:
    """What becomes of the event: the words of its letter, or its contract and what is written of it."""
    if isinstance(verdict, Rejected):
        return (verdict.reason, str(verdict))
    value, contract = verdict
    return (contract, contract.encode(value) if isinstance(contract, AvroContract) else None)


@pytest.fixture
def helped(checker: Checker) -> Iterator[Helped]:
    made = Helped(checker)
    yield made
    made.helper.close()


@pytest.fixture(scope="module")
def lasting(checker: Checker) -> Iterator[Helped]:
    made = Helped(checker)
    yield made
    made.helper.close()
    assert made.warnings == []


@given(EVENTS, st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_the_same_verdicts_as_alone(lasting: Helped, told: list[tuple[str, bytes]], keys_unique: bool) -> None:
    events = [event(name, payload, keys_unique=keys_unique) for name, payload in told]
    assert lasting.told(events) == lasting.alone(events)


def test_the_helper_does_its_part(lasting: Helped, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what obeys: what it accepts is not looked at again, and comes as it is written."""
    looked_at: list[OutboxEvent] = []
    judge = Checker.judge
    monkeypatch.setattr(
        Checker, "judge", lambda self, each, contract: looked_at.append(each) or judge(self, each, contract)
    )  # type: ignore[func-returns-value]
    events = [event("User", b'{"id": "u%d", "n": 5}' % number) for number in range(1000)]
    verdicts = lasting.helped.check_all([(each, "t") for each in events])
    written = [verdict for verdict in verdicts if isinstance(verdict, tuple) and isinstance(verdict[0], Written)]
    assert len(written) + len(looked_at) == 1000
    assert len(written) >= 128, "two blocks at least"


def test_what_has_no_payload_or_no_schema_is_not_sent(lasting: Helped) -> None:
    assert lasting.helped.check_all([(event("Order", None), "t")]) == [UNREAD]
    assert "no schema" in str(lasting.helped.check_all([(event("Nobody", b"{}"), "t")])[0])


MANY_EVENTS = [event("Order", PAYLOADS["Order"][number % 8]) for number in range(600)]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=lambda how: how.name)
def test_a_helper_that_is_gone_is_done_without(
    helped: Helped, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = helped.alone(MANY_EVENTS)
    assert helped.told(MANY_EVENTS) == expected
    assert helped.helper._channel is not None
    helped.helper._channel.settimeout(0.3)
    asked = Helper.ask

    def ask(self: Helper, jobs: Any) -> None:
        """It has got something to do when it happens."""
        asked(self, jobs)
        os.kill(helped.pid, how)

    monkeypatch.setattr(Helper, "ask", ask)
    assert helped.told(MANY_EVENTS) == expected
    assert len(helped.warnings) == 1
    assert "goes on without it" in helped.warnings[0]
    assert not helped.helped.ready()
    assert not psutil.pid_exists(helped.pid)


def test_a_helper_that_cannot_be_started_is_done_without(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helping.sys, "executable", "/nowhere/python")  # type: ignore[attr-defined]
    warnings: list[str] = []
    helper = Helper(warnings.append)
    assert not helper.ready()
    assert not helper.ready()
    assert len(warnings) == 1


def test_a_helper_that_ends_at_once_is_done_without(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helping.sys, "executable", "/bin/false")  # type: ignore[attr-defined]
    warnings: list[str] = []
    helper = Helper(warnings.append)
    wait_until(lambda: not helper.ready() and warnings, 30, what="its end")
    assert not helper.ready()
    assert len(warnings) == 1


OWNER = """
import signal, sys
from tailrace.schemas.helper import Helper
helper = Helper(print)
while not helper.ready():
    pass
print(helper._process.pid, flush=True)
signal.pause()
"""


def test_it_ends_with_its_owner() -> None:
    """Whatever the owner dies of, the channel is closed then."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert psutil.pid_exists(pid)
        owner.kill()
    wait_until(
        lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, what="its end"
    )
