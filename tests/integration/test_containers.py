"""The stack in Docker, through testcontainers: runs where a Docker engine answers."""

from __future__ import annotations

import psycopg
import pytest

from tailrace.testkit.stack import ServerChoice, Stack, StackError

pytestmark = pytest.mark.docker


def test_the_stack_starts_in_docker() -> None:
    with Stack(mongo=True, choice=ServerChoice.DOCKER) as stack:
        with psycopg.connect(stack.postgres.create_database("shop")) as connection:
            assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
        stack.kafka.create_topic("orders", partitions=3)
        assert len(stack.kafka.admin().list_topics("orders", timeout=30).topics["orders"].partitions) == 3
        assert stack.mongo is not None
        with stack.mongo.client() as client, client.start_session() as session, session.start_transaction():
            client["shop"]["orders"].insert_one({"_id": 1}, session=session)
        for server in stack.servers:
            assert not server.local
            with pytest.raises(StackError, match="is not local"):
                server.kill()
