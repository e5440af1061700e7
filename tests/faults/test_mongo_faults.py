"""Rows 36, 38-41, 43 and 56 of the fault matrix for MongoDB: lost oplog, dropped collections, bad documents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

from helpers.users import Users, close_users, open_users
from tailrace.testkit.stack import KafkaBroker, MongoServer, ServerChoice, wait_until
from tailrace.testkit.tcp_proxy import TcpProxy
from tailrace.testkit.topic_reader import header, read_all


@pytest.fixture(scope="module")
def small_mongo() -> Iterator[MongoServer]:
    """A separate server with a small oplog."""
    with MongoServer(oplog_mb=1, choice=ServerChoice.LOCAL) as server:
        yield server


@pytest.fixture
def own_users(small_mongo: MongoServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Users]:
    users = open_users(small_mongo, kafka, tmp_path)
    yield users
    close_users(users)


def worked(users: Users, transactions: int = 5) -> None:
    """Runs a pipeline that publishes some events, then stops it."""
    users.start()
    writer = users.writer()
    for _ in range(transactions):
        writer.transaction(rollback=False)
    verdict = users.caught_up()
    assert verdict.ok, verdict
    assert users.connectors[-1].stop() == 0


def roll_over(users: Users) -> None:
    """Fills the oplog with other writes until its first entry is removed."""
    with users.client() as client:
        oplog = client.local["oplog.rs"]
        newest = oplog.find_one(sort=[("$natural", -1)])
        assert newest is not None

        def rolled() -> bool:
            client[users.database].filler.insert_many([{"x": "y" * 50_000} for _ in range(20)])
            oldest = oplog.find_one(sort=[("$natural", 1)])
            return bool(oldest and oldest["ts"] > newest["ts"])

        wait_until(rolled, 60, what="the oplog to roll over")


def test_the_server_is_killed(own_users: Users) -> None:
    users = own_users
    connector = users.start()
    writer = users.writer()
    writer.start(rate=50)
    wait_until(lambda: len(users.positions()) > 3, 60, what="some batches to be stored")
    assert isinstance(users.mongo, MongoServer)
    users.mongo.kill()
    connector.says('"SourceUnavailable"')
    users.mongo.start()
    connector.says('"running"')
    writer.stop()
    verdict = users.caught_up()
    assert verdict.ok, verdict
    assert connector.running


def test_the_oplog_has_rolled_over(own_users: Users) -> None:
    """It fails once and does not recover by itself; --adopt makes it continue from now."""
    users = own_users
    worked(users)
    lost = {entry.id for entry in users.writers[0].transaction(3, rollback=False)}
    roll_over(users)
    for _ in range(2):
        connector = users.start(wait=False)
        connector.failed("HistoryLost")
        assert connector.log.count('"HistoryLost"') == 1
        assert '"waiting"' not in connector.log
        assert "--adopt" in connector.log
    users.start("--adopt")
    users.writers[0].transaction(rollback=False)
    wait_until(lambda: set(users.verdict().missing) <= lost, 60, what=f"the rest:\n{users.connectors[-1].log}")
    verdict = users.verdict()
    assert set(verdict.missing) == lost
    assert not verdict.duplicated


def test_a_quiet_outbox_does_not_fall_off_the_oplog(own_users: Users) -> None:
    """Other collections are busy; the position follows the server's token, so that a later stop does no harm."""
    users = own_users
    worked(users)
    connector = users.start()
    roll_over(users)
    with users.client() as client:
        newest = client.local["oplog.rs"].find_one(sort=[("$natural", -1)])
        assert newest is not None
        mark = (newest["ts"].time, newest["ts"].inc)

        def passed() -> bool:
            client[users.database].unrelated.insert_one({})
            return users.positions()[-1].time.pair > mark

        wait_until(passed, 90, what=f"a position without events:\n{connector.log}")
    assert connector.stop() == 0
    users.writers[0].transaction(rollback=False)
    users.start()
    verdict = users.caught_up()
    assert verdict.ok, verdict


@pytest.mark.slow
@pytest.mark.parametrize("end", ["drop", "rename", "drop database"])
@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_the_collection_is_gone(users: Users, end: str, running: bool) -> None:
    """Everything before is published; then it stops, and continues only with --adopt."""
    worked(users)
    if running:
        users.start()
    writer = users.writers[0]
    writer.transaction(rollback=False)
    committed = {entry.id for entry in writer.written}
    with users.client() as client:
        database = client[users.database]
        if end == "drop":
            database.outbox.drop()
        elif end == "rename":
            database.outbox.rename("outbox_of_yesterday")
        else:
            client.drop_database(users.database)
        database.create_collection("outbox")
    error = "CollectionGone" if running else "WrongLog"
    connector = users.connectors[-1] if running else users.start(wait=False)
    connector.failed(error)
    assert "--adopt" in connector.log
    users.start(wait=False).failed("WrongLog")  # re-created: not the collection that was read
    users.start("--adopt")
    after = users.insert("after")
    wait_until(lambda: after in {seen.id for seen in users.published()}, 60, what=f"it:\n{users.connectors[-1].log}")
    ids = [seen.id for seen in [*users.published(), *users.dead_lettered()]]
    assert committed < set(ids)
    assert len(ids) == len(set(ids))
    assert users.connectors[-1].stop() == 0
    users.start()  # once is enough
    last = users.insert("last")
    wait_until(lambda: last in {seen.id for seen in users.published()}, 60, what="the last event")


