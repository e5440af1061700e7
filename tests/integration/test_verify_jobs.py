"""`tailrace verify` with several processes: the same result as with one, or an error, and no process stays behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from helpers.command import Output, Tailrace
from helpers.shop import Shop
from helpers.tiers import mostly_slow
from helpers.users import Users
from tailrace.config.load import load_pipeline
from tailrace.errors import ConfigError
from tailrace.kafka.reader import OffsetRange
from tailrace.records.formats import RecordFormat
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all
from tailrace.testkit.workload.writer import Mix
from tailrace.verify import verification
from tailrace.verify.backend import OutboxReader, Window
from tailrace.verify.findings import UNKNOWN, WRITTEN
from tailrace.verify.fingerprints import HEAD, Fingerprinter
from tailrace.verify.outbox_rows import Rows, may_go_by_kind
from tailrace.verify.spill import BUCKETS, SpillFile
from tailrace.verify.topic_reader import ScanSettings
from tailrace.verify.topic_scan import PartitionScan
from tailrace.verify.workers import WorkerPool
from tailrace.worker.options import column_map
from tailrace.worker.schemas import wire_format
from tailrace.worker.wiring import wire

VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'
INVALID = '{"order": "a", "revision": 1, "amount": "much", "currency": "EUR"}'


def records(shop: Shop) -> dict[str, Message]:
    return {header(message, "id"): message for message in read_all(shop.kafka.bootstrap, [shop.topic])}


def on_topic(shop: Shop, *events: str) -> None:
    wait_until(lambda: {seen.id for seen in shop.published()} >= set(events), 60, what="the records")


def produce(shop: Shop, like: Message, **headers: str) -> None:
    """Publishes a copy of a record to the same partition; `headers` replace some of its own."""
    found: Any = like
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    changed = [(name, headers.get(name, value)) for name, value in found.headers()]
    producer.produce(shop.topic, found.value(), found.key(), found.partition(), headers=changed)
    assert producer.flush(30) == 0


def verdict(result: Output) -> Output:
    """Without what differs between runs; examples have no order."""
    kept = {name: each for name, each in result.items() if name not in ("seconds", "position", "examples")}
    return {**kept, **{kind: sorted(map(str, given)) for kind, given in result["examples"].items()}}


def readers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """Returns the processes that it has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in children.read_text().split()] if children.exists() else []


def is_reading(pid: int) -> bool:
    """Returns whether it has a Kafka client, which adds threads to the two of a worker."""
    threads = Path(f"/proc/{pid}/status").read_text().partition("\nThreads:")[2].split()
    return int(threads[0]) > 4


