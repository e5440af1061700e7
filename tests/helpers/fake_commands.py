"""Commands for tests of jobs: they run in processes of the worker, so they are functions of a module."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from tailrace.cli import EXIT_INTERRUPTED


def run(words: list[str]) -> int:
    """Runs the command that the first word names."""
    return {
        "status": _status,
        "check": _verdict,
        "position": _error,
        "verify": _progress,
        "recover": _stubborn,
        "dlq": _lines,
        "topics": _endless_output,
        "route": _not_json,
        "replay": _files,
        "trace": _sleep,
    }[words[0]](words)


def _say(value: object) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")
    sys.stdout.flush()


def _status(words: list[str]) -> int:
    _say(
        {
            "words": words,
            "folder": [each.name for each in Path().iterdir()],
            "input": sys.stdin.read(),
            "session": os.getsid(0) == os.getpid(),
        }
    )
    return 0


def _verdict(_: list[str]) -> int:
    _say({"ok": False})
    return 1


def _error(_: list[str]) -> int:
    error = {"error": "ConfigError", "what": "it is wrong", "why": "because", "remedy": "Fix it.", "exit_code": 2}
    sys.stderr.write(f"a note\n{json.dumps(error)}\n")
    return 2


def _progress(_: list[str]) -> int:
    try:
        sys.stderr.write('{"progress": 0.5, "text": "half"}\n')
        time.sleep(600)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def _stubborn(_: list[str]) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stderr.write('{"progress": 0.1, "text": "deaf"}\n')
    time.sleep(600)
    return 0


def _lines(_: list[str]) -> int:
    for number in range(3):
        _say({"number": number})
    return 0


def _endless_output(_: list[str]) -> int:
    text = "x" * 100_000
    while True:
        sys.stdout.write(text)


def _not_json(_: list[str]) -> int:
    sys.stdout.write("hello\n")
    return 0


def _files(words: list[str]) -> int:
    if words[1] == "plan":
        Path("orders.replay-abc.json").write_text('{"id": "abc"}')
        _say({"id": "abc", "pipeline": "orders", "digest": "d", "file": "orders.replay-abc.json"})
    else:
        _say({"plan": json.loads(Path(words[-1]).read_text())})
    return 0


def _sleep(_: list[str]) -> int:
    time.sleep(600)
    return 0
