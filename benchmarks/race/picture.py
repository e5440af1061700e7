"""Draws docs/race.svg from a stored result of `make race`: bars of Tailrace, Debezium and the bare reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from benchmarks.race.rows import Row

DRAINED = "100 a transaction"
DATABASES = {"postgres": "Postgres", "mongo": "MongoDB"}
WIDTH, NAMES, NUMBER, BAR, GAP = 400, 150, 78, 20, 14


class Panel(NamedTuple):
    """A diagram of one measure: where it is stored and what it is called."""

    title: str
    phase: str
    case: str
    measure: str


PANELS = (
    Panel("Events per second, whole drain", "drain", DRAINED, "events_per_s"),
    Panel("Events per second, after warm-up", "drain", DRAINED, "warm_events_per_s"),
    Panel("CPU per event, µs", "drain", DRAINED, "cpu_us_per_event"),
    Panel("Peak memory, MB", "drain", DRAINED, "peak_mb"),
    Panel("Process start to first event, s", "start", "process start to first event", "first_event_s"),
    Panel("Latency at 1,000 transactions/s, p99, ms", "latency", "1,000 transactions/s", "p99_ms"),
)
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#57606a}.label{fill:#24292f;font-weight:600}"
    ".own{fill:#0969da}.other{fill:#bf8700}.bare{fill:#afb8c1}"
    "@media(prefers-color-scheme:dark){text{fill:#8b949e}.label{fill:#e6edf3}.own{fill:#58a6ff}"
    ".other{fill:#d29922}.bare{fill:#484f58}}"
)


def stored_rows(result: Mapping[str, Any], phase: str) -> list[Row]:
    """Returns the rows of a phase; none if it was not run."""
    return [Row(**row) for row in result.get(phase, {}).get("rows", ())]


def picture(result: Mapping[str, Any]) -> str:
    """Returns the SVG; empty if no phase that it shows was run."""
    lines, y = [], 30
    for panel in PANELS:
        found = [
            [row for row in stored_rows(result, panel.phase) if _shows(panel, row, database)] for database in DATABASES
        ]
        if not any(found):
            continue
        for column, (name, bars) in enumerate(zip(DATABASES.values(), found, strict=True)):
            if bars:
                lines.append(f'<text class="label" x="{column * WIDTH}" y="{y}">{name}: {panel.title}</text>')
                lines += _bars(bars, column * WIDTH, y + 6)
        y += 6 + max(map(len, found)) * BAR + GAP + 12
    if not lines:
        return ""
    title = "Tailrace and Debezium on the same servers, in one run"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {y}" width="{2 * WIDTH}" role="img">',
            f"<title>{title}</title><style>{STYLE}</style>",
            f'<text x="0" y="12">{title}</text>',
            *lines,
            "</svg>",
            "",
        ]
    )


def _shows(panel: Panel, row: Row, database: str) -> bool:
    return (row.database, row.case, row.measure) == (database, panel.case, panel.measure)


def _bars(bars: Sequence[Row], x: int, y: int) -> list[str]:
    scale = (WIDTH - NAMES - NUMBER) / (max(row.value for row in bars) or 1.0)
    lines = []
    for number, row in enumerate(bars):
        top, length = y + number * BAR, max(1, round(row.value * scale))
        lines += [
            f'<text x="{x}" y="{top + 13}">{escape(row.contender)}</text>',
            f'<rect class="{_kind(row.contender)}" x="{x + NAMES}" y="{top}" width="{length}" height="{BAR - 4}"/>',
            f'<text class="label" x="{x + NAMES + length + 6}" y="{top + 13}">{shown(row.value)}</text>',
        ]
    return lines


def _kind(contender: str) -> str:
    return "own" if contender == "Tailrace" else "other" if contender.startswith("Debezium") else "bare"


def shown(value: float) -> str:
    """Returns a number with three significant digits and separators; below ten with one decimal place."""
    if value < 10:
        return f"{value:.1f}" if value else "0"
    digits = max(len(str(int(value))) - 3, 0)
    return f"{round(value, -digits):,.0f}"