def is_there(pid: int) -> bool:
    """Returns whether it runs; a zombie does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_the_result_does_not_depend_on_the_number_of_jobs(
    shop: Shop, tailrace: Tailrace, make_topic: Callable[..., None]
) -> None:
    make_topic(shop.topic, 3)
    shop.start()
    events = [shop.insert(VALID, key=f"k-{number % 5}") for number in range(25)]
    last = [shop.insert(VALID, key="last") for _ in range(2)]
    shop.insert(INVALID, key="bad")
    on_topic(shop, *events, *last)
    wait_until(lambda: len(shop.dead_lettered()) == 1, 60, what="the letter")
    shop.execute("UPDATE outbox SET id = gen_random_uuid() WHERE id = ANY(%s::uuid[])", events[:3])
    shop.execute("UPDATE outbox SET payload = payload || '{\"amount\": 2}' WHERE id = ANY(%s::uuid[])", events[3:7])
    shop.execute("DELETE FROM outbox WHERE id = ANY(%s::uuid[])", events[7:9])
    found = records(shop)
    for event in events[9:14]:
        produce(shop, found[event])
    produce(
        shop, found[last[1]], id="00000000-0000-0000-0000-000000000001", position=header(found[last[0]], "position")
    )
    one, two, four = (tailrace("verify", shop.file, "--jobs", jobs, code=1) for jobs in (1, 2, 4))
    assert verdict(one) == verdict(two) == verdict(four)
    counts = {kind: one[kind] for kind in ("missing", "changed", "duplicated", "out_of_order", "set_aside")}
    assert counts == {"missing": 3, "changed": 4, "duplicated": 5, "out_of_order": 1, "set_aside": 1}
    assert one["only_on_kafka"] == 6  # the old ids of the holes, the purged rows, the stranger


@pytest.mark.slow
def test_the_same_result_on_mongodb(users: Users, tailrace: Tailrace) -> None:
    users.start()
    events = [users.insert(key="k", seq=number) for number in range(1, 6)]
    wait_until(lambda: {seen.id for seen in users.published()} >= set(events), 60, what="the records")
    with users.client() as client:
        outbox = client[users.database]["outbox"]
        outbox.update_one({"event_id": events[0]}, {"$set": {"event_id": "a hole"}})
        outbox.update_one({"event_id": events[1]}, {"$set": {"payload.email": "another"}})
    one, three = (tailrace("verify", users.file, "--jobs", jobs, code=1) for jobs in (1, 3))
    assert verdict(one) == verdict(three)
    assert (one["missing"], one["changed"], one["published"]) == (1, 1, 4)


POINTS = ("verify-read", "verify-pieces", "verify-compare", "verify-check_order")


@pytest.mark.parametrize("point", mostly_slow(POINTS, ["verify-read", "verify-compare"]))
def test_a_reader_that_dies_is_an_error(
    shop: Shop, tailrace: Tailrace, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    shop.start()
    on_topic(shop, shop.insert(VALID))
    monkeypatch.setenv("TAILRACE_KILL", point)  # this process has looked at it long ago
    result = tailrace("verify", shop.file, "--jobs", "3", code=3)
    assert result["what"] == "a process that read topics has ended by signal 9"
    assert "--jobs 1" in result["remedy"]
    assert tailrace("verify", shop.file, "--jobs", "1")["clean"]


@pytest.mark.parametrize("readers", [0, 2])
def test_an_error_of_a_reader_is_reported_unchanged(shop: Shop, readers: int) -> None:
    kafka = replace(wire(load_pipeline(shop.file)).kafka, settings={"there.is.no.such": "setting"})
    with WorkerPool(readers) as pool:
        pool.begin(ScanSettings(kafka, RecordFormat(), "postgres", Window()))
        pool.start([PartitionScan("orders", 0, OffsetRange(0, 5), 0)])
        with pytest.raises(ConfigError, match=r"there\.is\.no\.such") as caught:
            pool.finish()
    assert "kafka.settings" in caught.value.remedy


def test_events_published_while_the_outbox_is_read_are_found(
    shop: Shop, tailrace: Tailrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers start before the outbox is read; the ends of the topics after that count."""
    shop.start()
    on_topic(shop, shop.insert(VALID))
    read = Rows.read

    def read_later(rows: Rows, outbox: OutboxReader, *given: Any) -> None:
        # The workers know the ends of the topics by now.
        on_topic(shop, *[shop.insert(VALID) for _ in range(3)])
        read(rows, outbox, *given)

    def never(*_: Any) -> Any:
        pytest.fail("all was there, and was not seen")

    monkeypatch.setattr(Rows, "read", read_later)
    monkeypatch.setattr(verification, "_wait", never)
    result = tailrace("verify", shop.file, "--jobs", "2")
    assert (result["rows"], result["published"], result["records"]) == (4, 4, 4)


