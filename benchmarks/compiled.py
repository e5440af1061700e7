"""After `make wheels`: the drain rate with the compiled wheels, in turns with the pure sources, in the same run.

`make wheels` builds the wheels and unpacks them into build/compiled. Everything else is as in `benchmarks.drain` and
`benchmarks.mongo`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from benchmarks.backlog import EVENTS_DDL, SCHEMA, Shape, write_backlog
from benchmarks.mongo import timed, write_documents, write_mongo_pipeline
from benchmarks.processes import Connector, Drain, drain, write_pipeline
from tailrace.testkit.stack import MongoServer, Stack
from tailrace.testkit.topic_reader import read_all

COMPILED = Path(__file__).parents[1] / "build" / "compiled"
BUILDS: Mapping[str, Mapping[str, str]] = {"pure": {}, "compiled": {"PYTHONPATH": str(COMPILED)}}
RESULTS = Path(__file__).parent / "results" / "compiled.json"
ROUNDS = 5
WARM_UP = Shape("warm-up", 2000, 100)
SHAPES = (Shape("100 rows a transaction", 3000, 100), Shape("1 row a transaction", 100_000, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1, help="share of the backlogs, for a quick look (not written)")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    _require_compiled()
    rows = []
    with Stack(progress=_say) as stack, MongoServer(progress=_say) as mongo, tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        _postgres(stack, folder, WARM_UP, "warm_up", 1)
        for shape in SHAPES:
            scaled = replace(shape, transactions=max(1, int(shape.transactions * arguments.scale)))
            rows.append(_postgres(stack, folder, scaled, f"postgres_{shape.events}", arguments.rounds))
            rows.append(_mongo(mongo, stack, folder, scaled, f"mongo_{shape.events}", arguments.rounds))
    _report(rows)
    if arguments.scale == 1:
        result = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "rounds": arguments.rounds, "drain": rows}
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")


def _postgres(stack: Stack, folder: Path, shape: Shape, name: str, rounds: int) -> dict[str, Any]:
    dsn = stack.postgres.create_database(name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(EVENTS_DDL)
    names = _names(name, rounds)
    files = {each: write_pipeline(folder, each, dsn, stack.kafka.bootstrap, SCHEMA) for each in names}
    for file in files.values():
        Connector(file).stop()  # creates publication and slot, so that the backlog comes after them
    _say(f"Postgres, {shape.name}: writing {shape.total:,} events")
    end = write_backlog(dsn, shape)

    def measure(each: str, environment: Mapping[str, str]) -> Drain:
        return drain(files[each], dsn, f"tailrace_{each}", end, shape.total, environment=environment)

    return _row("Postgres", shape, measure, names, stack.kafka.bootstrap)


def _mongo(mongo: MongoServer, stack: Stack, folder: Path, shape: Shape, name: str, rounds: int) -> dict[str, Any]:
    with mongo.client() as client:
        client[name].create_collection("outbox")
    names, bootstrap = _names(name, rounds), stack.kafka.bootstrap
    files = {each: write_mongo_pipeline(folder, each, name, mongo.uri, bootstrap) for each in names}
    for file in files.values():
        Connector(file).stop()  # stores its start position, so that the backlog comes after it
    _say(f"MongoDB, {shape.name}: writing {shape.total:,} events")
    with mongo.client() as client:
        end = write_documents(client, name, shape)

    def measure(each: str, environment: Mapping[str, str]) -> Drain:
        return timed(files[each], bootstrap, each, end, shape.total, environment)

    return _row("MongoDB", shape, measure, names, bootstrap)


def _names(name: str, rounds: int) -> list[str]:
    return [f"{name}_{build}_{number}" for number in range(rounds) for build in BUILDS]


def _row(
    database: str, shape: Shape, measure: Callable[[str, Mapping[str, str]], Drain], names: list[str], bootstrap: str
) -> dict[str, Any]:
    """Drains once for each name, pure and compiled in turns; checks that every event arrived; returns the medians."""
    drains: dict[str, list[Drain]] = {build: [] for build in BUILDS}
    for at, name in enumerate(names):
        build = list(BUILDS)[at % len(BUILDS)]
        _say(f"{database}, {shape.name}: {build}")
        drains[build].append(measure(name, BUILDS[build]))
        seen = len({dict(message.headers() or [])["id"] for message in read_all(bootstrap, [f"{name}.order"])})
        if seen != shape.total:
            raise SystemExit(f"{seen:,} events arrived instead of {shape.total:,}")
    rates = {build: median(each.rate for each in found) for build, found in drains.items()}
    return {
        "database": database,
        "shape": shape.name,
        "events": shape.total,
        "events_per_s": {build: round(rate) for build, rate in rates.items()},
        "gain": round(rates["compiled"] / rates["pure"] - 1, 3),
        "cpu_s_per_million": {
            build: round(median(each.cpu_seconds for each in found) / shape.total * 1e6, 2)
            for build, found in drains.items()
        },
        "peak_mb": {build: round(max(each.peak_mb for each in found), 1) for build, found in drains.items()},
        "rounds": {build: [round(each.rate) for each in found] for build, found in drains.items()},
    }


def _require_compiled() -> None:
    """Exits unless the second build is compiled and is what a connector would run."""
    command = [sys.executable, "-c", "from tailrace.pipeline import processor; print(processor.__file__)"]
    environment = {**os.environ, **BUILDS["compiled"]}
    loaded = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    if not loaded.stdout.strip().endswith(".so"):
        raise SystemExit("no compiled modules in build/compiled: run `make wheels` first")


def _report(rows: list[dict[str, Any]]) -> None:
    print(f"\n{'':34}{'pure/s':>10}{'compiled/s':>12}{'gain':>7}{'CPU µs an event':>18}")
    for row in rows:
        rate, cpu = row["events_per_s"], row["cpu_s_per_million"]
        print(
            f"{row['database'] + ', ' + row['shape']:34}{rate['pure']:>10,}{rate['compiled']:>12,}{row['gain']:>7.0%}"
            f"{cpu['pure']:>11.1f} → {cpu['compiled']:.1f}"
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
