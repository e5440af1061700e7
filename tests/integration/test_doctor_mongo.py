"""`tailrace doctor` of a MongoDB pipeline: each problem is made, found, fixed with the printed fix, and gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.doctor import Doctor
from helpers.users import Users, close_users, open_users
from tailrace.testkit.stack import KafkaBroker, MongoServer, ServerChoice, wait_until


@pytest.fixture
def check(users: Users, capsys: pytest.CaptureFixture[str], kafka_tools: Path) -> Doctor:
    return Doctor(users, capsys, kafka_tools)


def test_indexes_schemas_and_the_replica_set(users: Users, check: Doctor) -> None:
    users.insert(payload={"user": "k", "revision": 1, "email": "e"})
    users.insert(event_type="UserForgotten", payload={"user": "k"})
    users.configure(retention={"after": "30d"}, marks="rows")
    with users.client() as client:
        collection = client[users.database]["outbox"]
        collection.drop_indexes()
        before = (collection.count_documents({}), sorted(client[users.database].list_collection_names()))
    codes = check.codes()
    assert {"mongo-known-bug", "mongo-single-member"} <= codes, "the server is a 6.0.5 with one member"
    with users.client() as client:
        collection = client[users.database]["outbox"]
        assert (collection.count_documents({}), sorted(client[users.database].list_collection_names())) == before
    check.heals("mongo-index-missing", "created_at", severity="note")
    check.heals("mongo-index-missing", "event_id", severity="note")
    check.heals("type-without-schema", "UserForgotten", severity="warning")


def test_an_oplog_that_is_full_and_short(
    kafka: KafkaBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str], kafka_tools: Path
) -> None:
    """Of a server whose oplog keeps one megabyte."""
    with MongoServer(oplog_mb=1, choice=ServerChoice.LOCAL) as server:
        users = open_users(server, kafka, tmp_path)
        try:
            check = Doctor(users, capsys, kafka_tools)
            users.insert()
            assert "oplog" not in check.codes()
            with server.client() as client:
                fill = client[users.database]["other"]

                def is_full() -> bool:
                    fill.insert_many([{"text": "x" * 100_000} for _ in range(20)])
                    stats = client["local"].command("collStats", "oplog.rs")
                    return bool(stats["size"] >= 0.9 * stats["maxSize"])

                wait_until(is_full, 60, what="a full oplog")
            found = check.finding("oplog")
            assert found["severity"] == "warning"
            assert "reaches back only" in found["what"]
            [fix] = found["fixes"]
            assert fix["kind"] == "mongosh"
            assert "replSetResizeOplog" in fix["text"]
            with server.client() as client:
                client.admin.command({"replSetResizeOplog": 1, "minRetentionHours": 48.0})
        finally:
            close_users(users)
