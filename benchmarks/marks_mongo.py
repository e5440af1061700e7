"""What row marks cost in MongoDB, for `benchmarks.marks`: drains, and a steady rate.

The collection has the layout `document` with all its indexes, of which a mark changes two.

As a program, it is the service of the steady rate, with ten events a transaction: one writer cannot commit 2,000 single
ones a second. Arguments: URI, database, events a second, seconds.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from benchmarks.backlog import Shape
from benchmarks.latency import measure
from benchmarks.mongo import event, timed, write_mongo_pipeline
from benchmarks.processes import Connector, watch
from tailrace.outbox.mongosh import collection_commands
from tailrace.testkit.stack import KafkaBroker, MongoServer

KINDS = ("none", "rows")
ROUNDS = 3
SAMPLE_SECONDS = 0.25
BATCH = 10
"""Events per transaction at a steady rate."""
Document = dict[str, Any]


def measured(
    mongo: MongoServer, kafka: KafkaBroker, folder: Path, shape: Shape, rate: int, seconds: int
) -> dict[str, Any]:
    """Returns the drains of a part of the backlog and the latencies, with and without row marks."""
    shape = Shape(shape.name, max(1, shape.transactions // 2), shape.events)  # writing it takes longer than draining it
    _drain(
        mongo, kafka, folder, Shape("warm-up", max(1, shape.transactions // 4), shape.events), "documents_warm", "none"
    )
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for number in range(ROUNDS):
        for kind in KINDS if number % 2 else KINDS[::-1]:
            found[kind].append(_drain(mongo, kafka, folder, shape, f"documents_{kind}_{number}", kind))
    steady = {kind: _steady(mongo, kafka, folder, kind, rate, seconds) for kind in KINDS}
    return {"drain": summary(found), "steady": steady}


def summary(found: dict[str, list[tuple[float, float]]]) -> list[dict[str, Any]]:
    """Returns a row per kind of marks, from the rate of each drain and how long marks took after it."""
    first = median(rate for rate, _ in found["none"])
    return [
        {
            "marks": kind,
            "events_per_s": round(median(rate for rate, _ in each)),
            "ratio": round(median(rate for rate, _ in each) / first, 3),
            "complete_after_s": round(median(late for _, late in each), 1),
            "rounds": [round(rate) for rate, _ in each],
        }
        for kind, each in found.items()
    ]


def document(number: int) -> Document:
    """The event of the other benchmarks, in the layout `document`."""
    plain = event(number)
    return {
        "event_id": str(uuid.uuid4()), "event_type": plain["type"], "entity_type": plain["aggregatetype"],
        "entity_id": plain["aggregateid"], "entity_version": number, "partition_key": plain["aggregateid"],
        "topic": "orders", "payload": plain["payload"], "status": "pending", "retry_count": 0, "max_retries": 5,
        "created_at": datetime.now(UTC),
    }  # fmt: skip


def _drain(
    mongo: MongoServer, kafka: KafkaBroker, folder: Path, shape: Shape, name: str, kind: str
) -> tuple[float, float]:
    """Returns the rate, and how many seconds after the drain all marks were written."""
    file = _pipeline(mongo, kafka, folder, name, kind)
    with mongo.client() as client:
        end = _write(client, name, shape)
        _say(f"MongoDB, marks: {kind}: draining {shape.total:,} events")
        rate = timed(file, kafka.bootstrap, name, end, shape.total).rate
        if kind == "none":
            return rate, 0.0
        began = time.monotonic()
        connector = Connector(file)
        try:
            watch(lambda: _behind(client, name) == 0, 600)
        finally:
            connector.stop()
        return rate, time.monotonic() - began


def _steady(mongo: MongoServer, kafka: KafkaBroker, folder: Path, kind: str, rate: int, seconds: int) -> dict[str, Any]:
    _say(f"MongoDB, marks: {kind}: {rate:,} events a second for {seconds} s, {BATCH} in a transaction")
    name = f"documents_steady_{kind}"
    file = _pipeline(mongo, kafka, folder, name, kind)
    behind: list[float] = []
    ended = threading.Event()
    with mongo.client() as client:
        # Creates the topic.
        timed(file, kafka.bootstrap, name, _write(client, name, Shape("one event", 1, 1)), 1)

        def sample() -> None:
            while not ended.wait(SAMPLE_SECONDS):
                behind.append(_behind(client, name))

        writing = [sys.executable, "-m", "benchmarks.marks_mongo", mongo.uri, name, str(rate), str(seconds)]
        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            latency = measure(writing, file, kafka.bootstrap, f"{name}.order")
        finally:
            ended.set()
            sampler.join()
    late = max(behind[len(behind) // 3 :], default=0.0) if kind == "rows" else 0.0
    return {**{key: round(value, 1) for key, value in asdict(latency).items()}, "behind_s": round(late, 2)}


def _pipeline(mongo: MongoServer, kafka: KafkaBroker, folder: Path, name: str, kind: str) -> Path:
    """Creates the collection, and stores the start position, so that the backlog comes after it."""
    with mongo.client() as client:
        for command in collection_commands(name, "outbox"):
            client[name].command(command.body)
    file = write_mongo_pipeline(
        folder, name, name, mongo.uri, kafka.bootstrap, marks=kind, outbox={"layout": "document"}
    )
    Connector(file).stop()
    return file


def _write(client: MongoClient[Document], name: str, shape: Shape) -> tuple[int, int]:
    """Writes the backlog; returns the time of its last transaction."""
    concern = WriteConcern(w=1)
    outbox = client[name].get_collection("outbox", write_concern=concern)
    with client.start_session() as session:
        for first in range(0, shape.total, shape.events):
            with session.start_transaction(write_concern=concern):
                outbox.insert_many([document(first + at) for at in range(shape.events)], session=session)
        end = session.operation_time
        assert end is not None
    client[name].get_collection("last", write_concern=WriteConcern(w="majority")).insert_one({})
    return end.time, end.inc


def _behind(client: MongoClient[Document], name: str) -> float:
    """Returns the age of the oldest document without a mark in seconds; 0 if there is none."""
    oldest = client[name]["outbox"].find_one({"status": "pending"}, ["created_at"], sort=[("created_at", 1)])
    if oldest is None:
        return 0.0
    at: datetime = oldest["created_at"]
    return max(0.001, time.time() - at.replace(tzinfo=UTC).timestamp())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    uri, database, rate, seconds = sys.argv[1:]
    with MongoClient[Document](uri) as client, client.start_session() as session:
        outbox = client[database]["outbox"]
        began = time.monotonic()
        for number in range(0, int(rate) * int(seconds), BATCH):
            due = began + number / int(rate)
            if (left := due - time.monotonic()) > 0:
                time.sleep(left)
            if time.monotonic() - began > int(seconds):
                break
            with session.start_transaction():
                outbox.insert_many([document(number + at) for at in range(BATCH)], session=session)


if __name__ == "__main__":
    main()
