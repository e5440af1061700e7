"""An embedded outbox drained into MongoDB: batches, duplicates, refused documents, outages, start and stop."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import IndexModel
from pymongo.collection import Collection

from tailrace.backoff import Backoff
from tailrace.embedded import Drainer, EmbeddedOutbox, Entry, MongoTarget, strict
from tailrace.errors import ConfigError
from tailrace.testkit.stack import MongoServer, wait_until
from tailrace.testkit.tcp_proxy import TcpProxy

QUICK = Backoff(0.05, 0.4, jitter=0.0)
Make = Callable[..., Drainer]


def document(entry: Entry) -> dict[str, Any]:
    if entry.raw == b"bad":
        raise ValueError("not a transaction")
    value: object = 2**70 if entry.raw == b"large number" else entry.raw
    return {"_id": entry.text_key, "raw": value, "length": len(entry.raw)}


@pytest.fixture
def mirror(mongo: MongoServer) -> Iterator[Collection[dict[str, Any]]]:
    database = f"mirror_{uuid.uuid4().hex[:8]}"
    with mongo.client() as client:
        yield client[database]["transactions"]
        client.drop_database(database)


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[EmbeddedOutbox]:
    with EmbeddedOutbox(tmp_path / "outbox") as opened:
        yield opened


@pytest.fixture
def make(mongo: MongoServer, mirror: Collection[dict[str, Any]], outbox: EmbeddedOutbox) -> Make:
    def made(uri: str = "", connect_timeout: float = 10.0, **options: Any) -> Drainer:
        indexes = [IndexModel([("length", 1)])]
        target = MongoTarget(
            uri or mongo.uri,
            mirror.database.name,
            mirror.name,
            document,
            indexes=indexes,
            connect_timeout=connect_timeout,
        )
        return Drainer(outbox, target, **{"backoff": QUICK, "within": 0.05, **options})

    return made


def ids(mirror: Collection[dict[str, Any]]) -> set[str]:
    return {each["_id"] for each in mirror.find()}


def test_what_an_earlier_process_left_is_drained_and_duplicates_are_success(
    outbox: EmbeddedOutbox, make: Make, mirror: Collection[dict[str, Any]]
) -> None:
    mirror.insert_many([{"_id": "3", "raw": b"first"}, {"_id": "7", "raw": b"first"}])
    for number in range(250):
        outbox.write(str(number), bytes([number]))
    with make() as drainer:
        wait_until(lambda: outbox.count == 0, 30)
        assert drainer.healthy
    assert ids(mirror) == {str(number) for number in range(250)}
    assert mirror.find_one({"_id": "3"}) == {"_id": "3", "raw": b"first"}
    assert (drainer.stats.written, drainer.stats.duplicates) == (248, 2)
    assert (drainer.stats.batch_size, sum(drainer.stats.latency.counts)) == (50, 3)
    assert "length_1" in mirror.index_information()


def test_a_batch_is_written_when_it_is_full_or_after_its_time_or_at_the_end(
    outbox: EmbeddedOutbox, make: Make, mirror: Collection[dict[str, Any]]
) -> None:
    drainer = make(batch=10, within=3600.0)
    drainer.start()
    for number in range(10):
        outbox.write(str(number), b"x")
    wait_until(lambda: len(ids(mirror)) == 10, 30, what="a full batch")
    for number in range(10, 13):
        outbox.write(str(number), b"x")
    flying = outbox.begin("in flight", b"x")
    assert drainer.stop(), "what is in flight is not drained"
    assert ids(mirror) == {str(number) for number in range(13)}
    outbox.accepted("in flight", flying)
    with make(batch=10, within=0.05):
        wait_until(lambda: outbox.count == 0, 30, what="a batch that is not full")


def test_refused_entries_stay_and_delay_no_other(
    outbox: EmbeddedOutbox, make: Make, mirror: Collection[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    raws = {"a": b"1", "b": b"bad", "c": b"large number", "d": bytes(16_900_000), "e": b"5"}
    for key, raw in raws.items():
        outbox.write(key, raw)
    with make(batch=3) as drainer:
        wait_until(lambda: outbox.count == 3 and len(drainer.stats.refused) == 3, 60)
        outbox.write("f", b"6")
        wait_until(lambda: ids(mirror) == {"a", "e", "f"}, 30)
        assert not drainer.healthy
        assert sorted(drainer.stats.refused) == [2, 3, 4]
    assert "cannot be written, and stays in the outbox" in caplog.text
    assert "not a transaction" not in caplog.text, "a reason must not quote the payload"
    assert {entry.text_key for entry in outbox.read()} == {"b", "c", "d"}


def nested(depth: int) -> dict[str, Any]:
    return {"in": nested(depth - 1)} if depth else {}


NO_ID = "without _id"
NEVER_TAKEN: dict[str, dict[str, Any]] = {
    NO_ID: {"x": 1},
    "an array as _id": {"_id": [1]},
    "a bad _id": {"_id": {"$x": 1}},
    "nested too deeply": {"in": nested(200)},
    "too large": {"x": "x" * 16_790_000},
    "no point": {"sphere": "x"},
    "far away": {"plane": [1000, 1000]},
    "a point of text": {"plane": ["a", "b"]},
    "parallel arrays": {"a": [1, 2], "b": [1, 2]},
    "a hashed array": {"hashed": [1, 2]},
    "an unknown language": {"text": "x", "language": "klingon"},
    "a language that is no text": {"text": "x", "language": 5},
    "not valid": {"valid": False},
}


def test_what_mongodb_never_takes_is_refused_and_holds_up_nothing(
    mongo: MongoServer, mirror: Collection[dict[str, Any]], outbox: EmbeddedOutbox
) -> None:
    mirror.database.create_collection(mirror.name, validator={"valid": {"$ne": False}})
    indexes = [
        IndexModel([("sphere", "2dsphere")]),
        IndexModel([("plane", "2d")]),
        IndexModel([("a", 1), ("b", 1)]),
        IndexModel([("hashed", "hashed")]),
        IndexModel([("text", "text")]),
    ]

    def document(entry: Entry) -> dict[str, Any]:
        given = {} if entry.text_key == NO_ID else {"_id": entry.text_key}
        return {**given, **NEVER_TAKEN.get(entry.text_key, {})}

    for key in NEVER_TAKEN:
        outbox.write(key, b"x")
        outbox.write(f"after {key}", b"x")
    target = MongoTarget(mongo.uri, mirror.database.name, mirror.name, document, indexes=indexes)
    with Drainer(outbox, target, backoff=QUICK, within=0.05) as drainer:
        wait_until(lambda: drainer.stats.error or outbox.count == len(NEVER_TAKEN), 60)
        assert drainer.stats.error == ""
        assert {entry.text_key for entry in outbox.read()} == NEVER_TAKEN.keys()
    assert ids(mirror) == {f"after {key}" for key in NEVER_TAKEN}


def test_an_error_that_is_not_the_document_s_is_retried_and_has_its_code(
    mongo: MongoServer, mirror: Collection[dict[str, Any]], outbox: EmbeddedOutbox, make: Make
) -> None:
    mirror.database.create_collection(mirror.name, viewOn="other", pipeline=[])
    target = MongoTarget(mongo.uri, mirror.database.name, mirror.name, document)
    outbox.write("a", b"x")
    with Drainer(outbox, target, backoff=QUICK, within=0.05) as drainer:
        wait_until(lambda: drainer.stats.retries > 1, 30)
        assert "code 166" in drainer.stats.error
        mirror.drop()
        wait_until(lambda: outbox.count == 0, 30)
    assert ids(mirror) == {"a"}


def test_acceptance_does_not_wait_for_the_mirror_and_retries_are_delayed(
    mongo: MongoServer, outbox: EmbeddedOutbox, make: Make, mirror: Collection[dict[str, Any]]
) -> None:
    with TcpProxy((mongo.host, mongo.port)) as proxy:
        proxy.refuse()
        uri = f"mongodb://{proxy.address}/?directConnection=true"
        with make(uri, connect_timeout=0.2) as drainer:
            for number in range(30):
                with strict(outbox, str(number), b"x"):
                    pass
            assert outbox.count == 30
            wait_until(lambda: drainer.stats.retries >= 5, 30)
            assert not drainer.healthy
            assert drainer.stats.error
            assert (outbox.count, ids(mirror)) == (30, set())
            proxy.accept()
            wait_until(lambda: outbox.count == 0, 60)
            wait_until(lambda: drainer.healthy, 10)
            proxy.cut()
            outbox.write("later", b"x")
            wait_until(lambda: outbox.count == 0, 60)
    assert ids(mirror) == {*map(str, range(30)), "later"}
    assert drainer.stats.errors >= 5


def test_attempts_without_the_mirror_get_rarer(outbox: EmbeddedOutbox, make: Make) -> None:
    """Neither new entries nor full batches make it try again sooner."""
    drainer = make("mongodb://127.0.0.1:1/?directConnection=true", connect_timeout=0.01, batch=5, flush=0.0)
    began = time.monotonic()
    drainer.start()

    def writes_until_retries() -> bool:
        outbox.write(uuid.uuid4().hex, b"x")
        return drainer.stats.retries >= 6

    wait_until(writes_until_retries, 60)
    tried, seconds = drainer.stats.errors, time.monotonic() - began
    assert not drainer.stop()
    allowed, spent = 1, QUICK.delay(1)
    while spent <= seconds:
        allowed += 1
        spent += QUICK.delay(allowed)
    assert tried <= allowed, f"{tried} attempts in {seconds:.2f} s"


def test_a_stop_without_the_mirror_leaves_everything_for_the_next_start(
    outbox: EmbeddedOutbox, make: Make, mirror: Collection[dict[str, Any]]
) -> None:
    outbox.write("a", b"x")
    drainer = make("mongodb://127.0.0.1:1/?directConnection=true", connect_timeout=0.1)
    drainer.start()
    wait_until(lambda: drainer.stats.errors > 0, 30)
    assert not drainer.stop()
    assert outbox.count == 1
    with make():
        wait_until(lambda: ids(mirror) == {"a"}, 30)


def test_an_address_that_cannot_be_used_is_refused_at_once_and_not_quoted() -> None:
    with pytest.raises(ConfigError) as caught:
        MongoTarget("mongodb://user:p@ss:s3cret@host", "mirror", "transactions", document)
    assert "s3cret" not in str(caught.value)


def test_the_service_of_the_docs_works(
    mongo: MongoServer, mirror: Collection[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs the page's first block unchanged, except for the addresses."""
    page = (Path(__file__).parents[2] / "docs" / "embedded_outbox.md").read_text()
    source = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    ours = {
        "/var/lib/node/outbox": str(tmp_path / "outbox"),
        "mongodb://localhost/?replicaSet=rs0": mongo.uri,
        '"mirror"': repr(mirror.database.name),
    }
    for theirs, mine in ours.items():
        assert source.count(theirs) == 1
        source = source.replace(theirs, mine)
    exec(source, {})
    assert capsys.readouterr().out == "accepted\n"
    assert mirror.find_one() == {"_id": "0x2a", "raw": b"the transaction, byte for byte"}