def test_a_change_of_the_watched_collections_is_refused(users: Users) -> None:
    worked(users)
    with users.client() as client:
        client[users.database].create_collection("outbox2")
    both = [f"{users.database}.outbox", f"{users.database}.outbox2"]
    users.configure(source={"collection": both})
    missed = users.insert("missed")
    connector = users.start(wait=False)
    connector.failed("StreamChanged")
    assert "outbox2" in connector.log
    users.start("--adopt")
    other = users.insert("other", collection="outbox2")
    wait_until(lambda: other in {seen.id for seen in users.published()}, 60, what=f"it:\n{users.connectors[-1].log}")
    ids = [seen.id for seen in users.published()]
    assert ids.count(missed) == ids.count(other) == 1
    assert len(ids) == len(set(ids))


def test_changes_that_are_too_large_stop_the_pipeline(users: Users) -> None:
    """This server cannot split them: the pipeline stops after publishing everything before, and --adopt continues."""
    users.start().stop()
    before = users.insert("before")
    for _ in range(2):
        # The token repeats the id, in hexadecimal.
        users.insert("large", _id=f"{len(users.in_outbox())}" + "i" * 100_000, note="n" * 16_550_000)
    after = users.insert("after")
    with users.client() as client:
        splits = tuple(client.server_info()["versionArray"][:3]) >= (6, 0, 9)
    connector = users.start(wait=False)
    if splits:
        wait_until(lambda: len(users.published()) + len(users.dead_lettered()) == 4, 60, what="all of them")
        return
    connector.failed("EventTooLarge")
    assert connector.log.count('"EventTooLarge"') == 1
    assert "69696969" not in connector.log, "no id in logs"
    users.start(wait=False).failed("EventTooLarge")
    assert [seen.id for seen in users.published()] == [before], connector.log
    users.start("--adopt")
    wait_until(lambda: after in {seen.id for seen in users.published()}, 60, what=f"it:\n{users.connectors[-1].log}")
    # They may be in different partitions.
    assert sorted(seen.id for seen in users.published()) == sorted([before, after])


POISON = "poison_message"
# The difference from a valid document, the reason, a word of the explanation.
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "NaN": ({"payload": {"user": "u", "revision": 1, "email": "e", "n": float("nan")}}, POISON, "nan"),
    "no JSON": ({"payload": '{"user": '}, POISON, "not usable JSON"),
    "NUL": ({"payload": {"user": "\0", "revision": 1, "email": "e"}}, POISON, "U+0000"),
    "breaks its schema": ({"payload": {"user": "u"}}, "schema_validation_failed", "revision"),
    "bare number": ({"payload": 5}, POISON, "bare int"),
    "no schema": ({"event_type": "NobodyKnows"}, "schema_validation_failed", "NobodyKnows"),
    "no type": ({"event_type": None}, POISON, "type"),
    "no topic": ({"entity_type": "elsewhere"}, "permanent_failure", "elsewhere"),
    "binary": ({"payload": b"\x00\xff"}, POISON, "not usable JSON"),
}


def test_poison_messages_are_dead_lettered_and_the_stream_continues(users: Users) -> None:
    connector = users.start()
    before = users.insert("k")
    for fields, _, _ in BAD.values():
        users.insert("k", **fields)
    with users.client() as client:
        client[users.database].outbox.insert_one({"_id": ObjectId(), "event_id": "nothing else"})
    tombstone = users.insert("k", payload=None)
    after = users.insert("k", 2)
    wait_until(lambda: after in {seen.id for seen in users.published()}, 60, what=f"the last:\n{connector.log}")
    published = {header(message, "id"): message for message in read_all(users.kafka.bootstrap, [users.topic])}
    assert set(published) == {before, tombstone, after}
    assert published[tombstone].value() is None
    letters = read_all(users.kafka.bootstrap, [users.letters])
    wanted = [*BAD.items(), ("nothing", ({}, POISON, "'event_type'"))]
    for (name, (_, reason, word)), letter in zip(wanted, letters, strict=True):
        assert header(letter, "tailrace.reason") == reason, name
        assert word in header(letter, "tailrace.explanation"), (name, header(letter, "tailrace.explanation"))
        assert header(letter, "tailrace.position"), name
    assert connector.running
    assert "nothing else" not in connector.log, "no payload in logs"


def test_a_closed_and_a_hanging_connection(kafka: KafkaBroker, tmp_path: Path) -> None:
    with MongoServer(choice=ServerChoice.LOCAL) as server, TcpProxy((server.host, server.port)) as proxy:
        server.advertise(proxy.port)
        users = open_users(server, kafka, tmp_path, link_timeout=3)
        try:
            connector = users.start()
            writer = users.writer()
            writer.transaction(rollback=False)
            assert users.caught_up().ok
            proxy.cut()
            writer.transaction(rollback=False)
            assert users.caught_up().ok
            proxy.blackhole()
            connector.says('"SourceUnavailable"')
            writer.transaction(rollback=False)
            proxy.restore()
            proxy.cut()
            verdict = users.caught_up()
            assert verdict.ok, (verdict, connector.log)
            assert connector.running
        finally:
            close_users(users)
