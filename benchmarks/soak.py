"""A soak: a steady load on both databases for hours, and what must stay flat: `make soak HOURS=2`.

Samples memory, open files and threads of each connector, how far each is behind, what the slot keeps of the WAL, and
the size of each connector's own log. Stores the samples and a verdict in benchmarks/results/soak.json, which
`make docs` draws as docs/soak.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.backlog import SCHEMA
from benchmarks.flatness import Verdict, judge_all
from benchmarks.processes import Connector
from benchmarks.soak_load import Load, mongo_load, postgres_load
from tailrace.check.health import read_kafka_status
from tailrace.config.load import load_pipeline
from tailrace.testkit.stack import KafkaBroker, MongoServer, PostgresServer, ServerChoice, StackError, wait_until
from tailrace.testkit.workload.users import create_users
from tailrace.worker.options import kafka_options

RESULT = Path(__file__).parent / "results" / "soak.json"
SAMPLE_SECONDS = 10.0
SLOT = "tailrace_soak_postgres"
CATCH_UP_SECONDS = 300
MB = 1 << 20
DDL = """
CREATE TABLE outbox (
    id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload jsonb,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON outbox (created_at);
"""
BOUNDS = {
    "postgres_memory_mb": 8.0,
    "mongo_memory_mb": 8.0,
    "postgres_files": 1.0,
    "mongo_files": 1.0,
    "postgres_threads": 1.0,
    "mongo_threads": 1.0,
    "postgres_behind_s": 1.0,
    "mongo_behind_s": 1.0,
    "slot_keeps_mb": 32.0,
    "postgres_log_kb": 64.0,
    "mongo_log_kb": 64.0,
}
"""The largest growth in an hour that counts as flat. The WAL that a slot keeps varies by whole checkpoints."""
RETENTION = {"retention.ms": "60000", "segment.bytes": str(16 * MB), "segment.ms": "60000"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=2000.0, help="events a second on each database")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        result = soak(Path(folder), given.hours * 3600, given.rate)
    if result["hours"] >= stored_hours():
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
    show(result)
    verdicts = {found["verdict"] for found in result["verdicts"].values()}
    return 0 if result["complete"] and Verdict.GROWS.value not in verdicts else 1


def stored_hours() -> float:
    """The length of the stored run: a shorter one does not replace it."""
    return float(json.loads(RESULT.read_text())["hours"]) if RESULT.exists() else 0.0


def soak(folder: Path, seconds: float, rate: float) -> dict[str, Any]:
    with (
        PostgresServer("16", choice=ServerChoice.LOCAL) as postgres,
        MongoServer(choice=ServerChoice.LOCAL) as mongo,
        KafkaBroker(properties={"log.retention.check.interval.ms": "15000"}, choice=ServerChoice.LOCAL) as kafka,
    ):
        dsn = postgres.create_database("soak")
        with psycopg.connect(dsn) as connection:
            connection.execute(DDL)
        create_users(mongo.uri, "soak")
        topics = {"postgres": "soak.orders", "mongo": "soak.users"}
        for topic in topics.values():
            kafka.create_topic(topic, 3, RETENTION)
        files = pipelines(folder, dsn, mongo.uri, kafka.bootstrap, topics)
        connectors = {name: Connector(file) for name, file in files.items()}
        load = Load()
        try:
            for name, topic in topics.items():
                load.start(f"{name}-consumer", lambda a=name, b=topic: load.count(a, kafka.bootstrap, b), writes=False)  # type: ignore[misc]
            postgres_load(load, dsn, rate)
            mongo_load(load, mongo.uri, "soak", topics["mongo"], rate)
            samples = sampled(load, connectors, files, dsn, seconds)
            load.stop_writing()
            with suppress(StackError):  # the result says what is missing
                wait_until(lambda: load.consumed == load.written or load.error, CATCH_UP_SECONDS, what="all events")
        finally:
            load.stop()
            for connector in connectors.values():
                connector.stop()
        if load.error is not None:
            raise load.error
    return report(samples, load, rate)


def pipelines(folder: Path, dsn: str, uri: str, bootstrap: str, topics: Mapping[str, str]) -> dict[str, Path]:
    """Writes a pipeline file for each database."""
    (folder / "schemas" / "OrderPlaced").mkdir(parents=True)
    (folder / "schemas" / "UserChanged").mkdir()
    (folder / "schemas" / "OrderPlaced" / "1.json").write_text(json.dumps(SCHEMA))
    (folder / "schemas" / "UserChanged" / "1.json").write_text(json.dumps({"type": "object", "required": ["user"]}))
    sources: dict[str, dict[str, Any]] = {
        "postgres": {
            "source": {"postgres": dsn, "table": "public.outbox"},
            "outbox": {"layout": "debezium", "columns": {"timestamp": "created_at"}},
            "topics": {"template": topics["postgres"]},
        },
        "mongo": {
            "source": {"mongo": uri, "collection": "soak.outbox"},
            "outbox": {"layout": "document"},
            "topics": {"template": topics["mongo"]},
        },
    }
    files = {}
    for name, source in sources.items():
        settings = {"pipeline": f"soak-{name}", "schemas": {"folder": "schemas"}, **source}
        files[name] = folder / f"soak-{name}.yaml"
        files[name].write_text(json.dumps({**settings, "kafka": {"bootstrap": bootstrap}}))
    return files


def sampled(
    load: Load, connectors: Mapping[str, Connector], files: Mapping[str, Path], dsn: str, seconds: float
) -> list[dict[str, float]]:
    samples = []
    options = {name: kafka_options(load_pipeline(file)) for name, file in files.items()}
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds and load.error is None:
        sample: dict[str, float] = {"seconds": round(now, 1)}
        for name, connector in connectors.items():
            if connector.process.poll() is not None:
                raise RuntimeError(f"the connector of {name} has ended:\n{connector.log.read_text()[-4000:]}")
            own = Path(f"/proc/{connector.process.pid}")
            sample[f"{name}_memory_mb"] = round(resident_mb(own), 2)
            sample[f"{name}_files"] = len(list((own / "fd").iterdir()))
            sample[f"{name}_threads"] = len(list((own / "task").iterdir()))
            sample[f"{name}_cpu_seconds"] = round(connector.cpu_seconds(), 2)
            sample[f"{name}_log_kb"] = round(connector.log.stat().st_size / 1024, 1)
            sample[f"{name}_written"] = load.written[name]
            sample[f"{name}_consumed"] = load.consumed[name]
            position = read_kafka_status(options[name]).position
            if position is not None:
                sample[f"{name}_behind_s"] = round(max(0.0, time.time() - position.at_ms / 1000), 2)
        sample |= slot_of(dsn)
        samples.append(sample)
        time.sleep(max(0.0, SAMPLE_SECONDS - (time.monotonic() - began - now)))
    return samples


def resident_mb(process: Path) -> float:
    return int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MB


def slot_of(dsn: str) -> dict[str, float]:
    """Returns how much WAL the slot keeps, how far it is confirmed, and the size of the WAL folder, in MB."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT pg_current_wal_lsn() - restart_lsn, pg_current_wal_lsn() - confirmed_flush_lsn, "
            "(SELECT sum(size) FROM pg_ls_waldir()) FROM pg_replication_slots WHERE slot_name = %s",
            (SLOT,),
        ).fetchone()
    assert row is not None
    keeps, lag, folder = (round(float(value) / MB, 2) for value in row)
    return {"slot_keeps_mb": keeps, "slot_lag_mb": lag, "wal_mb": folder}


