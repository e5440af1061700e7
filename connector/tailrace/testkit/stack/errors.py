"""What goes wrong with servers on this machine: one error, with the server's own last words.

A server that does not start says why in its log, not in its exit code. So every failure of a process carries
the tail of that log in `why`; whoever reads the error needs no second look elsewhere.
"""

from __future__ import annotations

from pathlib import Path

from tailrace.errors import TailraceError

TAIL_LINES = 25


class StackError(TailraceError):
    """A server of the local stack could not be started, reached or handled as asked."""


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a server's log, or a word on why there are none."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as exc:
        return f"(no log: {exc.strerror})"
    return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"
