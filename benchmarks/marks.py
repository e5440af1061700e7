"""Part of `make bench`: what delivery marks cost. The same drains without marks, with a watermark and with row marks.

Each drain has its own database with the same backlog, in turns, on the same warmed-up servers. Then a steady rate of
single-row transactions: the latency with and without row marks, and how far marks are behind. `marks_mongo.py` does the
same for row marks in MongoDB.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import marks_mongo
from benchmarks.backlog import EVENTS_DDL, SCHEMA, Shape, write_backlog
from benchmarks.latency import measure, pgbench
from benchmarks.marks_mongo import SAMPLE_SECONDS, summary
from benchmarks.processes import Connector, drain, watch, write_pipeline
from tailrace.testkit.stack import MongoServer, Stack

SHAPE = Shape("100 rows a transaction", 2000, 100)
WARM_UP = Shape("warm-up", 1000, 100)
KINDS = ("none", "watermark", "rows")
REACH = {"none": 1.0, "watermark": 0.98, "rows": 0.5}
"""The share of the rate without marks that must be left."""
ROUNDS = {"none": 7, "watermark": 7, "rows": 3}
"""What a watermark costs is smaller than the difference between two drains."""
RESULTS = Path(__file__).parent / "results" / "marks.json"
MARKED_DDL = (
    EVENTS_DDL
    + """
ALTER TABLE outbox ADD created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ADD processed boolean NOT NULL DEFAULT false, ADD processed_at timestamptz, ADD error text;
CREATE INDEX ON outbox (created_at) WHERE processed IS DISTINCT FROM true;
"""
)
BACKLOG_COLUMNS = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1, help="share of the backlogs, for a quick run (not saved)")
    parser.add_argument("--rate", type=int, default=2000, help="single-row transactions a second")
    parser.add_argument("--seconds", type=int, default=60, help="of the steady rate; only the last third counts")
    arguments = parser.parse_args()
    shape = Shape(SHAPE.name, max(1, int(SHAPE.transactions * arguments.scale)), SHAPE.events)
    with Stack("16", progress=_say) as stack, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _drain(stack, folder, WARM_UP, "warm_up", "none")
        found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
        for number in range(max(ROUNDS.values())):
            for kind in KINDS if number % 2 else KINDS[::-1]:  # nobody is always the first
                if number < ROUNDS[kind]:
                    found[kind].append(_drain(stack, folder, shape, f"{kind}_{number}", kind))
        steady = {kind: _steady(stack, folder, kind, arguments.rate, arguments.seconds) for kind in ("none", "rows")}
        with MongoServer(progress=_say) as mongo:
            documents = marks_mongo.measured(mongo, stack.kafka, folder, shape, arguments.rate, arguments.seconds)
    rows = summary(found)
    _report("Postgres", rows, steady)
    _report("MongoDB", documents["drain"], documents["steady"])
    if arguments.scale == 1:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        result = {"at": at, "drain": rows, "steady": steady, "mongo": documents}
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")


def _report(database: str, rows: list[dict[str, Any]], steady: dict[str, dict[str, Any]]) -> None:
    print(f"\n{database}\n{'marks':12}{'events/s':>10}{'ratio':>8}{'reach':>8}{'marked after s':>16}")
    for row in rows:
        reach, late = REACH[row["marks"]], row["complete_after_s"]
        print(f"{row['marks']:12}{row['events_per_s']:>10,}{row['ratio']:>8.0%}{reach:>8.0%}{late:>16}")
    for kind, each in steady.items():
        print(
            f"{each['rate']:,.0f} events/s, marks {kind}: p50 {each['p50_ms']} ms, p99 {each['p99_ms']} ms, "
            f"marks behind by at most {each['behind_s']} s"
        )


def _drain(stack: Stack, folder: Path, shape: Shape, name: str, kind: str) -> tuple[float, float]:
    """Returns the rate, and how many seconds after the drain all marks were written."""
    dsn, file = _pipeline(stack, folder, name, kind)
    end = write_backlog(dsn, shape)
    _say(f"marks: {kind}: draining {shape.total:,} events")
    rate = drain(file, dsn, f"tailrace_{name}", end, shape.total).rate
    if kind != "rows":
        return rate, 0.0
    began = time.monotonic()
    connector = Connector(file)
    try:
        watch(lambda: _behind(dsn) == 0, 600)
    finally:
        connector.stop()
    return rate, time.monotonic() - began


def _steady(stack: Stack, folder: Path, kind: str, rate: int, seconds: int) -> dict[str, Any]:
    _say(f"marks: {kind}: {rate:,} single-row transactions a second for {seconds} s")
    name = f"steady_{kind}"
    dsn, file = _pipeline(stack, folder, name, kind)
    # Creates the topic.
    drain(file, dsn, f"tailrace_{name}", write_backlog(dsn, Shape("one event", 1, 1)), 1)
    behind: list[float] = []
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            behind.append(_behind(dsn))

    writing = pgbench(stack.postgres, dsn, file.with_suffix(".sql"), rate=rate, seconds=seconds)
    script = file.with_suffix(".sql")
    script.write_text(script.read_text().replace("INSERT INTO outbox VALUES", BACKLOG_COLUMNS.strip() + " VALUES"))
    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        latency = measure(writing, file, stack.kafka.bootstrap, f"{name}.order")
    finally:
        ended.set()
        sampler.join()
    late = max(behind[len(behind) // 3 :], default=0.0) if kind == "rows" else 0.0
    return {**{key: round(value, 1) for key, value in asdict(latency).items()}, "behind_s": round(late, 2)}


def _pipeline(stack: Stack, folder: Path, name: str, kind: str) -> tuple[str, Path]:
    """Creates database, publication and slot, so that the backlog comes after them."""
    dsn = stack.postgres.create_database(name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(MARKED_DDL.replace("INSERT INTO outbox\n", BACKLOG_COLUMNS))
    file = write_pipeline(folder, name, dsn, stack.kafka.bootstrap, SCHEMA)
    settings: dict[str, Any] = json.loads(file.read_text())
    columns = {name: name for name in ("processed", "processed_at", "error")}
    outbox = {"mark_columns": columns, "columns": {"timestamp": "created_at"}}
    file.write_text(json.dumps({**settings, "marks": kind, "outbox": outbox}))
    Connector(file).stop()
    return dsn, file


def _behind(dsn: str) -> float:
    """Returns the age of the oldest row without a mark in seconds; 0 if there is none."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float FROM outbox "
            "WHERE processed IS DISTINCT FROM true"
        ).fetchone()
        assert row is not None
        return float(row[0])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
