"""Writes what docs/benchmarks.md and README.md show of `make race`, from benchmarks/results/race.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.race import picture
from benchmarks.race.rows import grouped

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "race.json"
README = ROOT / "README.md"
IMAGE = "![Tailrace beside Debezium]({}race.svg)"
AFTER = "![events per second](docs/speed.svg)\n"
TABLES = {
    "drain": {
        "events/s": "events_per_s",
        "after warm-up": "warm_events_per_s",
        "CPU µs per event": "cpu_us_per_event",
        "of the log's reader": "source_cpu_us_per_event",
        "of Kafka": "broker_cpu_us_per_event",
        "peak MB": "peak_mb",
        "twice": "duplicates",
    },
    "start": {"seconds": "first_event_s"},
    "latency": {"p50 ms": "p50_ms", "p99 ms": "p99_ms", "transactions/s reached": "rate"},
    "growth": {
        "events/s": "events_per_s",
        "after warm-up": "warm_events_per_s",
        "CPU µs per event": "cpu_us_per_event",
        "peak MB": "peak_mb",
    },
}


def stored() -> dict[str, Any]:
    """Returns the stored result; empty if there is none yet."""
    return json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}


def files() -> dict[str, str]:
    """Returns the generated files by their names in docs/."""
    image = picture.picture(stored())
    return {"../README.md": readme(README.read_text(encoding="utf-8"), image), **({"race.svg": image} if image else {})}


def readme(text: str, image: str) -> str:
    """Returns README.md with the picture below the other one, or without it if there is none."""
    shown = IMAGE.format("docs/") + "\n"
    return text.replace(AFTER + shown, AFTER).replace(AFTER, AFTER + shown if image else AFTER)


def tables(result: Mapping[str, Any]) -> str:
    """Returns the picture, the versions, Debezium's settings, and one table for each phase."""
    if not result:
        return "No result is stored yet."
    last = list(result.values())[-1]
    blocks = [IMAGE.format("")] if picture.picture(result) else []
    blocks.append("Versions: " + ", ".join(f"{name} {number}" for name, number in last["versions"].items()) + ".")
    blocks.append(f"Debezium's settings, besides its defaults: {_settings(last['settings']['debezium'])}.")
    for phase, columns in TABLES.items():
        if phase in result:
            blocks.append(f"**{phase}**, {result[phase]['events']:,} events a backlog ({result[phase]['at'][:10]}):")
            blocks.append("\n".join(_table(result, phase, columns)))
    return "\n\n".join(blocks)


def _settings(debezium: Mapping[str, Any]) -> str:
    named = (f"`{name}={value}`" for part in ("worker", "connector") for name, value in debezium[part].items())
    return ", ".join([*(f"`{option}`" for option in debezium["java"]), *named])


def _table(result: Mapping[str, Any], phase: str, columns: Mapping[str, str]) -> Iterator[str]:
    yield f"| database | case | of | {' | '.join(columns)} |"
    yield "|---" * (3 + len(columns)) + "|"
    for (database, case, contender), values in grouped(picture.stored_rows(result, phase)).items():
        cells = (picture.shown(values[name]) if name in values else "–" for name in columns.values())
        yield f"| {picture.DATABASES[database]} | {case} | {contender} | {' | '.join(cells)} |"
