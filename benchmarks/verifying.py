"""How fast `tailrace verify` compares, and in how much memory: two outboxes, the second four times as large.

    python -m benchmarks.verifying [--scale 1]

Real Postgres and Kafka on this machine, as in `drain.py`. An event counts once, though it is read twice: as a row and
as a record.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.backlog import EVENTS_DDL, SCHEMA, Shape, write_backlog
from benchmarks.processes import Connector, drain, write_pipeline
from tailrace.stack import Stack

SHAPES = (Shape("250,000 events", 2500, 100), Shape("1,000,000 events", 10_000, 100))
RESULTS = Path(__file__).parent / "results" / "verify.json"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0, help="A fraction of the usual events; nothing is written.")
    scale = parser.parse_args().scale
    result: dict[str, Any] = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "cores": os.cpu_count()}
    with Stack(progress=lambda text: print(text, file=sys.stderr)) as stack, tempfile.TemporaryDirectory() as folder:
        result["verify"] = [
            _measure(stack, Path(folder), Shape(shape.name, int(shape.transactions * scale), shape.events), number)
            for number, shape in enumerate(SHAPES)
        ]
    for row in result["verify"]:
        print(f"{row['events']:>12,} events {row['events_per_s']:>9,}/s  CPU {row['cpu_s_per_million']} s a million  "
              f"peak {row['peak_mb']} MB")  # fmt: skip
    if scale == 1:
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")


def _measure(stack: Stack, folder: Path, shape: Shape, number: int) -> dict[str, Any]:
    name = f"verify_{number}"
    dsn = stack.postgres.create_database(name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(EVENTS_DDL)
    file = write_pipeline(folder, name, dsn, stack.kafka.bootstrap, SCHEMA)
    Connector(file).stop()  # creates publication and slot
    drain(file, dsn, f"tailrace_{name}", write_backlog(dsn, shape), shape.total)
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "tailrace", "verify", str(file), "--json"], stdout=subprocess.PIPE
    )
    printed = process.stdout.read() if process.stdout else b""
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begun
    told = json.loads(printed)
    if status or told["published"] != shape.total:
        raise SystemExit(f"not clean: {told}")
    return {
        "events": shape.total,
        "seconds": round(seconds, 2),
        "events_per_s": round(shape.total / seconds),
        "cpu_s_per_million": round((usage.ru_utime + usage.ru_stime) / shape.total * 1e6, 1),
        "peak_mb": round(usage.ru_maxrss / 1024),
    }


if __name__ == "__main__":
    main()
