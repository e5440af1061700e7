"""`tailrace doctor` of a MongoDB pipeline: each problem is made, found, fixed with the printed fix, and gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.doctor import Doctor
from helpers.users import Users


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
