"""Retention by confirmations for any store of rows: the consumer that is ready to use, on both databases."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

import psycopg
import pytest
from confluent_kafka import Producer

from tailrace.errors import TopicMissing, Unavailable
from tailrace.kafka.client import KafkaOptions
from tailrace.retention.confirmations import Confirmation, ConfirmationFormat
from tailrace.retention.confirmed import ConfirmedRetention, ConfirmedStore
from tailrace.retention.mongo_confirmed import MongoConfirmedStore
from tailrace.retention.postgres_confirmed import PostgresConfirmedStore
from tailrace.testkit.stack import KafkaBroker, MongoServer, wait_until
from tailrace.testkit.topic_reader import read_all

DAY = 86_400
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "100",
    "max.compaction.lag.ms": "100",
    "delete.retention.ms": "0",
}


class Mirror(NamedTuple):
    """A store under test: `put` adds rows, `ids` returns those that are there."""

    store: Callable[[], ConfirmedStore]
    put: Callable[[list[str]], None]
    ids: Callable[[], set[str]]
    index_used: Callable[[], bool]
    """Whether the index of the times of confirmations has been used."""


@pytest.fixture(params=["postgres", "mongo"])
def mirror(request: pytest.FixtureRequest) -> Iterator[Mirror]:
    made: list[PostgresConfirmedStore | MongoConfirmedStore] = []
    if request.param == "mongo":
        mongo: MongoServer = request.getfixturevalue("mongo")
        database = f"mirror_{uuid.uuid4().hex[:8]}"
        with mongo.client() as client:
            documents = client[database]["transactions"]

            def open_mongo() -> MongoConfirmedStore:
                made.append(store := MongoConfirmedStore(mongo.uri, database, "transactions"))
                return store

            yield Mirror(
                open_mongo,
                lambda ids: documents.insert_many([{"_id": each} for each in ids]) and None,  # type: ignore[func-returns-value]
                lambda: {str(each["_id"]) for each in documents.find()},
                lambda: any(
                    "confirmed_ms" in each["key"] and each["accesses"]["ops"]
                    for each in client[database]["tailrace_confirmations"].aggregate([{"$indexStats": {}}])
                ),
            )
            client.drop_database(database)
    else:
        dsn: str = request.getfixturevalue("database")
        with psycopg.connect(dsn, autocommit=True) as link:
            link.execute("CREATE TABLE transactions (tx_hash text PRIMARY KEY)")

            def open_postgres() -> PostgresConfirmedStore:
                made.append(store := PostgresConfirmedStore(dsn, "public.transactions", "tx_hash"))
                return store

            def put(ids: list[str]) -> None:
                link.execute("INSERT INTO transactions SELECT unnest(%s::text[])", (ids,))

            yield Mirror(
                open_postgres,
                put,
                lambda: {str(row[0]) for row in link.execute("SELECT tx_hash FROM transactions")},
                lambda: bool(
                    link.execute(
                        "SELECT FROM pg_stat_user_indexes WHERE idx_scan > 0 "
                        "AND indexrelname = 'tailrace_confirmations_due'"
                    ).fetchall()
                ),
            )
    for store in made:
        store.close()


class Chain:
    """A topic of confirmed blocks, and a clock that only the test moves."""

    def __init__(self, kafka: KafkaBroker) -> None:
        self.options = KafkaOptions(kafka.bootstrap, "mirror")
        self.topic = f"blocks_{uuid.uuid4().hex[:8]}"
        self.now = 2_000_000_000.0
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap})

    def confirm(self, number: int, hashes: list[str], **block: object) -> None:
        value = {"block": {"number": number, "transactions": hashes, **block}}
        self._producer.produce(self.topic, json.dumps(value), key=str(number))
        assert self._producer.flush(30) == 0

    def retention(self, store: ConfirmedStore, **options: object) -> ConfirmedRetention:
        form = ConfirmationFormat("block.transactions", "block.confirmed_at")
        given = {"batch_rows": 3, "clock": lambda: self.now, "form": form, **options}
        return ConfirmedRetention(self.options, self.topic, store, **given)  # type: ignore[arg-type]


@pytest.fixture
def chain(kafka: KafkaBroker) -> Chain:
    chain = Chain(kafka)
    kafka.create_topic(chain.topic, 2)
    return chain


def test_what_is_due_is_found_by_an_index(mirror: Mirror) -> None:
    """Most confirmations wait for their delay: they are not read to find those that are due."""
    store, now_ms = mirror.store(), 1_900_000_000_000
    store.schedule(
        "t", [Confirmation(f"0x{number}", now_ms + number) for number in range(20_000)], {0: 1}, restart=False
    )

    def index_was_used() -> bool:
        assert store.due(now_ms + 2, now_ms, 100) == ["0x0", "0x1", "0x2"]
        return mirror.index_used()

    wait_until(index_was_used, 30)


def test_rows_are_deleted_after_confirmation_and_delay(mirror: Mirror, chain: Chain) -> None:
    mirror.put([f"0x{number}" for number in range(10)])
    retention = chain.retention(mirror.store())
    assert retention.sweep().deleted == 0
    chain.now += 1000 * DAY  # never by age
    assert retention.sweep().deleted == 0
    chain.confirm(1, ["0x0", "0x1", "0x2", "0x3"], confirmed_at=chain.now)
    chain.confirm(2, ["0x4", "0x0", "unknown"], confirmed_at=chain.now + 60)
    chain.now += DAY - 1
    assert retention.sweep().deleted == 0
    # The schedule is in the store: another process goes on with it.
    retention = chain.retention(mirror.store())
    chain.now += 1
    assert retention.sweep().deleted == 3
    assert mirror.ids() == {"0x0", *(f"0x{number}" for number in range(4, 10))}
    chain.now += 60
    sweep = retention.sweep()
    assert (sweep.deleted, sweep.unknown) == (2, 1)
    assert (retention.sweep().unknown, sweep.forgotten) == (0, 0)
    # An unknown one that arrives late is deleted with a later tick.
    mirror.put(["unknown"])
    chain.now += 300
    assert retention.sweep().deleted == 1
    assert mirror.ids() == {f"0x{number}" for number in range(5, 10)}
    chain.confirm(3, ["nobody"], confirmed_at=chain.now)
    chain.now += 8 * DAY + 1
    assert retention.sweep().forgotten == 1
    assert (retention.sweep().unknown, len(mirror.ids())) == (0, 5)


def test_confirmations_twice_out_of_order_and_invalid(mirror: Mirror, chain: Chain) -> None:
    mirror.put(["a", "b", "c"])
    now = chain.now
    chain.confirm(2, ["a"], confirmed_at=now)
    chain.confirm(1, ["a"], confirmed_at=now - 10 * DAY)  # the latest counts, in any order
    chain.confirm(3, ["b"], confirmed_at="soon")
    chain.confirm(4, ["b"], confirmed_at=1e30)
    chain.confirm(5, [], confirmed_at=now)
    chain.confirm(6, ["c", "c"], confirmed_at=now - 2 * DAY)
    sweep = chain.retention(mirror.store()).sweep()
    assert (sweep.deleted, sum(sweep.confirmations.rejected.values())) == (1, 2)
    assert mirror.ids() == {"a", "b"}
    chain.now += DAY
    # Two consumers at once delete each row once.
    both = [chain.retention(mirror.store()), chain.retention(mirror.store())]
    results: list[int] = []
    threads = [threading.Thread(target=lambda one=one: results.append(one.sweep().deleted)) for one in both]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sum(results), mirror.ids()) == (1, {"b"})


def test_run_ticks_until_it_is_stopped(mirror: Mirror, chain: Chain) -> None:
    mirror.put(["a"])
    retention = chain.retention(mirror.store(), tick=0.05)
    stop = threading.Event()
    errors: list[Unavailable] = []
    thread = threading.Thread(target=retention.run, args=(stop.wait,), kwargs={"on_error": errors.append})
    thread.start()
    chain.confirm(1, ["a"], confirmed_at=chain.now - DAY)
    wait_until(lambda: not mirror.ids(), 60, what="the deletion")
    stop.set()
    thread.join(30)
    assert (thread.is_alive(), errors) == (False, [])


def test_a_database_that_was_away(database: str, chain: Chain) -> None:
    """A session that has ended is an error once; the next tick connects again."""
    with psycopg.connect(database, autocommit=True) as link:
        link.execute("CREATE TABLE transactions (id int PRIMARY KEY)")
        link.execute("INSERT INTO transactions SELECT generate_series(1, 5)")
        store = PostgresConfirmedStore(database, "public.transactions", "id")
        retention = chain.retention(store)
        chain.confirm(1, ["1", "not a number", "2"], confirmed_at=chain.now - DAY)
        link.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
        with pytest.raises(Unavailable):
            retention.sweep()
        assert retention.sweep().deleted == 2
        assert link.execute("SELECT count(*) FROM transactions").fetchall() == [(3,)]
        store.close()


def test_a_topic_that_does_not_exist(mirror: Mirror, kafka: KafkaBroker) -> None:
    with pytest.raises(TopicMissing, match="there is no topic"):
        Chain(kafka).retention(mirror.store()).sweep()


def test_a_compacted_topic_confirms_what_its_last_records_say(mirror: Mirror, kafka: KafkaBroker, chain: Chain) -> None:
    """Of a key, the last record is left: it has the time, or is a tombstone, which takes no confirmation back."""
    topic = f"{chain.topic}.compacted"
    kafka.create_topic(topic, 1, COMPACTED)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    chain.now = time.time() - DAY  # Kafka takes no records of the future
    confirmed_ms = round(chain.now * 1000)

    def confirm(name: str, seconds: int, value: bytes | None = b"{}") -> None:
        producer.produce(topic, value, key=name, timestamp=confirmed_ms + seconds * 1000)
        assert producer.flush(30) == 0

    mirror.put(["early", "twice", "late", "withdrawn"])
    retention = ConfirmedRetention(chain.options, topic, mirror.store(), clock=lambda: chain.now)
    confirm("early", 0)
    assert retention.sweep().confirmations.confirmations == 1
    for _ in range(5):
        confirm("twice", 0)
    confirm("twice", 60)
    confirm("late", 60)
    confirm("withdrawn", 0)
    confirm("withdrawn", 0, None)
    confirm("early", 0, None)  # after it was read

    def compacted() -> bool:
        # Rolls the segment, since its time is later: the active one is not compacted.
        producer.produce(topic, b"{}", key="other")
        assert producer.flush(30) == 0
        values = [(message.key(), message.value()) for message in read_all(kafka.bootstrap, [topic])]
        return values.count((b"twice", b"{}")) == 1 and (b"withdrawn", b"{}") not in values

    wait_until(compacted, 120, what="the compaction of the topic")
    chain.now += DAY
    swept = retention.sweep()
    assert (swept.deleted, swept.confirmations.lost) == (1, 0)
    assert mirror.ids() == {"twice", "late", "withdrawn"}
    chain.now += 60
    assert retention.sweep().deleted == 2
    chain.now += 365 * DAY
    assert retention.sweep().deleted == 0
    assert mirror.ids() == {"withdrawn"}, "its confirmation was gone before it was read"
