"""Draws docs/soak.svg from benchmarks/results/soak.json: what a soak has sampled, over its time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "soak.json"
WIDTH, HEIGHT, LEFT, TOP = 400, 150, 46, 34
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - 16, HEIGHT - 62


class Panel(NamedTuple):
    """A diagram: its title, and the class and name of each line."""

    title: str
    lines: tuple[tuple[str, str], ...]


PANELS = (
    Panel("Memory of each connector, MB", (("own", "postgres_memory_mb"), ("other", "mongo_memory_mb"))),
    Panel("Open files of each connector", (("own", "postgres_files"), ("other", "mongo_files"))),
    Panel("WAL that the slot keeps, MB", (("own", "slot_keeps_mb"),)),
    Panel("Age of the stored position, s", (("own", "postgres_behind_s"), ("other", "mongo_behind_s"))),
    Panel("Log of each connector, kB", (("own", "postgres_log_kb"), ("other", "mongo_log_kb"))),
    Panel("Events published, millions", (("own", "postgres_millions"), ("other", "mongo_millions"))),
)
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#57606a}.label{fill:#24292f;font-weight:600}"
    "polyline{fill:none;stroke-width:1.5}.own{stroke:#0969da}.other{stroke:#1a7f37}.axis{stroke:#d0d7de}"
    "@media(prefers-color-scheme:dark){text{fill:#8b949e}.label{fill:#e6edf3}.own{stroke:#58a6ff}"
    ".other{stroke:#3fb950}.axis{stroke:#484f58}}"
)


def stored() -> dict[str, Any] | None:
    """Returns the stored result; None if there was no soak yet."""
    if not RESULT.exists():
        return None
    found: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))
    return found


def picture() -> str:
    """Returns the SVG; empty without a result."""
    result = stored()
    if result is None:
        return ""
    samples = [
        {**sample, **{f"{name}_millions": sample[f"{name}_consumed"] / 1e6 for name in ("postgres", "mongo")}}
        for sample in result["samples"]
    ]
    minutes = result["hours"] * 60
    title = f"{minutes:.0f} minutes at {result['asked_rate']:,.0f} events/s on each database"
    parts = [_panel(panel, samples, number) for number, panel in enumerate(PANELS)]
    width, height = 2 * WIDTH, TOP + HEIGHT * ((len(PANELS) + 1) // 2)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
            f"<title>{title}</title><style>{STYLE}</style>",
            f'<text class="label" x="0" y="18">{title} '
            '<tspan fill="#0969da">— Postgres</tspan> <tspan fill="#1a7f37">— MongoDB</tspan>'
            "</text>",
            *parts,
            "</svg>",
            "",
        ]
    )


def _panel(panel: Panel, samples: Sequence[dict[str, float]], number: int) -> str:
    x, y = (number % 2) * WIDTH, TOP + (number // 2) * HEIGHT
    values = [sample[name] for _, name in panel.lines for sample in samples if name in sample]
    highest = (max(values, default=0.0) or 1.0) * 1.1
    last = samples[-1]["seconds"] or 1.0
    bottom = y + 18 + PLOT_HEIGHT
    lines = [
        f'<text class="label" x="{x}" y="{y + 10}">{panel.title}</text>',
        f'<line class="axis" x1="{x + LEFT}" y1="{bottom}" x2="{x + LEFT + PLOT_WIDTH}" y2="{bottom}"/>',
        f'<text x="{x + LEFT - 6}" y="{y + 28}" text-anchor="end">{highest:.3g}</text>',
        f'<text x="{x + LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{x + LEFT + PLOT_WIDTH}" y="{bottom + 15}" text-anchor="end">{last / 60:.0f} min</text>',
    ]
    for kind, name in panel.lines:
        known = [(sample["seconds"] / last, sample[name] / highest) for sample in samples if name in sample]
        points = " ".join(f"{x + LEFT + at * PLOT_WIDTH:.0f},{bottom - value * PLOT_HEIGHT:.1f}" for at, value in known)
        lines.append(f'<polyline class="{kind}" points="{points}"/>')
    return "\n".join(lines)
