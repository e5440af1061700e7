"""The output of the demo: `Display`, and `PlainDisplay` for streams that are not a terminal.

`live_display` draws the same on a terminal with rich. `display_for` chooses between them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO

from tailrace.testkit.demo.consumer import ReceivedEvent
from tailrace.testkit.demo.report import DemoReport

LINE_SECONDS = 1.0
"""Between two lines of counters in plain output."""
BUSY_SECONDS = 5.0
"""Between two lines about the same long step."""
EVENTS_PER_LINE = 2


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The counters of one pipeline."""

    name: str
    connector: str
    committed: int
    rolled_back: int
    arrived: int
    dead_letters: int
    p50_ms: float
    """Of the last events, including restarts."""


@dataclass(frozen=True, slots=True)
class ProjectionStatus:
    """The counters of a projection."""

    name: str
    state: str
    applied: int


@dataclass(frozen=True, slots=True)
class Frame:
    """Everything that is shown at one moment."""

    elapsed: float
    total: float
    pipelines: Sequence[PipelineStatus]
    projections: Sequence[ProjectionStatus]
    recent: Sequence[ReceivedEvent]


class Display(Protocol):
    """Shows the progress and the result of the demo."""

    def busy(self, text: str) -> None:
        """Shows a long step; called many times a second."""

    def note(self, text: str, *, alarm: bool = False) -> None:
        """Shows an event of the scenario."""

    def frame(self, make: Callable[[], Frame], *, last: bool = False) -> None:
        """Shows the counters; called many times a second. `make` is called only when a new frame is due."""

    def report(self, report: DemoReport) -> None:
        """Shows the verdict."""

    def say(self, lines: Sequence[str]) -> None:
        """Shows text to read and copy."""

    def close(self) -> None:
        """Restores the terminal."""


def display_for(stream: TextIO) -> Display:
    """Returns the display for `stream`."""
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        from tailrace.testkit.demo.live_display import LiveDisplay

        return LiveDisplay(stream)
    return PlainDisplay(stream)


class PlainDisplay:
    """Writes at most a few lines per second, readable in a log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = time.monotonic()
        self._last_frame = 0.0
        self._last_busy = ("", 0.0)
        self._shown: ReceivedEvent | None = None

    def busy(self, text: str) -> None:
        step = text.partition("(")[0].partition(":")[0]
        last_step, when = self._last_busy
        now = time.monotonic()
        if step != last_step or now - when >= BUSY_SECONDS:
            self._last_busy = (step, now)
            self._line(f"… {text}")

    def note(self, text: str, *, alarm: bool = False) -> None:
        self._line(f"{'!!' if alarm else '--'} {text}")

    def frame(self, make: Callable[[], Frame], *, last: bool = False) -> None:
        now = time.monotonic()
        if now - self._last_frame < LINE_SECONDS and not last:
            return
        self._last_frame = now
        frame = make()
        for each in frame.pipelines:
            self._line(
                f"{each.name:<6}  committed {each.committed:>6,}  rolled back {each.rolled_back:>5,}  "
                f"on Kafka {each.arrived:>6,}  dead letters {each.dead_letters:>4,}  "
                f"latency p50 {each.p50_ms:.0f} ms  connector {each.connector}"
            )
        for projection in frame.projections:
            self._line(f"{projection.name}  applied {projection.applied:>6,}  projection {projection.state}")
        if frame.recent and frame.recent[-1] is not self._shown:
            self._shown = frame.recent[-1]
            for event in frame.recent[-EVENTS_PER_LINE:]:
                self._line(f"     {event.position}  {event.key}  {event.type}  {event.text}")

    def report(self, report: DemoReport) -> None:
        sections = report.sections()
        rows = [row for _, part in sections for row in part]
        label = max(len(text) for text in (*(row.label for row in rows), *(title for title, _ in sections))) + 2
        widths = [max(map(len, column)) for column in zip(report.columns, *(row.values for row in rows), strict=True)]

        def cells(values: Sequence[str]) -> str:
            return "  ".join(f"{value:>{width}}" for value, width in zip(values, widths, strict=True))

        heads: Sequence[str] = report.columns
        for title, part in sections:
            self._stream.write(f"\n{title:<{label + 2}}  {cells(heads)}".rstrip() + "\n")
            heads = [""] * len(heads)
            for row in part:
                mark = {None: " ", True: "✓", False: "✗"}[row.good]
                self._stream.write(
                    f"  {mark} {row.label:<{label - 2}}  {cells(row.values)}  {row.remark}".rstrip() + "\n"
                )
        self._stream.write(f"\n{report.meaning()}\n")
        self._stream.flush()

    def say(self, lines: Sequence[str]) -> None:
        self._stream.write("".join(f"{line}\n" for line in lines))
        self._stream.flush()

    def close(self) -> None:
        pass

    def _line(self, text: str) -> None:
        self._stream.write(f"{time.monotonic() - self._began:5.1f}s {text}\n")
        self._stream.flush()