def report(samples: list[dict[str, float]], load: Load, rate: float) -> dict[str, Any]:
    verdicts = judge_all(samples, BOUNDS)
    seconds = samples[-1]["seconds"]
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "hours": round(seconds / 3600, 3),
        "asked_rate": rate,
        "rate": {name: round(count / seconds, 1) for name, count in load.written.items()},
        "written": load.written,
        "consumed": load.consumed,
        "complete": load.written == load.consumed,
        "flat": all(found.verdict is Verdict.FLAT for found in verdicts.values()),
        "verdicts": {name: {**asdict(found), "verdict": found.verdict.value} for name, found in verdicts.items()},
        "samples": samples,
    }


def show(result: Mapping[str, Any]) -> None:
    print(f"{result['hours'] * 60:.0f} minutes, {result['rate']} events/s, {sum(result['consumed'].values()):,} events")
    print(f"{'value':22} {'median':>10} {'highest':>10} {'per hour':>10} {'bound':>8}")
    for name, found in result["verdicts"].items():
        print(f"{name:22} {found['median']:10.2f} {found['highest']:10.2f} {found['per_hour']:+10.2f} "
              f"{found['bound']:8.1f}  {found['verdict']}")  # fmt: skip
    print("complete" if result["complete"] else f"NOT COMPLETE: {result['written']} written, {result['consumed']} read")


if __name__ == "__main__":
    raise SystemExit(main())
