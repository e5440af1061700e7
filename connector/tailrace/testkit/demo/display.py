"""What is seen of the play: a `Show`, and the plain one, whose lines stay readable in a log.

On a terminal `live_display` draws the same with rich; which of the two is used is decided by `on`.
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
"""Between two looks at the counters in plain output."""
BUSY_SECONDS = 5.0
"""Between two lines about the same long step."""
EVENTS_PER_LINE = 2


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """How one pipeline stands."""

    name: str
    connector: str
    committed: int
    rolled_back: int
    arrived: int
    letters: int
    p50_ms: float
    """Of the last events, restarts included."""


@dataclass(frozen=True, slots=True)
class ProjectionStatus:
    """How a projection stands."""

    name: str
    state: str
    applied: int


@dataclass(frozen=True, slots=True)
class Frame:
    """Everything the live view shows at one moment."""

    elapsed: float
    total: float
    standings: Sequence[PipelineStatus]
    projections: Sequence[ProjectionStatus]
    recent: Sequence[ReceivedEvent]


class Display(Protocol):
    def busy(self, text: str) -> None:
        """A long step goes on; called many times a second."""

    def note(self, text: str, *, alarm: bool = False) -> None:
        """Something happened that everybody should see."""

    def frame(self, make: Callable[[], Frame], *, last: bool = False) -> None:
        """How things stand; called many times a second, and `make` only when it is time to look."""

    def report(self, report: DemoReport) -> None:
        """The verdict."""

    def say(self, lines: Sequence[str]) -> None:
        """Text to be read and copied."""

    def close(self) -> None:
        """Puts the terminal back in order."""


def display_for(stream: TextIO) -> Display:
    """The show that suits `stream`."""
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        from tailrace.testkit.demo.live_display import LiveDisplay

        return LiveDisplay(stream)
    return PlainDisplay(stream)


class PlainDisplay:
    """At most a few lines a second."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = time.monotonic()
        self._last_frame = 0.0
        self._last_busy = ("", 0.0)
        self._shown: ReceivedEvent | None = None

    def busy(self, text: str) -> None:
        step = text.partition("(")[0].partition(":")[0]
        told, when = self._last_busy
        now = time.monotonic()
        if step != told or now - when >= BUSY_SECONDS:
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
        for each in frame.standings:
            self._line(
                f"{each.name:<6}  committed {each.committed:>6,}  rolled back {each.rolled_back:>5,}  "
                f"on Kafka {each.arrived:>6,}  dead letters {each.letters:>4,}  "
                f"latency p50 {each.p50_ms:.0f} ms  connector {each.connector}"
            )
        for projection in frame.projections:
            self._line(f"{projection.name}  applied {projection.applied:>6,}  projection {projection.state}")
        if frame.recent and frame.recent[-1] is not self._shown:
            self._shown = frame.recent[-1]
            for arrival in frame.recent[-EVENTS_PER_LINE:]:
                self._line(f"     {arrival.place}  {arrival.key}  {arrival.type}  {arrival.text}")

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
