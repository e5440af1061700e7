"""The process that runs rules for a connector: `python -m tailrace.rules.worker_main PARENT`.

It reads requests from its standard input and answers on its standard output; both are frames, a length and JSON or a
pickle. Rules run here and not in the connector, because Python cannot interrupt a function (a regular expression that
backtracks holds the interpreter's lock): a process can be killed. What rules print is discarded.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import signal
import struct
import sys
from time import monotonic
from typing import IO, Any

import orjson

from tailrace.errors import ConfigError
from tailrace.rules.loading import load
from tailrace.rules.rule import RuleEvent, RuleSet

LENGTH = struct.Struct("<I")
FLUSH_SECONDS = 0.02
"""How long answers are collected; each answer restarts the time limit of the connector."""
_PR_SET_PDEATHSIG = 1


def main() -> None:
    _die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the connector
    requests, answers = _private_pipes()
    settings = json.loads(_frame(requests) or b"{}")
    if settings.get("folder"):
        sys.path.append(settings["folder"])  # last: a file there cannot replace an installed module
    checks: dict[str, list[str]] = settings["checks"]
    try:
        rules = RuleSet(checks, {name: load(name) for names in checks.values() for name in names})
    except ConfigError as error:
        _answer(answers, {"error": [error.what, error.why, error.remedy]})
        return
    _answer(answers, {"ready": True})
    while (request := _frame(requests)) is not None:
        events, one_by_one = pickle.loads(request)  # noqa: S301 - written by the connector
        (_check_one_by_one if one_by_one else _check)(rules, events, answers)


def _check(rules: RuleSet, events: list[tuple[Any, ...]], answers: int) -> None:
    """Answers now and then: the number of checked events, and the verdicts by index."""
    failed: list[list[object]] = []
    last = monotonic()
    for index, event in enumerate(events):
        verdict = rules.check(_event(event))
        if verdict is not None:
            failed.append([index, *verdict])
        now = monotonic()
        if now - last > FLUSH_SECONDS:
            _answer(answers, {"done": index + 1, "failed": failed})
            failed, last = [], now
    _answer(answers, {"done": len(events), "failed": failed})


def _check_one_by_one(rules: RuleSet, events: list[tuple[Any, ...]], answers: int) -> None:
    """The same with an answer before each rule: so the connector knows which rule does not finish."""
    for index, event in enumerate(events):
        verdict = rules.check(_event(event), lambda name: _answer(answers, {"rule": name}))
        _answer(answers, {"done": index + 1, "failed": [] if verdict is None else [[index, *verdict]]})


def _event(parts: tuple[Any, ...]) -> RuleEvent:
    id_, type_name, aggregate, key, raw, version, headers = parts
    try:
        payload = None if raw is None else orjson.loads(raw)
    except ValueError:  # not JSON
        payload = None
    named = {name: _text(value) for name, value in headers if value is not None}
    return RuleEvent(id_, type_name, aggregate, None if key is None else _text(key), payload, version, named, raw)


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def _private_pipes() -> tuple[IO[bytes], int]:
    """Moves both pipes away from the standard streams, which rules may use."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    return requests, answers


def _frame(requests: IO[bytes]) -> bytes | None:
    """Returns the next request; None if the connector has ended."""
    head = requests.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    size = LENGTH.unpack(head)[0]
    body = requests.read(size)
    return body if len(body) == size else None


def _answer(answers: int, content: dict[str, object]) -> None:
    body = json.dumps(content).encode()
    data = memoryview(LENGTH.pack(len(body)) + body)
    while data:
        data = data[os.write(answers, data) :]


def _die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when the connector ends, even while a rule loops. Linux only."""
    set_option = getattr(ctypes.CDLL(None), "prctl", None)
    if set_option is not None:
        set_option(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(0)


if __name__ == "__main__":
    main()
