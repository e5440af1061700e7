"""The simulated servers behave as the real ones: the same script runs on both and sees the same."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from simulation.broker import Broker
from simulation.kafka_client import KafkaClients
from simulation.network import LOSE_ANSWER, Network
from simulation.postgres import PostgresServer as SimulatedPostgres
from simulation.postgres_client import PgSession
from simulation.scheduler import Process, Simulation
from tailrace.positions.postgres import format_lsn
from tailrace.sources.postgres import catalog
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.pgoutput import Commit, decode
from tailrace.sources.postgres.replication_protocol import XLOG_DATA, XLOG_DATA_BODY, encode_status_update
from tailrace.testkit.stack import KafkaBroker, wait_until

TOPIC = "conformance"
Wait = Callable[[Callable[[], bool]], None]


def in_simulation(simulation: Simulation, script: Callable[[], Any]) -> Any:
    """Runs a script as a process of the simulation."""
    results: list[Any] = []
    simulation.spawn(Process("script"), lambda: results.append(script()))
    try:
        assert simulation.run(lambda: bool(results), until=600.0)
    finally:
        simulation.end()
    return results[0]


def simulated_wait(simulation: Simulation) -> Wait:
    def wait(predicate: Callable[[], bool]) -> None:
        for _ in range(1000):
            if predicate():
                return
            simulation.sleep(0.05)
        raise AssertionError("it did not happen")

    return wait


# Postgres: which transactions a stream sends.


def streams(connect: Callable[[bool], Any], commit: Callable[[], None], wait: Wait, name: str) -> list[list[int]]:
    """The numbers of the transactions that each stream sends, from the first one on."""
    control = connect(False)
    known: list[Commit] = []

    def stream(count: int, confirm: Callable[[], int] | None = None) -> list[int]:
        session = connect(True)
        session.begin_copy(
            f"START_REPLICATION SLOT \"{name}\" LOGICAL {format_lsn(0)} (proto_version '1', publication_names '{name}')"
        )
        found: list[Commit] = []

        def read() -> bool:
            for frame in session.frames():
                message = decode(frame, XLOG_DATA_BODY) if frame[0] == XLOG_DATA else None
                if isinstance(message, Commit):
                    found.append(message)
            return len(found) >= count

        wait(read)
        known.extend(each for each in found if each not in known)
        if confirm is not None:
            flush = confirm()
            session.send(encode_status_update(flush, flush, flush, 0))
            wait(lambda: (slot := catalog.read_slot(control, name)) is not None and slot.confirmed_lsn == flush)
        session.end_copy(0.5)
        session.close()
        wait(lambda: (slot := catalog.read_slot(control, name)) is not None and slot.active_pid is None)
        return [known.index(each) for each in found]

    catalog.create_slot(connect(True), name, failover=False)
    for _ in range(3):
        commit()
    seen = [stream(3, lambda: known[1].end_lsn)]
    seen.append(stream(1, lambda: known[2].commit_lsn))  # an older start is moved forward to what is confirmed
    seen.append(stream(1, lambda: known[2].end_lsn))  # a transaction comes again until its end is confirmed
    commit()
    seen.append(stream(1))
    seen.append(stream(1))  # not confirmed: it comes again
    return seen


def test_a_walsender_sends_what_is_not_confirmed(database: str) -> None:
    name = f"conformance_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(database, autocommit=True) as service:
        service.execute("CREATE TABLE outbox (id text)")
        service.execute(f"CREATE PUBLICATION {name} FOR TABLE outbox")  # type: ignore[arg-type]
        open_: list[PgConnection] = []

        def connect(replication: bool) -> PgConnection:
            open_.append(PgConnection(database, replication=replication, timeout=30.0))
            return open_[-1]

        try:
            real = streams(
                connect,
                lambda: service.execute("INSERT INTO outbox VALUES ('a-1')") and None,
                lambda predicate: wait_until(predicate, 60, what="the stream"),
                name,
            )
        finally:
            for each in open_:
                each.close()
            service.execute("SELECT pg_drop_replication_slot(%s)", [name])
    simulation = Simulation("conformance")
    server = SimulatedPostgres(simulation)
    network = Network(simulation)
    simulated = in_simulation(
        simulation,
        lambda: streams(
            lambda _: PgSession(simulation, server, network, 30.0),
            lambda: server.commit(["a-1"]),
            simulated_wait(simulation),
            "shop",
        ),
    )
    assert real == simulated == [[0, 1, 2], [2], [2], [3], [3]]


# Kafka: fencing, what readers of committed records see, and a repeated commit.


def transactions(make: Callable[..., Any], read: Callable[[], list[bytes]], wait: Wait, name: str) -> list[Any]:
    """What two producers with one transactional id, and a reader, see."""
    config = {"transactional.id": name}
    older, newer = make(config), make(config)
    seen: list[Any] = []

    def tried(step: Callable[..., Any], *given: Any) -> None:
        try:
            step(*given)
            seen.append("done")
        except KafkaException as error:
            seen.append((error.args[0].name(), error.args[0].fatal()))

    older.init_transactions(30)
    older.begin_transaction()
    older.produce(TOPIC, b"first")
    older.commit_transaction(30)
    older.begin_transaction()
    older.produce(TOPIC, b"never")
    older.flush(30)
    newer.init_transactions(30)  # fences, and aborts what is open
    tried(older.commit_transaction, 30)
    tried(older.begin_transaction)
    newer.begin_transaction()
    newer.produce(TOPIC, b"second")
    newer.commit_transaction(30)
    wait(lambda: len(read()) == 2)
    newer.begin_transaction()
    newer.produce(TOPIC, b"aborted")
    newer.flush(30)
    newer.abort_transaction(30)
    newer.begin_transaction()
    newer.produce(TOPIC, b"third")
    newer.commit_transaction(30)
    wait(lambda: len(read()) == 3)
    return [*seen, read()]


def test_a_coordinator_fences_and_aborts(kafka: KafkaBroker) -> None:
    kafka.create_topic(TOPIC)
    servers = {"bootstrap.servers": kafka.bootstrap}

    def read() -> list[bytes]:
        reader = Consumer({**servers, "group.id": "conformance", "isolation.level": "read_committed"})
        try:
            reader.assign([TopicPartition(TOPIC, 0, 0)])
            return [message.value() or b"" for message in reader.consume(10, 2) if message.error() is None]
        finally:
            reader.close()

    real = transactions(
        lambda config: Producer({**servers, **config}),
        read,
        lambda predicate: wait_until(predicate, 60, what="the records"),
        "conformance",
    )
    simulated = simulated_transactions({})
    assert real == simulated
    assert simulated[-1] == [b"first", b"second", b"third"]


def test_losing_any_answer_changes_nothing_that_is_seen() -> None:
    """The client asks again, and the coordinator answers as before: only that makes a lost answer harmless."""
    expected = simulated_transactions({})
    for step in range(1, 12):
        assert simulated_transactions({step: LOSE_ANSWER}) == expected


def simulated_transactions(plan: dict[int, str]) -> list[Any]:
    simulation = Simulation("conformance")
    broker = Broker(simulation)
    broker.create(TOPIC, 1)
    clients = KafkaClients(simulation, broker, Network(simulation, plan))

    def read() -> list[bytes]:
        return [record.value or b"" for record in broker.read(TOPIC, 0, 0, committed=True)[0]]

    found: list[Any] = in_simulation(
        simulation,
        lambda: transactions(clients.producer, read, simulated_wait(simulation), "conformance"),
    )
    return found
