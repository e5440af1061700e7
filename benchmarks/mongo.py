"""Part of `make bench`: the drain rate of a MongoDB backlog, compared with bare change-stream readers in the same run.

Real MongoDB (a replica set of one), real Kafka (warmed up), exactly-once and validation on. The bare readers take
changes through pymongo and throw them away: as raw batches, not split into changes, which shows the speed of the
server's change stream; and as raw documents of its `watch`, as most programs do.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from benchmarks.backlog import SCHEMA, Shape
from benchmarks.latency import measure
from benchmarks.processes import Connector, Drain, watch
from tailrace.positions.base import from_stored
from tailrace.positions.mongo import TokenPosition
from tailrace.testkit.stack import KafkaBroker, MongoServer
from tailrace.testkit.topic_reader import read_all

WARM_UP = Shape("warm-up", 2000, 100)
SHAPES = (Shape("100 in a transaction", 3000, 100), Shape("1 in a transaction", 100_000, 1))
"""As many events as in the Postgres drains."""
REACH = 0.6
ROUNDS = 5
"""Other work on the machine may disturb one drain; the median of five is steady."""
RESULTS = Path(__file__).parent / "results" / "mongo.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1, help="share of the backlogs, for a quick look (not written)")
    parser.add_argument("--rate", type=int, default=1000, help="single-event transactions a second for the latency")
    parser.add_argument("--seconds", type=int, default=75, help="for the latency; only the last third counts")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "drain": []}
    with (
        MongoServer(progress=_say) as mongo,
        KafkaBroker(progress=_say) as kafka,
        tempfile.TemporaryDirectory() as folder,
    ):
        result["versions"] = {"mongodb": mongo.version, "pymongo": version("pymongo"), "tailrace": version("tailrace")}
        _drain(mongo, kafka, Path(folder), WARM_UP, "warm_up", 2)
        for shape in SHAPES:
            scaled = Shape(shape.name, max(1, int(shape.transactions * arguments.scale)), shape.events)
            result["drain"].append(_drain(mongo, kafka, Path(folder), scaled, f"bench_{shape.events}", ROUNDS))
        file, topic = Path(folder) / "bench_1_0.yaml", "bench_1_0.order"
        _say(f"latency: {arguments.rate:,} transactions a second for {arguments.seconds} s")
        writing = [sys.executable, "-m", "benchmarks.mongo_writer", mongo.uri, "bench_1"]
        latency = measure([*writing, str(arguments.rate), str(arguments.seconds)], file, kafka.bootstrap, topic)
        result["latency"] = {"asked_rate": arguments.rate, **{k: round(v, 1) for k, v in asdict(latency).items()}}
    _report(result)
    if arguments.scale == 1:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")


def event(number: int, note: int = 60) -> dict[str, Any]:
    """Eight flat fields, about 200 bytes as JSON: as in the Postgres backlog."""
    payload = {
        "order": f"order-{number}", "customer": f"customer-{number % 977}", "amount": number % 400 * 1.25,
        "currency": "EUR", "status": "placed", "revision": number + 1, "express": number % 2 == 0, "note": "x" * note,
    }  # fmt: skip
    return {
        "_id": str(uuid.uuid4()),
        "aggregatetype": "order",
        "aggregateid": f"order-{number % 5000}",
        "type": "OrderPlaced",
        "payload": payload,
    }


def _drain(
    mongo: MongoServer, kafka: KafkaBroker, folder: Path, shape: Shape, name: str, rounds: int
) -> dict[str, Any]:
    """Drains the same backlog `rounds` times, in turns with the bare readers and Tailrace; returns the medians."""
    with mongo.client() as client:
        client[name].create_collection("outbox")
    names = [f"{name}_{number}" for number in range(rounds)]
    files = [write_mongo_pipeline(folder, each, name, mongo.uri, kafka.bootstrap) for each in names]
    for file in files:
        Connector(file).stop()  # stores its start position, so that the backlog comes after it
    _say(f"{shape.name}: writing {shape.total:,} events")
    with mongo.client() as client:
        end = write_documents(client, name, shape)
    bare: list[float] = []
    watched: list[float] = []
    ours: list[Drain] = []
    for each, file in zip(names, files, strict=True):
        _say(f"{shape.name}: draining with bare readers, then with Tailrace")
        token = _stored(kafka.bootstrap, each)
        bare.append(shape.total / receive_changes("batches", mongo.uri, name, token, shape.total).seconds)
        watched.append(shape.total / receive_changes("watch", mongo.uri, name, token, shape.total).seconds)
        ours.append(timed(file, kafka.bootstrap, each, end, shape.total))
        seen = len({dict(message.headers() or [])["id"] for message in read_all(kafka.bootstrap, [f"{each}.order"])})
        if seen != shape.total:
            raise SystemExit(f"{seen:,} events arrived instead of {shape.total:,}")
    rate = median(each.rate for each in ours)
    return {
        "shape": shape.name,
        "events": shape.total,
        "raw_batches_events_per_s": round(median(bare)),
        "watch_events_per_s": round(median(watched)),
        "events_per_s": round(rate),
        "ratio": round(rate / median(bare), 3),
        "ratio_to_watch": round(rate / median(watched), 3),
        "cpu_s_per_million": round(median(each.cpu_seconds for each in ours) / shape.total * 1e6, 2),
        "peak_mb": round(max(each.peak_mb for each in ours), 1),
        "rounds": [list(map(round, bare)), list(map(round, watched)), [round(each.rate) for each in ours]],
    }


def write_mongo_pipeline(
    folder: Path, name: str, database: str, uri: str, bootstrap: str, *, schema: dict[str, Any] = SCHEMA, **more: object
) -> Path:
    """Writes a pipeline file; `more` are further settings."""
    schemas = folder / "schemas" / "OrderPlaced"
    schemas.mkdir(parents=True, exist_ok=True)
    (schemas / "1.json").write_text(json.dumps(schema))
    file = folder / f"{name}.yaml"
    settings = {
        "pipeline": name,
        "source": {"mongo": uri, "collection": f"{database}.outbox"},
        "schemas": {"folder": "schemas"},
        "topics": {"template": f"{name}.{{aggregate}}", "partitions": 3},
        "kafka": {"bootstrap": bootstrap},
        **more,
    }
    file.write_text(json.dumps(settings))
    return file


def write_documents(client: MongoClient[dict[str, Any]], name: str, shape: Shape, note: int = 60) -> tuple[int, int]:
    """Writes the backlog: 100 documents share a transaction, single ones are plain inserts. Returns the last time."""
    outbox = client[name].get_collection("outbox", write_concern=WriteConcern(w=1))
    with client.start_session() as session:
        for first in range(0, shape.total, max(shape.events, 500)):
            events = [event(number, note) for number in range(first, min(first + max(shape.events, 500), shape.total))]
            if shape.events == 1:
                outbox.insert_many(events, session=session)
                continue
            for at in range(0, len(events), shape.events):
                with session.start_transaction(write_concern=WriteConcern(w=1)):
                    outbox.insert_many(events[at : at + shape.events], session=session)
        end = session.operation_time
        assert end is not None
    client[name].get_collection("last", write_concern=WriteConcern(w="majority")).insert_one({})
    return end.time, end.inc


def receive_changes(way: str, uri: str, name: str, token: dict[str, Any], events: int) -> Drain:
    """Drains the same backlog with a bare reader."""
    command = [sys.executable, "-m", "benchmarks.bare_mongo", way, uri, name, json.dumps(token), str(events)]
    done = subprocess.run(command, check=True, timeout=600, capture_output=True, text=True)
    seconds, cpu_seconds = map(float, done.stdout.split())
    return Drain(events, seconds, cpu_seconds, 0.0)


def _stored(bootstrap: str, name: str) -> dict[str, Any]:
    found = [m for m in read_all(bootstrap, ["tailrace-offsets"]) if m.key() == name.encode()]
    token: dict[str, Any] = json.loads(found[-1].value() or b"")["token"]
    return token


def timed(
    file: Path,
    bootstrap: str,
    name: str,
    end: tuple[int, int],
    events: int,
    environment: Mapping[str, str] | None = None,
) -> Drain:
    """Runs the connector until the position of the last event is stored, timed from the moment it streams."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "isolation.level": "read_committed"})
    offsets = TopicPartition("tailrace-offsets", 0)
    offsets.offset = consumer.get_watermark_offsets(offsets, timeout=10)[1]
    consumer.assign([offsets])
    connector = Connector(file, environment=environment)
    try:
        began, cpu = time.monotonic(), connector.cpu_seconds()

        def done() -> bool:
            """Whether the end is among the positions stored since the last check."""
            while (message := consumer.poll(0)) is not None:
                if message.error() is None and message.key() == name.encode():
                    stored = from_stored(json.loads(message.value() or b""))
                    if isinstance(stored, TokenPosition) and stored.time.pair >= end:
                        return True
            return False

        watch(done, 600)
        seconds = time.monotonic() - began
        return Drain(events, seconds, connector.cpu_seconds() - cpu, connector.peak_mb())
    finally:
        connector.stop()
        consumer.close()


def _report(result: dict[str, Any]) -> None:
    heads = f"{'batches':>9}{'ratio':>7}{'reach':>7}{'watch':>9}{'ratio':>7}"
    print(f"\n{'':22}{'events/s':>9}{heads}{'CPU s/M':>9}{'peak MB':>9}")
    for row in result["drain"]:
        print(
            f"{row['shape']:22}{row['events_per_s']:>9,}{row['raw_batches_events_per_s']:>9,}{row['ratio']:>7.0%}"
            f"{REACH:>7.0%}{row['watch_events_per_s']:>9,}{row['ratio_to_watch']:>7.0%}"
            f"{row['cpu_s_per_million']:>9.1f}{row['peak_mb']:>9.0f}"
        )
    latency = result["latency"]
    print(
        f"\ncommit to consumer at {latency['rate']:.0f} transactions/s: "
        f"p50 {latency['p50_ms']:.1f} ms, p99 {latency['p99_ms']:.1f} ms ({latency['events']:,} events)\n"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
