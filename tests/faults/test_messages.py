"""Events as messages of pg_logical_emit_message, an outbox without a table."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from helpers.command import Tailrace
from helpers.shop import Shop, close_shop, open_shop
from tailrace import failpoints
from tailrace.testkit.stack import KafkaBroker, PostgresServer, wait_until
from tailrace.testkit.topic_reader import read_all
from tailrace.testkit.workload.orders import OrdersWriter
from tailrace.testkit.workload.writer import Mix, WorkloadEvent

PAYLOAD = {"order": "o", "revision": 1, "amount": 1.5, "currency": "EUR"}
EMIT = "SELECT pg_logical_emit_message(%s, %s, %s)"


def content(event: str, key: str, payload: dict[str, Any], kind: str = "OrderPlaced") -> str:
    return json.dumps(
        {"id": event, "aggregatetype": "order", "aggregateid": key, "type": kind, "payload": payload, "created_at": ""}
    )


class MessageWriter(OrdersWriter):
    """Writes an order and emits its event, some inside savepoints, some of which are rolled back first."""

    def _write(self, event: WorkloadEvent) -> None:
        connection = self._connected()
        payload = {**PAYLOAD, "order": event.key, "revision": event.seq}
        if not event.valid:
            payload["amount"] = "a lot"
        inside = self._random.random() < self._mix.savepoint
        if inside:
            connection.execute("SAVEPOINT part")
            connection.execute(EMIT, (True, "orders", content(str(uuid.uuid4()), event.key, payload)))
            connection.execute("ROLLBACK TO part")
        connection.execute(
            "INSERT INTO orders VALUES (%s, 0, %s) ON CONFLICT (id) DO UPDATE SET revision = excluded.revision",
            (event.key, event.seq),
        )
        connection.execute(EMIT, (True, "orders", content(event.id, event.key, payload)))
        if inside:
            connection.execute("RELEASE part")


class MessageShop(Shop):
    """A shop without an outbox table."""

    def make_writer(self, **options: Any) -> OrdersWriter:
        return MessageWriter(self.dsn, **{"mix": Mix(savepoint=0.3), **options})

    def in_outbox(self) -> set[str]:
        return set()

    def emit(self, *contents: str, transactional: bool = True, prefix: str = "orders") -> None:
        with psycopg.connect(self.dsn) as connection:
            for each in contents:
                connection.execute(EMIT, (transactional, prefix, each))


def message_shop(postgres: PostgresServer, kafka: KafkaBroker, folder: Path, **options: Any) -> MessageShop:
    base = open_shop(postgres, kafka, folder, **options)
    base.execute("DROP TABLE outbox")
    shop = MessageShop(postgres, kafka, folder, base.name, base.dsn)
    shop.settings = base.settings
    del shop.settings["source"]["table"]
    shop.configure(source={"messages": {"prefix": "orders"}})
    return shop


@pytest.fixture
def messages(postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[MessageShop]:
    shop = message_shop(postgres, kafka, tmp_path)
    yield shop
    close_shop(shop)


@pytest.fixture
def messages18(postgres18: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[MessageShop]:
    shop = message_shop(postgres18, kafka, tmp_path)
    yield shop
    close_shop(shop)


def killed_at(shop: MessageShop, *points: str) -> None:
    """Kills the connector at each point. Small batches cut transactions in the middle."""
    shop.configure(limits={"batch_records": 5})
    shop.start().stop()
    writer = shop.writer()
    for point in points:
        for _ in range(12):
            writer.transaction(events=7)
        nth = 1 if point in (failpoints.STREAM_STARTED, failpoints.IDLE_STORED, failpoints.DRAINING) else 3
        connector = shop.start(kill=f"{point}:{nth}", wait=False)
        if point == failpoints.IDLE_STORED:
            shop.execute("CREATE TABLE unrelated AS SELECT generate_series(1, 1000)")
        if point == failpoints.DRAINING:
            connector.says('"running"')
            connector.stop()
        assert connector.ended() == -9
    shop.start()
    writer.transaction(events=3, rollback=False)
    verdict = shop.caught_up()
    assert verdict.ok, verdict


def test_killed_inside_a_transaction_and_around_the_commit(messages: MessageShop) -> None:
    killed_at(messages, failpoints.ROWS_READ, failpoints.AFTER_PRODUCE, failpoints.AFTER_COMMIT)


@pytest.mark.slow
def test_killed_at_the_other_failpoints(messages18: MessageShop) -> None:
    for point in (failpoints.SLOT_INTENDED, failpoints.SLOT_CREATED):
        assert messages18.start(kill=point).ended() == -9
    killed_at(
        messages18, failpoints.STREAM_STARTED, failpoints.BEFORE_PRODUCE, failpoints.AFTER_CONFIRM,
        failpoints.IDLE_STORED, failpoints.DRAINING,
    )  # fmt: skip


def test_what_is_published_and_what_is_not(messages: MessageShop, tailrace: Tailrace) -> None:
    """Rolled-back transactions, other prefixes, messages outside of transactions and content that is no event."""
    shop = messages
    shop.configure(source={"replay_window": "1 h"})
    connector = shop.start()
    checks = tailrace("check", shop.file)["checks"]
    assert {each["name"]: each["state"] for each in checks}.items() >= {"messages": "OK", "publication": "OK"}.items()
    with psycopg.connect(shop.dsn) as connection:
        connection.execute(EMIT, (True, "orders", content("rolled back", "k", PAYLOAD)))
        connection.execute(EMIT, (False, "orders", content("not transactional", "k", PAYLOAD)))
        connection.rollback()
    connector.says("NonTransactionalMessage")
    shop.emit(content("of another prefix", "k", PAYLOAD), prefix="order")
    first = [content(f"e-{number}", "k", {**PAYLOAD, "revision": number}) for number in range(1, 6)]
    shop.emit(*first, "hello", content("e-6", "k", {"order": 1}))
    wait_until(lambda: len(shop.published()) + len(shop.dead_lettered()) >= 7, 60, what="the events")
    records = read_all(shop.kafka.bootstrap, [shop.topic])
    assert [json.loads(record.value() or b"")["revision"] for record in records] == [1, 2, 3, 4, 5]
    assert records[0].value() == json.dumps({**PAYLOAD, "revision": 1}).encode(), "byte for byte"
    letters = [dict(record.headers() or []) for record in read_all(shop.kafka.bootstrap, [shop.letters])]
    explained = [letter["tailrace.explanation"].decode() for letter in letters]
    assert [("not usable JSON" in each, "violates version" in each) for each in explained] == [
        (True, False), (False, True),
    ]  # fmt: skip
    planned = tailrace("replay", "plan", shop.file, "--from", "oldest", "--output", shop.folder / "plan.json")
    assert planned["figures"]["events"] == 7, "the log can be replayed"
    for arguments in (
        ("verify", shop.file),
        ("recover", "plan", shop.file),
        ("replay", "plan", shop.file, "--from", "1h", "--from-table", "--output", shop.folder / "plan.json"),
    ):
        refused = tailrace(*arguments, code=2)
        assert (refused["error"], bool(refused["remedy"])) == ("NoOutboxTable", True), refused
    assert connector.running


@pytest.mark.slow
def test_publications_and_databases_that_do_not_fit(
    messages: MessageShop, postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path
) -> None:
    shop = messages
    shop.execute(f"CREATE PUBLICATION {shop.slot} FOR TABLE orders")
    shop.start(wait=False).failed("PublicationBroken")
    shop.execute(f"ALTER PUBLICATION {shop.slot} DROP TABLE orders")
    connector = shop.start()
    shop.execute(f"DROP PUBLICATION {shop.slot}")
    shop.emit(content("e-1", "k", PAYLOAD))
    connector.failed("PublicationBroken")
    shop.execute(f"CREATE PUBLICATION {shop.slot}")
    shop.start()
    shop.emit(content("e-2", "k", PAYLOAD))
    wait_until(lambda: len(shop.published()) >= 2, 60, what="both events")
    assert [seen.id for seen in shop.published()] == ["e-1", "e-2"]
    (tmp_path / "latin").mkdir()
    other = message_shop(postgres, kafka, tmp_path / "latin", encoding="LATIN1")
    other.start(wait=False).failed("AccessRefused")
    close_shop(other)


@pytest.mark.slow
def test_rewinding_and_a_lost_slot(messages: MessageShop, tailrace: Tailrace) -> None:
    """Messages that the log still has are published again by a rewind; without the slot, it continues with --adopt."""
    shop = messages
    shop.configure(source={"replay_window": "1 h"})
    connector = shop.start()
    shop.emit(*(content(f"e-{number}", "k", PAYLOAD) for number in range(3)))
    wait_until(lambda: len(shop.published()) == 3, 60, what="the events")
    assert connector.stop() == 0
    assert all(each["state"] != "FAIL" for each in tailrace("check", shop.file)["checks"])
    place = shop.folder / "plan.json"
    tailrace("replay", "plan", shop.file, "--from", "event:e-1", "--in-place", "--output", place)
    tailrace("replay", "apply", place)
    connector = shop.start()
    wait_until(lambda: len(shop.published()) == 6, 60, what="the events of the same transaction once more")
    assert connector.stop() == 0
    shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
    shop.emit(content("lost", "k", PAYLOAD))
    shop.start(wait=False).failed("SlotMissing")
    refused = tailrace("recover", "plan", shop.file, code=2)
    assert refused["error"] == "NoOutboxTable"
    create = refused["remedy"].partition("no slot: ")[2].partition(";")[0]
    shop.execute(create)
    shop.start("--adopt")
    shop.emit(content("e-3", "k", PAYLOAD))
    wait_until(lambda: len(shop.published()) == 7, 60, what="the next event")
    assert shop.published()[-1].id == "e-3"
