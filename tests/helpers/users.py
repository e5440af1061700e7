"""`Users`: the users service on MongoDB, with its own database and topics."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from helpers.service import Service
from tailrace.positions.mongo import TokenPosition
from tailrace.testkit.stack import KafkaBroker, MongoReplicaSet, MongoServer
from tailrace.testkit.topic_reader import stored_positions
from tailrace.testkit.workload.users import (
    ENTITIES,
    MAJORITY,
    OUTBOX,
    Document,
    UsersWriter,
    create_users,
    ids_in_collection,
    outbox_document,
)
from tailrace.testkit.workload.writer import WorkloadEvent

USER_SCHEMA = {
    "type": "object",
    "required": ["user", "revision", "email"],
    "properties": {
        "user": {"type": "string"},
        "revision": {"type": "integer", "minimum": 1},
        "email": {"type": "string"},
    },
}


class Users(Service):
    """A service that writes users. `uri` bypasses any proxy; the connector's URI is in its settings."""

    ENTITIES = ENTITIES

    def __init__(
        self,
        mongo: MongoServer | MongoReplicaSet,
        kafka: KafkaBroker,
        folder: Path,
        name: str,
        collections: Sequence[str],
    ) -> None:
        super().__init__(kafka, folder, name)
        self.mongo = mongo
        self.collections = tuple(collections)

    @property
    def uri(self) -> str:
        return self.mongo.direct_uri if isinstance(self.mongo, MongoServer) else self.mongo.uri

    @property
    def database(self) -> str:
        return self.name

    def make_writer(self, *, uri: str | None = None, **options: Any) -> UsersWriter:
        given = {"collections": self.collections, "topic": self.topic, **options}
        return UsersWriter(uri or self.uri, self.database, **given)

    def in_outbox(self) -> set[str]:
        return ids_in_collection(self.uri, self.database, self.collections)

    def client(self) -> MongoClient[Document]:
        """Returns a client, which the caller closes."""
        return self.mongo.client()

    def insert(self, key: str = "k", seq: int = 1, *, collection: str = OUTBOX, **fields: Any) -> str:
        """Inserts one outbox document by majority; `fields` replace or add. Returns its event_id."""
        event = WorkloadEvent(str(uuid.uuid4()), key, seq, valid=True)
        document = {**outbox_document(event, topic=self.topic, at=datetime.now(UTC)), **fields}
        with self.client() as client:
            client[self.database].get_collection(collection, write_concern=MAJORITY).insert_one(document)
        return str(document["event_id"])

    def positions(self) -> list[TokenPosition]:
        return [each for each in stored_positions(self.kafka.bootstrap, self.name) if isinstance(each, TokenPosition)]


def open_users(
    mongo: MongoServer | MongoReplicaSet,
    kafka: KafkaBroker,
    folder: Path,
    *,
    collections: Sequence[str] = (OUTBOX,),
    **source: Any,
) -> Users:
    """Creates a users service on the given servers, with an empty outbox and a pipeline file; nothing runs yet."""
    users = Users(mongo, kafka, folder, f"users_{uuid.uuid4().hex[:8]}", collections)
    create_users(users.uri, users.database, collections)
    users.register(dict.fromkeys(("UserRegistered", "UserChanged"), USER_SCHEMA), "user")
    users.configure(
        pipeline=users.name,
        source={"mongo": mongo.uri, "collection": [f"{users.database}.{name}" for name in collections], **source},
        outbox={"layout": "document"},
        schemas={"folder": "schemas"},
        topics={"folder": "topics"},
        kafka={"bootstrap": kafka.bootstrap, "dead_letter_topic": users.letters},
    )
    return users


def close_users(users: Users) -> None:
    """Ends its processes and drops its database."""
    users.close()
    with users.client() as client:
        client.drop_database(users.database)


@pytest.fixture
def users(mongo: MongoServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Users]:
    """A users service on the shared servers."""
    users = open_users(mongo, kafka, tmp_path)
    yield users
    close_users(users)
