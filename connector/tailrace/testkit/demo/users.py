"""The users service: MongoDB, and the pipeline that reads its outbox collection."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from tailrace.testkit.demo.service import Service
from tailrace.testkit.stack import KafkaBroker, MongoServer
from tailrace.testkit.workload.users import UsersWriter, create_users, ids_in_collection
from tailrace.testkit.workload.writer import Mix, WorkloadWriter

_SOURCE = """\
# The users' pipeline: one outbox collection in MongoDB to Kafka, exactly once and in order.
pipeline: {pipeline}

source:
  mongo: {uri}
  collection: {outbox}

outbox:
  layout: document          # fields event_id, event_type, entity_type, partition_key, payload, topic, created_at
"""


class Users(Service):
    NAME = "users"
    DATABASE = "MongoDB"

    def __init__(self, kafka: KafkaBroker, suffix: str, mongo: MongoServer, *, ours: bool) -> None:
        super().__init__(kafka, suffix, ours=ours)
        self._mongo = mongo

    @property
    def uri(self) -> str:
        return self._mongo.uri

    def create(self) -> None:
        create_users(self.uri, self.database)

    def remove(self) -> None:
        with self._mongo.client() as client:
            client.drop_database(self.database)

    def source_text(self) -> str:
        return _SOURCE.format(pipeline=self.pipeline, uri=json.dumps(self.uri), outbox=self.outbox)

    def writer(self, *, seed: int, keys: int, mix: Mix) -> WorkloadWriter:
        return UsersWriter(self.uri, self.database, topic=self.topic, seed=seed, keys=keys, mix=mix)

    def in_outbox(self) -> set[str]:
        return ids_in_collection(self.uri, self.database)

    def describe(self, payload: Mapping[str, Any]) -> str:
        return f"revision {payload.get('revision')}, {payload.get('email')}"

    @property
    def outbox(self) -> str:
        return f"{self.database}.outbox"

    @property
    def client(self) -> str:
        # A database in the URI is also the one that authenticates users. Only our own server has no users.
        uri = self.uri.replace("/?", f"/{self.database}?") if self._mongo.local else self.uri
        return f"mongosh {shlex.quote(uri)}"
