"""The displays of the demo: a few plain lines, or a live display on a terminal."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from tailrace.testkit.demo import display, live_display
from tailrace.testkit.demo.consumer import Latency, ReceivedEvent
from tailrace.testkit.demo.process import Downtime
from tailrace.testkit.demo.report import DemoReport, ProjectionResult, Result
from tailrace.testkit.oracle import OracleVerdict, check_projection

EVENTS = [
    ReceivedEvent("shop.orders/0@1", "order-1", "OrderPlaced", "revision 1, 9.5 EUR", False, 12.0, 1.0),
    ReceivedEvent("users.dead-letters/0@0", "user-2", "UserRegistered", "schema validation failed", True, 9.0, 2.0),
]
PIPELINES = [
    display.PipelineStatus("orders", "running", 1200, 30, 1100, 20, 11.0),
    display.PipelineStatus("users", "restarting", 900, 31, 800, 19, 12.0),
]
PROJECTIONS = [display.ProjectionStatus("order_summary", "running", 1050)]
FRAME = display.Frame(1.0, 15.0, PIPELINES, PROJECTIONS, EVENTS)
LATENCY = Latency(9, 1, 8, 20, 1400)
ORDERS = Result("orders", "Postgres", OracleVerdict(committed=1120, published=1100), LATENCY, [Downtime(0, 900)])
USERS = Result("users", "MongoDB", OracleVerdict(committed=80, published=70), LATENCY, [Downtime(0, 1800)])
SUMMARY = ProjectionResult("order_summary", check_projection({"a": ["a1"]}, {"a": ["a1"]}), [Downtime(0, 2000)])
REPORT = DemoReport([ORDERS, USERS], [SUMMARY], 7, 15.0)


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(display, "time", clock)
    return clock


def test_plain_lines_are_limited(clock: Clock) -> None:
    out = io.StringIO()
    plain = display.display_for(out)
    made = []

    def make() -> display.Frame:
        made.append(clock.now)
        return FRAME

    for _ in range(100):
        plain.frame(make)
        clock.now += 0.03
    assert len(made) == 3
    lines = out.getvalue().splitlines()
    # The events are shown once: they did not change.
    assert len(lines) == 3 * (len(PIPELINES) + len(PROJECTIONS)) + 2
    assert "orders  committed  1,200" in lines[0]
    assert "users   committed    900" in lines[1]
    assert lines[1].endswith("connector restarting")
    assert lines[2].endswith("order_summary  applied  1,050  projection running")
    assert "order-1  OrderPlaced  revision 1, 9.5 EUR" in lines[3]


def test_a_long_step_is_shown_once_and_then_every_few_seconds(clock: Clock) -> None:
    out = io.StringIO()
    plain = display.display_for(out)
    for second in range(12):
        plain.busy(f"fetching Kafka (43 MB, once): {second} of 43 MB ({second} s)")
        clock.now += 1
    plain.busy("starting Postgres 16 (12 s)")
    assert [line.partition("… ")[2] for line in out.getvalue().splitlines()] == [
        "fetching Kafka (43 MB, once): 0 of 43 MB (0 s)",
        "fetching Kafka (43 MB, once): 5 of 43 MB (5 s)",
        "fetching Kafka (43 MB, once): 10 of 43 MB (10 s)",
        "starting Postgres 16 (12 s)",
    ]


def test_plain_verdict() -> None:
    out = io.StringIO()
    plain = display.display_for(out)
    plain.note("connector killed (SIGKILL)", alarm=True)
    plain.report(REPORT)
    plain.say(["copy me"])
    plain.close()
    text = out.getvalue()
    assert "!! connector killed (SIGKILL)" in text
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("What happened"))
    committed = next(line for line in lines if "  committed" in line)
    missing = next(line for line in lines if "missing" in line)
    for column, value in (("Postgres", "1,120"), ("MongoDB", "80"), ("total", "1,200")):
        end = head.index(column) + len(column)
        assert committed[:end].endswith(f" {value}")
        assert missing[:end].endswith(" 0")
    assert missing.startswith("  ✓ missing ")
    (summary,) = (line for line in lines if "order_summary " in line and "✓" in line)
    assert summary.endswith("applied, of 1 on the topic: missing 0, twice 0, phantom 0, out of order 0; killed 1×")
    assert text.endswith(f"\n\n{REPORT.meaning()}\ncopy me\n")


def test_the_live_display_shows_the_same() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    drawn = live_display.LiveDisplay(out)
    drawn.busy("starting Kafka")
    drawn.note("connector killed (SIGKILL)", alarm=True)
    drawn.frame(lambda: FRAME, last=True)
    drawn.report(REPORT)
    drawn.say(["copy [me]"])
    drawn.close()
    for text in (
        "starting Kafka",
        "connector killed (SIGKILL)",
        "user-2",
        "restarting",
        "MongoDB",
        "1,200",
        "1,050",
        "order_summary",
        "killed 1×",
        "Verdict",
        "copy [me]",
    ):
        assert text in out.getvalue()


def test_rich_is_imported_for_terminals_only() -> None:
    code = """
import io, sys
from tailrace.testkit.demo.display import display_for
import tailrace.cli.demo
display_for(io.StringIO())
sys.exit("rich" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