def test_a_position_that_goes_back_from_one_reading_to_the_next(
    shop: Shop, tailrace: Tailrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker remembers what it has read of a partition."""
    shop.start()
    events = [shop.insert(VALID, key="k") for _ in range(2)]
    on_topic(shop, *events)
    found = records(shop)
    read = Rows.read

    def read_later(rows: Rows, outbox: OutboxReader, *given: Any) -> None:
        produce(shop, found[events[1]], id="a stranger", position=header(found[events[0]], "position"))
        read(rows, outbox, *given)

    monkeypatch.setattr(Rows, "read", read_later)
    result = tailrace("verify", shop.file, "--jobs", "3", code=1)
    assert [each["id"] for each in result["examples"]["out_of_order"]] == ["a stranger"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_no_process_is_left_behind(shop: Shop, number: signal.Signals, code: int) -> None:
    shop.start()
    on_topic(shop, shop.insert(VALID))
    # An open transaction holds back the end of the topic, so workers wait for it.
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap, "transactional.id": f"{shop.name}-open"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(shop.topic, "open", "k")
    assert producer.flush(30) == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "tailrace", "verify", str(shop.file), "--jobs", "3"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: any(map(is_reading, readers_of(process))), 60, what="a reader that reads")
        readers = readers_of(process)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, said
    assert b"Traceback" not in said
    wait_until(lambda: not any(map(is_there, readers)), 30, what="the end of the readers")
    producer.abort_transaction(30)


def written(shop: Shop, *, by_kind: bool) -> list[tuple[Any, ...]]:
    """Returns the spilled facts of the rows."""
    settings = load_pipeline(shop.file)
    wiring = wire(settings)
    processor, mapped = wiring.processor(), column_map(settings)
    assert may_go_by_kind(wiring, mapped)
    topics: list[str] = []
    outbox = verification.open_outbox(wiring, Window())
    with SpillFile(WRITTEN + 1) as spool:

        def number(topic: str) -> int:
            topics.append(topic)
            return 0

        Rows(processor, Fingerprinter(processor, wire_format(settings)), number, spool).read(
            outbox, mapped if by_kind else None
        )
        outbox.close()
        facts = [spool.pieces().read(WRITTEN, bucket) for bucket in range(BUCKETS)]
    assert topics
    flat = [each for bucket in facts for each in bucket]
    found = zip(*(flat[at::5] for at in range(5)), strict=True)
    return sorted((row[0][HEAD.size :], row[0], int(row[1]), int(row[2]), row[3], row[4] or b"") for row in found)


def test_rows_read_by_kind_equal_those_of_the_processor(shop: Shop) -> None:
    shop.execute(
        "ALTER TABLE outbox ALTER id TYPE text, ALTER type DROP NOT NULL, ALTER payload TYPE text, "
        "DROP CONSTRAINT outbox_pkey"
    )
    writer = shop.writer(mix=Mix(rollback=0.2))
    for _ in range(20):
        writer.transaction()
    for event, kind, payload in [
        ("plain", "OrderPlaced", "{}"),
        ("plain", "OrderPlaced", "{}"),
        ("ä", "OrderPlaced", "{}"),
        ("back\\slash\tand\ntab", "OrderPlaced", 'a "\\" and a \t'),
        ("nothing", "OrderPlaced", None),
        ("empty", "OrderPlaced", ""),
        *((f"no type {number}", kind, "{}") for number in range(3) for kind in (None, "")),
        ("nowhere", "Unheard/of", "{}"),
        ("", "OrderPlaced", "\\N"),
    ]:
        shop.execute(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (%s, 'order', 'k', %s, %s)",
            event, kind, payload,
        )  # fmt: skip
    shop.execute("INSERT INTO outbox SELECT id || '2', 'order', 'k', 'OrderPlaced', payload FROM outbox LIMIT 3")
    by_kind, by_line = written(shop, by_kind=True), written(shop, by_kind=False)
    assert by_kind == by_line
    assert len(by_kind) == len(shop.execute("SELECT FROM outbox"))
    shop.execute("UPDATE outbox SET traceparent = 'trace ' || id WHERE id LIKE '%a%'")
    rule = shop.folder / "topics" / "orders.yaml"
    rule.write_text(json.dumps({**json.loads(rule.read_text()), "key": "traceparent"}))
    by_kind, by_line = written(shop, by_kind=True), written(shop, by_kind=False)
    assert by_kind == by_line
    assert {row[-1] for row in by_kind if row[-2] != UNKNOWN} > {b"", b"trace plain"}
