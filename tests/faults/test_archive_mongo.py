"""Archiving documents of MongoDB: whole, byte for byte, each in one file, and replayed as they were published."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import bson
import pytest
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from confluent_kafka import Message, Producer
from pyarrow import parquet

from helpers import warm_processes as warm
from helpers.command import Tailrace
from helpers.users import Users
from tailrace import failpoints
from tailrace.config.load import load_pipeline
from tailrace.positions.mongo import ClusterTime, TokenPosition
from tailrace.replay.table_points import stored_position
from tailrace.state import offsets
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all
from tailrace.testkit.workload.users import OUTBOX, outbox_document
from tailrace.testkit.workload.writer import WorkloadEvent
from tailrace.worker.wiring import wire


@pytest.fixture(autouse=True)
def alone(users: Users) -> None:
    """A separate offsets topic, because archiving reads all positions on it."""
    users.configure(kafka={"offsets_topic": f"{users.name}.offsets"})


def old_documents(users: Users, count: int, collection: str = OUTBOX) -> list[str]:
    """Creation times from 200 days ago on, one second apart."""
    begin = datetime.now(UTC) - timedelta(days=200)
    events = [WorkloadEvent(str(uuid.uuid4()), f"u{number % 7}", number + 1, valid=True) for number in range(count)]
    documents = [
        {**outbox_document(event, topic=users.topic, at=begin + timedelta(seconds=number)), "trace": f"t-{number}"}
        for number, event in enumerate(events)
    ]
    with users.client() as client:
        client[users.database][collection].insert_many(documents)
    return [event.id for event in events]


def records(users: Users, suffix: str = "") -> list[Message]:
    return read_all(users.kafka.bootstrap, [users.topic + suffix])


def arrived(users: Users, events: list[str]) -> None:
    wait_until(lambda: {header(each, "id") for each in records(users)} >= set(events), 120, what="the records")


@pytest.fixture
def busy(users: Users) -> Iterator[None]:
    """Other clients write all the time, so the oplog moves and nothing waits for the next periodic entry."""
    done = threading.Event()

    def write() -> None:
        with users.client() as client:
            while not done.wait(0.05):
                client[users.database]["elsewhere"].insert_one({})

    thread = threading.Thread(target=write)
    thread.start()
    yield
    done.set()
    thread.join(30)


@pytest.mark.slow
@pytest.mark.usefixtures("busy")
def test_killed_and_replayed(users: Users, tailrace: Tailrace, tmp_path: Path) -> None:
    place = tmp_path / "cold"
    place.mkdir()
    users.configure(archive={"url": f"file://{place}"}, limits={"batch_records": 300})
    connector = users.start()
    old = old_documents(users, 1100)
    bad = users.insert("u1", payload=42, created_at=datetime.now(UTC) - timedelta(days=150))
    new = [users.insert("u2", 9), users.insert("u3", 9, created_at="no date")]
    arrived(users, [*old, *new])
    wait_until(lambda: len(users.dead_lettered()) == 1, 60, what="the letter")
    with users.client() as client:
        collection = client[users.database][OUTBOX]
        before = {each["event_id"]: bson.encode(each) for each in collection.find()}
        write = ("archive", "write", users.file)
        for kill, files, orphans, left in (
            (failpoints.ARCHIVE_LISTED, 1, 0, 1103),
            (failpoints.ARCHIVE_DELETED, 1, 0, 103),
        ):
            if kill == failpoints.ARCHIVE_DELETED:
                # Between listing and deleting, one is changed in a field that is not part of the event.
                collection.update_one({"event_id": old[1050]}, {"$set": {"status": "published"}})
            warm.killed(*write, at=kill)
            listed = tailrace("archive", "list", users.file)
            assert (len(listed["files"]), len(listed["orphans"])) == (files, orphans), kill
            assert collection.count_documents({}) == left, kill
    for _ in range(2):
        result = tailrace(*write)
        assert (result["rows"], result["changed"], result["archived_before"], result["held"]) == (0, 1, 1, 1)
        assert users.in_outbox() == {old[1050], bad, *new}
    (entry,) = listed["files"]
    found = parquet.read_table(place / users.name / entry["file"])
    assert found["event_id"].to_pylist() == old
    assert found["tailrace_document"].to_pylist() == [before[each] for each in old]
    assert set(found["tailrace_collection"].to_pylist()) == {OUTBOX}
    # Each is replayed as it was: value, key and headers.
    planned = tailrace("replay", "plan", users.file, "--from-archive", "--from", "oldest", "--shadow", ".shadow")
    assert (planned["source"], planned["figures"]["events"]) == ("archive", 1100)
    warm.killed("replay", "apply", planned["file"], at=f"{failpoints.AFTER_COMMIT}:2")
    assert tailrace("replay", "apply", planned["file"])["continued"]
    originals = {header(each, "id"): each for each in records(users)}
    copies = records(users, ".shadow")
    assert sorted(header(each, "id") for each in copies) == sorted(old)
    for copy in copies:
        original = originals[header(copy, "id")]
        headers = [each for each in copy.headers() or [] if each[0] not in ("tailrace.replay", "tailrace.shadow")]
        assert (copy.value(), copy.key(), headers) == (original.value(), original.key(), original.headers())
    assert tailrace("replay", "diff", planned["file"])["clean"]
    arrived(users, [users.insert("u1", 10)])
    assert connector.running
    assert tailrace("verify", users.file)["clean"]


@pytest.mark.slow
@pytest.mark.usefixtures("busy")
def test_odd_documents(users: Users, tailrace: Tailrace, tmp_path: Path) -> None:
    """Ids that Python cannot represent, a date beyond its range, a time that is an array: none is lost or stops
    a run.
    """
    given = users.settings["source"]["mongo"]
    # The stream may read from a secondary; documents are deleted by the primary nevertheless.
    address = f"{given}{'&' if '?' in given else '/?'}readPreference=secondaryPreferred"
    (tmp_path / "cold").mkdir()
    users.configure(archive={"url": f"file://{tmp_path / 'cold'}"}, source={"mongo": address})
    connector = users.start()
    old, long_ago = datetime.now(UTC) - timedelta(days=200), DatetimeMS(-70_000_000_000_000)
    listed = users.insert("u0", created_at=[old - timedelta(days=400)])
    far = users.insert("u0", created_at=long_ago)
    # An id with a duplicate field, and one that is not UTF-8: decoding and encoding would change them.
    field = b"\x10a\0\x01\0\0\0"
    ids = (b"\x03_id\0\x13\0\0\0" + field * 2 + b"\0", b"\x02_id\0\x04\0\0\0a\xff\xfe\0")
    odd = [WorkloadEvent(str(uuid.uuid4()), "u1", 1, valid=True) for _ in ids]
    with users.client() as client:
        for id_, event in zip(ids, odd, strict=True):
            fields = id_ + bson.encode(outbox_document(event, topic=users.topic, at=old))[4:-1]
            raw = (len(fields) + 5).to_bytes(4, "little") + fields + b"\0"
            client[users.database].command("insert", OUTBOX, documents=[RawBSONDocument(raw)])
    arrived(users, [listed, *(event.id for event in odd), fresh := users.insert("u9")])
    # It cannot be published, so it is dead-lettered; once that is resolved, it may be archived.
    wait_until(lambda: len(users.dead_lettered()) == 1, 60, what="the letter")
    (letter,) = tailrace("dlq", "list", users.file)["letters"]
    tailrace("dlq", "discard", users.file, letter["id"], "--why", "a test", "--yes")
    # Another pipeline of the same collection that lags: the documents may be new to it.
    other = f"{users.name}_b"
    here = stored_position(wire(load_pipeline(users.file)))
    assert isinstance(here, TokenPosition)
    behind = replace(here, time=ClusterTime(1_600_000_000, 1))
    stored = offsets.record(replace(wire(load_pipeline(users.file)).kafka, pipeline=other), behind)
    producer = Producer({"bootstrap.servers": users.kafka.bootstrap})
    producer.produce(stored.topic, stored.value, stored.key)
    assert producer.flush(30) == 0
    write = ("archive", "write", users.file)
    assert other in tailrace(*write, code=2)["what"]
    write = (*write, "--ignore-pipeline", other)
    assert tailrace(*write, "--keep")["rows"] == 3
    (entry,) = tailrace("archive", "list", users.file)["files"]
    assert entry["created"]["first_ms"] == int(long_ago)
    command = [sys.executable, "-m", "tailrace", "archive", "list", str(users.file)]
    subprocess.run(command, capture_output=True, timeout=60, check=True)
    result = tailrace(*write)
    assert (result["rows"], result["finished"], result["changed"], result["archived_before"]) == (0, 3, 0, 0)
    assert users.in_outbox() == {listed, fresh}
    assert far not in users.in_outbox()
    # Put back byte for byte while the pipeline is stopped: it has not passed it yet, so it stays.
    assert connector.stop() == 0
    with users.client() as client:
        client[users.database].command("insert", OUTBOX, documents=[RawBSONDocument(raw)])
        for more in ("--dry-run",), ():
            result = tailrace(*write, *more)
            assert (result["finished"], result["later"], result["changed"], result["archived_before"]) == (0, 1, 0, 0)
        assert client[users.database][OUTBOX].count_documents({}) == 3
