"""The display on a terminal: scrolling notes above a panel with counters and the latest events."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tailrace.testkit.demo.display import Frame
from tailrace.testkit.demo.report import DemoReport, seconds

FRAME_SECONDS = 0.15
"""Drawing takes processor time from the writers and consumers in this process."""
WIDEST = 100
COUNTERS = ("committed", "rolled back", "on Kafka", "dead letters", "latency p50", "connector")
STATES = {"running": "bold green", "restarting": "bold red"}


class LiveDisplay:
    """Draws on `stream`, a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False)
        self._console.width = min(self._console.width, WIDEST)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._live.start()
        self._spinner = Spinner("dots")
        self._began = time.monotonic()
        self._drawn = 0.0

    def busy(self, text: str) -> None:
        self._spinner.update(text=Text(text, overflow="ellipsis", no_wrap=True))
        self._draw(self._spinner)

    def note(self, text: str, *, alarm: bool = False) -> None:
        when = Text(f"{time.monotonic() - self._began:5.1f}s ", style="dim")
        mark = Text("✗ " if alarm else "● ", style="bold red" if alarm else "cyan")
        self._console.print(when + mark + Text(text, style="bold red" if alarm else ""))

    def frame(self, make: Callable[[], Frame], *, last: bool = False) -> None:
        if last or time.monotonic() - self._drawn >= FRAME_SECONDS:
            self._draw(_panel(make()))

    def report(self, report: DemoReport) -> None:
        self._live.update(Text(""), refresh=True)
        self._live.stop()
        table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
        table.add_column(width=1)
        table.add_column(no_wrap=True)
        for _ in report.columns:
            table.add_column(justify="right", no_wrap=True)
        table.add_column(style="dim")
        heads = [Text(head, style="dim") for head in report.columns]
        for number, (title, rows) in enumerate(report.sections()):
            if number:
                table.add_row()
            table.add_row("", Text(title, style="bold cyan"), *heads)
            heads = []
            for row in rows:
                style = {None: "", True: "green", False: "bold red"}[row.good]
                mark = {None: "", True: "✓", False: "✗"}[row.good]
                values = [Text(value, style=style or "bold") for value in row.values]
                table.add_row(Text(mark, style=style), row.label, *values, row.remark)
        colour = "green" if report.ok else "red"
        meaning = Text(report.meaning(), style=f"bold {colour}")
        self._console.print(Panel(Group(table, "", meaning), title="Verdict", border_style=colour, padding=(0, 1)))

    def say(self, lines: Sequence[str]) -> None:
        for line in lines:
            # Not wrapped: these lines are for copying.
            self._console.print(Text(line), soft_wrap=True)

    def close(self) -> None:
        self._live.stop()

    def _draw(self, what: RenderableType) -> None:
        self._drawn = time.monotonic()
        self._live.update(what, refresh=True)


def _panel(frame: Frame) -> Panel:
    done = min(frame.elapsed, frame.total)
    clock = Table.grid(expand=True, padding=(0, 1))
    clock.add_column(ratio=1)
    clock.add_column(justify="right", no_wrap=True)
    clock.add_row(ProgressBar(total=frame.total, completed=done), f"{done:.0f} of {frame.total:.0f} s")
    counters = Table.grid(expand=True, padding=(0, 1))
    counters.add_column(no_wrap=True)
    for _ in COUNTERS:
        counters.add_column(justify="right", ratio=1, no_wrap=True)
    counters.add_row("", *(Text(label, style="dim") for label in COUNTERS))
    for each in frame.pipelines:
        counters.add_row(
            Text(each.name, style="bold cyan"),
            *(Text(f"{count:,}", style="bold") for count in (each.committed, each.rolled_back, each.arrived)),
            Text(f"{each.dead_letters:,}", style="bold"),
            Text(seconds(each.p50_ms), style="bold"),
            Text(each.connector, style=STATES.get(each.connector, "")),
        )
    projections = [
        Text.assemble(
            (each.name, "bold cyan"), " applied ", (f"{each.applied:,}", "bold"), " events of the orders, projection ",
            (each.state, STATES.get(each.state, "")),
        )
        for each in frame.projections
    ]  # fmt: skip
    events = Table.grid(expand=True, padding=(0, 1))
    events.add_column(style="dim", no_wrap=True)
    events.add_column(no_wrap=True)
    events.add_column(no_wrap=True)
    events.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    events.add_column(justify="right", no_wrap=True)
    for event in frame.recent:
        style = "yellow" if event.dead_letter else ""
        events.add_row(
            event.position,
            Text(event.key),
            Text(event.type, style=style or "cyan"),
            Text(event.text, style=style),
            Text(seconds(event.millis), style="dim"),
        )
    states = [*(each.connector for each in frame.pipelines), *(each.state for each in frame.projections)]
    return Panel(
        Group(clock, "", counters, *projections, "", events),
        title="Outboxes → Kafka → projection" if projections else "Outboxes → Kafka",
        border_style="red" if "restarting" in states else "cyan",
        padding=(0, 1),
    )
