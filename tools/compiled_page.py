"""Writes what docs/benchmarks.md shows of `python -m benchmarks.compiled`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "compiled.json"
HEAD = "backlog | events/s, pure | compiled | gain | CPU µs an event, pure | compiled | peak memory, pure | compiled"


def text(path: Path = RESULT) -> str:
    """Returns the table and its date; a sentence if nothing is stored yet."""
    if not path.exists():
        return "No result is stored yet."
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    lines = [f"Median of {result['rounds']} rounds ({result['at'][:10]}):", "", f"| {HEAD} |", "|---" * 8 + "|"]
    for row in result["drain"]:
        rate, cpu, peak = row["events_per_s"], row["cpu_s_per_million"], row["peak_mb"]
        cells = (
            f"{row['database']}, {row['shape']}",
            f"{rate['pure']:,}",
            f"{rate['compiled']:,}",
            f"{row['gain'] * 100:+.0f} %",
            f"{cpu['pure']:.1f}",
            f"{cpu['compiled']:.1f}",
            f"{peak['pure']:.0f} MB",
            f"{peak['compiled']:.0f} MB",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
