"""Part of `make bench`: what metrics, the probe and the watchdog cost. The same drains with and without them, in turns.

Rounds of one run differ by much more than recording costs, so that is also measured alone: all calls for one batch.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, cast

import psycopg

from benchmarks.backlog import EVENTS_DDL, SCHEMA, Shape, write_backlog
from benchmarks.processes import TAILRACE, Connector, Drain, drain, write_pipeline
from tailrace.event import Record, Row
from tailrace.pipeline.batch import Batch
from tailrace.pipeline.loop import READ_ROWS
from tailrace.pipeline.recorder import PROCESSING, READING
from tailrace.positions.base import Position
from tailrace.testkit.stack import Stack
from tailrace.worker.metrics import PipelineMetrics

WARM_UP = Shape("warm-up", 1000, 100)
SHAPES = (Shape("100 rows a transaction", 3000, 100), Shape("1 row a transaction", 100_000, 1))
ROUNDS = 9
BATCH = 6000
"""Records of a full batch."""
ALLOWED = 0.02
"""The share of the drain rate that recording may cost."""
RESULTS = Path(__file__).parent / "results" / "metrics.json"
# Records nothing, measures no validation, and starts no thread.
SILENT = """
from tailrace.manager.watchdog import PipelineWatch
from tailrace.pipeline.recorder import NullRecorder
from tailrace.worker.metrics import PipelineMetrics
from tailrace.worker.wiring import Wiring
for name in ("reader_alive", "publisher_alive", "filled", "committed"):
    setattr(PipelineMetrics, name, getattr(NullRecorder, name))
make = Wiring.metrics
def silent(self):
    made = make(self)
    made.validated = None
    return made
Wiring.metrics = silent
PipelineWatch.start = lambda self: None
from tailrace.cli import main
main()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1, help="share of the backlogs, for a quick run (not saved)")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    with Stack("16", progress=_say) as stack, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        silent = folder / "silent.py"
        silent.write_text(SILENT)
        _measure(stack, folder, WARM_UP, "warm_up", 1, silent)
        rows = [
            _measure(
                stack,
                folder,
                Shape(shape.name, max(1, int(shape.transactions * arguments.scale)), shape.events),
                f"metrics_{shape.events}",
                arguments.rounds,
                silent,
            )
            for shape in SHAPES
        ]
    for row in rows:
        print(
            f"{row['shape']:24} with {row['events_per_s']:>8,}/s {row['cpu_s_per_million']:>6.2f} CPU s/M, without "
            f"{row['without_events_per_s']:>8,}/s {row['without_cpu_s_per_million']:>6.2f} CPU s/M: "
            f"cost {row['cost']:.1%} (allowed {ALLOWED:.0%})"
        )
    alone = _record_alone()
    print(f"recording alone: {alone['us_per_batch']} us per batch of {alone['events']:,} events")
    if arguments.scale == 1:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        result = {"at": at, "allowed": ALLOWED, "drain": rows, "alone": alone}
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")


def _measure(stack: Stack, folder: Path, shape: Shape, name: str, rounds: int, silent: Path) -> dict[str, Any]:
    """Drains the same backlog `rounds` times each, in turns; returns the medians."""
    dsn = stack.postgres.create_database(name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(EVENTS_DDL)
    names = [(f"{name}_with_{number}", f"{name}_without_{number}") for number in range(rounds)]
    for pair in names:
        for each in pair:
            # Creates publication and slot, so that the backlog comes after them.
            Connector(write_pipeline(folder, each, dsn, stack.kafka.bootstrap, SCHEMA)).stop()
    _say(f"{shape.name}: writing {shape.total:,} events")
    end = write_backlog(dsn, shape)
    found: tuple[list[Drain], list[Drain]] = ([], [])
    for number, pair in enumerate(names):
        _say(f"{shape.name}: round {number + 1}")
        # The order changes, because the second drain finds the WAL in memory.
        for which in (0, 1) if number % 2 else (1, 0):
            program = (str(silent),) if which else TAILRACE
            file = folder / f"{pair[which]}.yaml"
            found[which].append(drain(file, dsn, f"tailrace_{pair[which]}", end, shape.total, program=program))
    recorded, bare = found
    cpu = [[each.cpu_seconds / shape.total * 1e6 for each in some] for some in found]
    return {
        "shape": shape.name,
        "events": shape.total,
        "events_per_s": round(median(each.rate for each in recorded)),
        "without_events_per_s": round(median(each.rate for each in bare)),
        "cpu_s_per_million": round(median(cpu[0]), 2),
        "without_cpu_s_per_million": round(median(cpu[1]), 2),
        "cost": round(1 - median(each.rate for each in recorded) / median(each.rate for each in bare), 4),
        "rounds": [[round(each.rate) for each in some] for some in found],
        "cpu_rounds": [[round(each, 2) for each in some] for some in cpu],
    }


def _record_alone() -> dict[str, Any]:
    """Measures all that is recorded for one full batch, without a pipeline: the calls of the loop and the publisher."""
    metrics, position = PipelineMetrics(capacity=BATCH), cast("Position", None)
    rows = [Row((), (), "0/1:1", 1)] * READ_ROWS
    records = [Record("orders", b"{}", b"k", [], 1)] * BATCH
    best = float("inf")
    for _ in range(50):
        began = time.perf_counter()
        for _ in range(100):
            batch = Batch(position)
            batch.records = records
            for _ in range(BATCH // READ_ROWS):
                metrics.reader_alive(READING)
                metrics.reader_alive(PROCESSING)
                measured = time.perf_counter()
                metrics.validated(time.perf_counter() - measured)
                batch.note_rows(rows, time.time())
                metrics.filled(BATCH)
            metrics.publisher_alive(busy=True)
            metrics.committed(batch, 0.01)
            metrics.publisher_alive(busy=False)
        best = min(best, (time.perf_counter() - began) / 100)
    return {"events": BATCH, "us_per_batch": round(best * 1e6, 1)}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
