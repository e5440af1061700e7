"""Part of `make bench`: the rate and memory of `tailrace verify`, for two outboxes, the second four times as large.

    python -m benchmarks.verify [--scale 1]

Real Postgres and Kafka on this machine, as in `drain.py`. An event counts once, though it is read twice: as a row and
as a record. For comparison, the same run measures a bare COPY of the table and a bare consumer of the topics, which
throw everything away: `verify` reads both at once, and cannot be faster than the slower one. Each is measured several
times, in turns, and the fastest counts, because other work on the machine disturbs some rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from benchmarks.backlog import EVENTS_DDL, SCHEMA, Shape, write_backlog
from benchmarks.processes import Connector, Drain, drain, write_pipeline
from tailrace.testkit.stack import Stack

SHAPES = (Shape("250,000 events", 2500, 100), Shape("1,000,000 events", 10_000, 100))
ROUNDS = 5
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
              f"peak {row['peak_mb']} MB  alone: outbox {row['outbox_alone_events_per_s']:,}/s, "
              f"topics {row['topics_alone_events_per_s']:,}/s; {row['of_the_slower']:.0%} of the slower")  # fmt: skip
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
    rounds = [(_copy(dsn), _consume(stack, f"{name}.order", shape.total), _verify(file, shape)) for _ in range(ROUNDS)]
    outbox, topics = min(each[0] for each in rounds), min(each[1] for each in rounds)
    verified = min((each[2] for each in rounds), key=lambda found: found.seconds)
    return {
        "events": shape.total,
        "seconds": round(verified.seconds, 2),
        "events_per_s": round(verified.rate),
        "all_rounds_events_per_s": [round(each[2].rate) for each in rounds],
        "outbox_alone_events_per_s": round(shape.total / outbox),
        "topics_alone_events_per_s": round(shape.total / topics),
        "of_the_slower": round(max(outbox, topics) / verified.seconds, 2),
        "cpu_s_per_million": round(verified.cpu_seconds / shape.total * 1e6, 1),
        "peak_mb": round(max(each[2].peak_mb for each in rounds)),
    }


def _verify(file: Path, shape: Shape) -> Drain:
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "tailrace", "verify", str(file), "--json"], stdout=subprocess.PIPE
    )
    peaks: dict[int, float] = {}
    watching = threading.Thread(target=_watch, args=(process, peaks))
    watching.start()
    printed = process.stdout.read() if process.stdout else b""
    # Before wait4: once the process is reaped, its memory can no longer be read.
    watching.join()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begun
    report = json.loads(printed)
    if status or report["published"] != shape.total:
        raise SystemExit(f"not clean: {report}")
    return Drain(shape.total, seconds, usage.ru_utime + usage.ru_stime, sum(peaks.values()))


def _watch(process: subprocess.Popen[bytes], peaks: dict[int, float]) -> None:
    """Records the peak memory of the process and its children until it ends."""
    own = Path(f"/proc/{process.pid}")
    while "\nState:\tZ" not in (own / "status").read_text():
        with suppress(OSError, IndexError):  # a process that is just ending
            for pid in (process.pid, *map(int, (own / "task" / own.name / "children").read_text().split())):
                status = Path(f"/proc/{pid}/status").read_text()
                peaks[pid] = int(status.partition("VmHWM:")[2].split()[0]) / 1024
        time.sleep(0.05)


def _copy(dsn: str) -> float:
    """Copies the table and throws it away; returns the seconds."""
    begun = time.monotonic()
    with (
        psycopg.connect(dsn) as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY outbox TO STDOUT") as copy,
    ):
        while copy.read():
            pass
    return time.monotonic() - begun


def _consume(stack: Stack, topic: str, events: int) -> float:
    """Consumes the topic and throws it away; returns the seconds."""
    consumer = Consumer(
        {
            "bootstrap.servers": stack.kafka.bootstrap,
            "group.id": "bare",
            "isolation.level": "read_committed",
            "fetch.queue.backoff.ms": 10,  # or it would pause for a second whenever its queue is full
        }
    )
    begun = time.monotonic()
    partitions = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    read = 0
    while read < events:
        read += len(consumer.consume(10_000, 0.05))
    seconds = time.monotonic() - begun
    consumer.close()
    return seconds


if __name__ == "__main__":
    main()
