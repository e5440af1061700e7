"""The users service on MongoDB: writes a user and its outbox document in one transaction, committed by a majority.

After an error during COMMIT it commits again, as the driver's manual says, which is safe, until there is an answer or
the time is up. All transactions use one session: the next transaction ends the one before on the server, so a
transaction with an unknown outcome cannot commit after those that follow.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import ConnectionFailure, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from tailrace.testkit.workload.writer import Mix, WorkloadEvent, WorkloadWriter

ENTITIES, OUTBOX, TOPIC = "users", "outbox", "users"
MAJORITY = WriteConcern("majority")
TIMEOUT_MS = 5000
ANSWER_MS = 10_000
COMMIT_SECONDS = 20.0
"""How long a commit without an answer is repeated."""
UNKNOWN_RESULT = "UnknownTransactionCommitResult"
TRANSIENT = "TransientTransactionError"
NO_SESSIONS = "Sessions are not supported"
"""The driver's error while a server that has just started does not know its replica set yet."""

Document = dict[str, Any]


def create_users(uri: str, database: str, collections: Sequence[str] = (OUTBOX,)) -> None:
    """Creates the collections; transactions that create them would conflict."""
    with MongoClient[Document](uri, serverSelectionTimeoutMS=TIMEOUT_MS) as client:
        for name in (ENTITIES, *collections):
            client[database].create_collection(name, write_concern=MAJORITY)


class UsersWriter(WorkloadWriter):
    """Writes users; with several outbox collections, each user's events are in one of them."""

    ENTITY = "user"

    def __init__(
        self,
        uri: str,
        database: str,
        *,
        collections: Sequence[str] = (OUTBOX,),
        topic: str = TOPIC,
        entities: bool = True,
        seed: int = 0,
        keys: int = 20,
        mix: Mix | None = None,
    ) -> None:
        """`topic` is the value of the documents' field `topic`. Without `entities`, only events are written."""
        super().__init__(seed=seed, keys=keys, mix=mix)
        self._uri = uri
        self._database = database
        self._topic = topic
        self._entities = entities
        self._outbox = {key: collections[number % len(collections)] for number, key in enumerate(self._keys)}
        self._client: MongoClient[Document] | None = None
        self._session: ClientSession | None = None

    def _begin(self) -> None:
        self._in_session().start_transaction(ReadConcern("snapshot"), MAJORITY)

    def _write(self, event: WorkloadEvent) -> None:
        session = self._in_session()
        database = session.client[self._database]
        if self._entities:
            database[ENTITIES].update_one(
                {"_id": event.key}, {"$set": {"revision": event.seq}}, upsert=True, session=session
            )
        document = outbox_document(event, topic=self._topic, at=datetime.now(UTC))
        database[self._outbox[event.key]].insert_one(document, session=session)

    def _commit(self) -> None:
        deadline = time.monotonic() + COMMIT_SECONDS
        while True:
            try:
                return self._in_session().commit_transaction()
            except PyMongoError as error:
                if not error.has_error_label(UNKNOWN_RESULT) or time.monotonic() > deadline or self._stop.is_set():
                    raise

    def _roll_back(self) -> None:
        self._in_session().abort_transaction()

    def _is_unavailable(self, error: Exception) -> bool:
        if not isinstance(error, PyMongoError):
            return False
        return (
            isinstance(error, ConnectionFailure)
            or NO_SESSIONS in str(error)
            or error.has_error_label(TRANSIENT)
            or error.has_error_label(UNKNOWN_RESULT)
        )

    def _abandon(self) -> None:
        session = self._in_session()
        if session.in_transaction:
            session.abort_transaction()  # ignores errors: the next transaction ends it then

    def _in_session(self) -> ClientSession:
        if self._session is None:
            self._client = MongoClient(self._uri, serverSelectionTimeoutMS=TIMEOUT_MS, socketTimeoutMS=ANSWER_MS)
            self._session = self._client.start_session()
        return self._session

    def _disconnect(self) -> None:
        if self._session is not None:
            self._session.end_session()
            self._session = None
        if self._client is not None:
            self._client.close()
            self._client = None


def outbox_document(event: WorkloadEvent, *, topic: str, at: datetime) -> Document:
    """Returns a document as services with a polling publisher write it, with fields for that publisher."""
    payload = {
        "user": event.key,
        "revision": event.seq,
        "email": f"{event.key}@example.com" if event.valid else 42,
        "address": {"city": "Oslo", "country": "NO"},
    }
    return {
        "event_id": event.id,
        "event_type": "UserRegistered" if event.seq == 1 else "UserChanged",
        "entity_type": "user",
        "entity_id": event.key,
        "entity_version": event.seq,
        "topic": topic,
        "partition_key": event.key,
        "payload": payload,
        "status": "pending",
        "retry_count": 0,
        "max_retries": 5,
        "created_at": at,
    }


def ids_in_collection(uri: str, database: str, collections: Sequence[str] = (OUTBOX,)) -> set[str]:
    """Returns the ids that a majority has in the outbox, which decide outcomes that the writer does not know."""
    with MongoClient[Document](uri, serverSelectionTimeoutMS=TIMEOUT_MS) as client:
        found = client.get_database(database, read_concern=ReadConcern("majority"))
        return {str(each["event_id"]) for name in collections for each in found[name].find({}, {"event_id": 1})}
