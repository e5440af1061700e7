"""Part of `make bench`: the drain rate of a Postgres backlog, compared with `pg_recvlogical` in the same run.

Real Postgres, real Kafka (warmed up), everything on this machine, exactly-once and validation on. `pg_recvlogical`
only writes to /dev/null: it shows the speed of the server's walsender. Absolute figures depend on the machine and its
load; compare the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import confluent_kafka
import psycopg

from benchmarks.backlog import EVENTS_DDL, SCHEMA, Shape, payload_bytes, write_backlog
from benchmarks.latency import measure, pgbench
from benchmarks.processes import Connector, Drain, drain, receive, write_pipeline
from tailrace.config.model import LimitSettings
from tailrace.kafka.client import KafkaOptions, producer_config
from tailrace.testkit.stack import Stack
from tailrace.testkit.topic_reader import read_all

WARM_UP = Shape("warm-up", 2000, 100)
"""Drained first and not counted: a JVM that has just started compiles on the measured cores."""
SHAPES = (Shape("100 rows a transaction", 3000, 100), Shape("1 row a transaction", 100_000, 1))
ROUNDS = 5
"""Other work on the machine may disturb one drain; the median of five is steady."""
RESULTS = Path(__file__).parent / "results" / "latest.json"


def main() -> None:
    arguments = _arguments()
    result: dict[str, Any] = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine(), "drain": []}
    with Stack(arguments.postgres, progress=_say) as stack, tempfile.TemporaryDirectory() as folder:
        result["versions"] = versions(stack)
        result["settings"] = pipeline_settings(stack)
        _drain(stack, Path(folder), WARM_UP, "warm_up", 1)
        for shape in SHAPES:
            scaled = Shape(shape.name, max(1, int(shape.transactions * arguments.scale)), shape.events)
            result["drain"].append(_drain(stack, Path(folder), scaled, f"bench_{shape.events}", ROUNDS))
        result["latency"] = _latency(stack, Path(folder), arguments.rate, arguments.seconds)
    _report(result)
    if arguments.scale == 1:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")
        _say(f"written to {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")


def _drain(stack: Stack, folder: Path, shape: Shape, name: str, rounds: int) -> dict[str, Any]:
    """Drains the same backlog `rounds` times, in turns with `pg_recvlogical` and Tailrace; returns the medians."""
    dsn = stack.postgres.create_database(name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(EVENTS_DDL)
    names = [f"{name}_{number}" for number in range(rounds)]
    files = [write_pipeline(folder, each, dsn, stack.kafka.bootstrap, SCHEMA) for each in names]
    for file in files:
        Connector(file).stop()  # creates publication and slot, so that the backlog comes after them
    with psycopg.connect(dsn, autocommit=True) as connection:
        for each in names:
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [f"bare_{each}"])
    _say(f"{shape.name}: writing {shape.total:,} events")
    end = write_backlog(dsn, shape)
    bare: list[Drain] = []
    ours: list[Drain] = []
    for each, file in zip(names, files, strict=True):
        _say(f"{shape.name}: draining with pg_recvlogical, then with Tailrace")
        bare.append(receive(stack.postgres, dsn, f"bare_{each}", f"tailrace_{each}", end, shape.total))
        ours.append(drain(file, dsn, f"tailrace_{each}", end, shape.total))
        seen = len({_id(message) for message in read_all(stack.kafka.bootstrap, [f"{each}.order"])})
        if seen != shape.total:
            raise SystemExit(f"{seen:,} events arrived instead of {shape.total:,}")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [f"bare_{each}"])
    rate, bare_rate = median(each.rate for each in ours), median(each.rate for each in bare)
    return {
        "shape": shape.name,
        "events": shape.total,
        "payload_bytes": payload_bytes(dsn),
        "pg_recvlogical_events_per_s": round(bare_rate),
        "events_per_s": round(rate),
        "ratio": round(rate / bare_rate, 3),
        "cpu_s_per_million": round(median(each.cpu_seconds for each in ours) / shape.total * 1e6, 2),
        "peak_mb": round(max(each.peak_mb for each in ours), 1),
        "rounds": [[round(each.rate) for each in bare], [round(each.rate) for each in ours]],
    }


def _id(message: confluent_kafka.Message) -> object:
    return dict(message.headers() or []).get("id")


def _latency(stack: Stack, folder: Path, rate: int, seconds: int) -> dict[str, Any]:
    _say(f"latency: {rate:,} single-row transactions a second for {seconds} s")
    name = "bench_1_0"
    file = folder / f"{name}.yaml"
    writing = pgbench(
        stack.postgres, stack.postgres.dsn("bench_1"), file.with_suffix(".sql"), rate=rate, seconds=seconds
    )
    latency = measure(writing, file, stack.kafka.bootstrap, f"{name}.order")
    return {"asked_rate": rate, **{key: round(value, 1) for key, value in asdict(latency).items()}}


def _report(result: dict[str, Any]) -> None:
    print()
    print(f"{'':24}{'events/s':>10}{'bare':>10}{'ratio':>8}{'CPU s/M':>9}{'peak MB':>9}")
    for row in result["drain"]:
        print(
            f"{row['shape']:24}{row['events_per_s']:>10,}{row['pg_recvlogical_events_per_s']:>10,}"
            f"{row['ratio']:>8.0%}{row['cpu_s_per_million']:>9.1f}{row['peak_mb']:>9.0f}"
        )
    latency = result["latency"]
    print(
        f"\ncommit to consumer at {latency['rate']:.0f} transactions/s: "
        f"p50 {latency['p50_ms']:.1f} ms, p99 {latency['p99_ms']:.1f} ms ({latency['events']:,} events)\n"
    )


def versions(stack: Stack) -> dict[str, str]:
    names = ("tailrace", "confluent-kafka", "psycopg", "orjson", "jsonschema-rs")
    return {
        "python": platform.python_version(),
        "postgres": str(stack.postgres.version_num),
        "kafka": "4.1.0",
        "librdkafka": str(confluent_kafka.libversion()[0]),
        **{name: version(name) for name in names},
    }


def pipeline_settings(stack: Stack) -> dict[str, Any]:
    """The settings of the pipeline: all defaults."""
    producer = producer_config(KafkaOptions(stack.kafka.bootstrap, "bench"))
    names = ("acks", "linger.ms", "partitioner", "transaction.timeout.ms", "message.timeout.ms", "socket.nagle.disable")
    return {
        "delivery": "exactly_once",
        "validation": "JSON Schema, 8 flat fields",
        "partitions": 3,
        "limits": LimitSettings().model_dump(),
        "producer": {name: producer[name] for name in names},
    }


def machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "arch": platform.machine(), "system": platform.system()}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1, help="share of the backlogs, for a quick run (not saved)")
    parser.add_argument("--postgres", default="16", choices=["16", "18"])
    parser.add_argument("--rate", type=int, default=1000, help="single-row transactions a second for the latency")
    parser.add_argument("--seconds", type=int, default=75, help="for the latency; only the last third counts")
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
