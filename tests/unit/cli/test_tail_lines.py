"""Lines of `tailrace tail` on a terminal."""

from __future__ import annotations

import io
import os
import sys

import pytest

from tailrace.cli import tail
from tailrace.kafka.tail import TailedRecord

SEEN = TailedRecord(
    "shop.orders", 1, 42, 1_700_000_000_123, b"k\x1b", b'{"a":1}' * 40, {"type": "OrderPlaced", "id": "i"}
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(monkeypatch: pytest.MonkeyPatch, seen: TailedRecord, *, letter: bool = False, payload: bool = True) -> str:
    """The line on a terminal of 80 columns."""
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        patch.setattr(tail.shutil, "get_terminal_size", lambda: os.terminal_size((80, 24)))
        tail._print(seen, is_letter=letter, payload=payload)
    return terminal.getvalue()


def test_lines_are_cut_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    line = drawn(monkeypatch, SEEN).rstrip("\n")
    assert len(line) == 80
    assert line.endswith("…")
    assert r' shop.orders[1]@42 OrderPlaced k\x1b i {"a":1}' in line


def test_without_a_payload_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert drawn(monkeypatch, SEEN, payload=False).endswith("OrderPlaced k\\x1b i\n")


def test_dead_letters_are_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    letter = SEEN._replace(headers={"tailrace.reason": "poison_message", "tailrace.explanation": "broken"})
    line = drawn(monkeypatch, letter, letter=True, payload=False)
    assert line.startswith("\x1b[31m")
    assert "DEAD LETTER - k\\x1b - poison_message: broken" in line
