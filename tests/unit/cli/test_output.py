"""Tables and JSON: plain without a terminal, and never with a secret."""

from __future__ import annotations

import io
import json

import pytest

from tailrace.cli.output import emit_json, has_colour, print_error, say, table
from tailrace.config.secrets import remember
from tailrace.errors import SlotMissing

SECRET = "output-s3cret-value"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    remember(SECRET)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_a_plain_table_is_aligned() -> None:
    out = io.StringIO()
    table("Topics", [{"name": "orders", "count": 7}, {"name": SECRET, "count": None}], out)
    assert out.getvalue().splitlines() == ["Topics", "name    count", "orders  7", "***     -"]


def test_an_empty_table_prints_none() -> None:
    out = io.StringIO()
    table("Topics", [], out)
    assert out.getvalue() == "Topics: none\n"


def test_a_table_on_a_terminal_shows_values_as_they_are() -> None:
    out = Terminal()
    table("Topics", [{"name": "[red]x[/red]", "ok": True}, {"name": SECRET, "ok": False}], out)
    assert "[red]x[/red]" in out.getvalue()
    assert "yes" in out.getvalue()
    assert SECRET not in out.getvalue()


def test_json_is_one_line_and_masked() -> None:
    out = io.StringIO()
    emit_json({"a": [1, True, None, SECRET], 2: {"é": f"x{SECRET}"}}, out)
    assert out.getvalue().count("\n") == 1
    assert json.loads(out.getvalue()) == {"a": [1, True, None, "***"], "2": {"é": "x***"}}


def test_say_is_masked(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"with {SECRET}")
    assert capsys.readouterr().out == "with ***\n"


def test_lines_of_several_threads_do_not_mix() -> None:
    writes: list[str] = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    say("a line", Stream())
    assert writes == ["a line\n"]


def test_colour_is_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_colour(Terminal())
    assert not has_colour(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not has_colour(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colour(Terminal())


def test_errors_plain_coloured_and_as_json() -> None:
    error = SlotMissing(f"no slot {SECRET}", why="it was dropped", remedy="make it")
    plain, coloured, encoded = io.StringIO(), Terminal(), io.StringIO()
    print_error(error, as_json=False, stream=plain)
    print_error(error, as_json=False, stream=coloured)
    print_error(error, as_json=True, stream=encoded)
    assert plain.getvalue() == "SlotMissing: no slot ***\n  why:    it was dropped\n  remedy: make it\n"
    assert "\x1b[" in coloured.getvalue()
    assert json.loads(encoded.getvalue()) == {
        "error": "SlotMissing",
        "what": "no slot ***",
        "why": "it was dropped",
        "remedy": "make it",
        "exit_code": 3,
    }
