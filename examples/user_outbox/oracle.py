"""Compares documents, statuses, Kafka records, markers and projection. The faults: kills, repeats and bad documents."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pymongo import MongoClient

from examples.example import Finding, Rows
from examples.user_cards.oracle import UserCards
from examples.user_outbox.service import PROCESSED_EVENTS, OutboxUsers
from examples.user_outbox.users import UserService
from examples.user_outbox.verdict import delivery, entities, processed, statuses
from tailrace.errors import EventInvalid
from tailrace.outbox import Receipt
from tailrace.testkit.demo.environment import DemoEnvironment
from tailrace.testkit.oracle import ConsumedRecord, WriteOutcome
from tailrace.testkit.stack import StackError, wait_until
from tailrace.testkit.topic_reader import consumed_records, read_all
from tailrace.testkit.workload.users import ENTITIES, OUTBOX, outbox_document
from tailrace.testkit.workload.writer import WorkloadEvent, WorkloadWriter

DELETED, REPEATED = 2, 4
BY_HAND = "user-by-hand"
"""The user whose event was inserted without the writer, and breaks its schema."""
PUBLISH_SECONDS = 60.0
MARK_SECONDS = 60.0

Document = dict[str, Any]


class UserOutbox(UserCards):
    SERVICE = OutboxUsers
    FAULT = (
        "connector and worker killed (SIGKILL) and started again; a request repeated, "
        f"{DELETED} users deleted, {REPEATED} old events under new ids, an invalid document by hand"
    )

    _stale: frozenset[str] = frozenset()

    @classmethod
    def join(cls, environment: DemoEnvironment) -> None:
        servers = environment.servers
        if servers.mongo is not None:
            environment.replace_services([OutboxUsers(servers.kafka, "", servers.mongo, ours=True)])

    def expected(self) -> Rows:
        return {user: card for user, card in super().expected().items() if user != BY_HAND}

    def disturb(self, earlier: WorkloadWriter) -> None:
        users = [entry.key for entry in earlier.written if entry.outcome is WriteOutcome.COMMITTED]
        changed = list(dict.fromkeys(users))[:REPEATED]
        self.service.connector.kill()
        self.worker.kill()
        with self._client() as client:
            service = UserService(client, self.service.database, topic=self.service.topic)
            receipt = _serve_twice(service)
            self._insert_by_hand(client)
            for user in changed[:DELETED]:
                service.delete(user)
            self._stale = frozenset(self._repeat(service, client, user) for user in changed)
            self.service.connector.start()
            # Returns when consumers can see the event, and its document says so.
            receipt.wait(timeout=PUBLISH_SECONDS)
        self.service.connector.kill()
        self.service.connector.start()
        self.worker.start()

    def _repeat(self, service: UserService, client: MongoClient[Document], user: str) -> str:
        """Adds the registration of a user again under a new id, which projections must skip by its version."""
        old = client[self.service.database][OUTBOX].find_one({"entity_id": user, "entity_version": 1})
        if old is None:
            raise StackError(f"the outbox has no registration of {user}")
        with client.start_session() as session, session.start_transaction():
            return service.outbox.add(
                session, old["event_type"], old["payload"], aggregate=("user", user), aggregate_version=1
            ).id

    def _insert_by_hand(self, client: MongoClient[Document]) -> None:
        event = WorkloadEvent(str(uuid.uuid4()), BY_HAND, 1, valid=False)
        document = outbox_document(event, topic=self.service.topic, at=datetime.now(UTC))
        client[self.service.database][OUTBOX].insert_one(document)

    def audit(self, writers: Sequence[WorkloadWriter]) -> list[Finding]:
        with self._client() as client:
            database = client[self.service.database]
            try:
                wait_until(lambda: database[OUTBOX].find_one({"status": "pending"}) is None, MARK_SECONDS)
            except StackError:
                pass  # reported as wrong statuses
            documents = list(database[OUTBOX].find())
            users = {user["_id"]: user["revision"] for user in database[ENTITIES].find()}
            markers = list(database[PROCESSED_EVENTS].find({"consumer_group": "user-cards"}))
        published, dead = self._records(self.service.topic), self._records(self.service.dead_letters)
        written = [entry for writer in writers for entry in writer.written]
        return [
            delivery(written, documents, published, dead, self._stale, {BY_HAND}),
            statuses(documents, published, dead),
            entities(documents, users, self._stale, {BY_HAND}),
            processed(published, markers, self._stale),
            self._delete_old(published),
        ]

    def _delete_old(self, published: Sequence[ConsumedRecord]) -> Finding:
        """Deletes published documents, as a service does from time to time. Only the event after that may arrive."""
        with self._client() as client:
            old = {"status": "published", "published_at": {"$lt": datetime.now(UTC)}}
            deleted = client[self.service.database][OUTBOX].delete_many(old).deleted_count
            service = UserService(client, self.service.database, topic=self.service.topic)
            last = service.save("user-after", "after@example.com", request_id=str(uuid.uuid4()))
            if last is None:
                raise StackError("a new request was taken for a repeated one")
            last.wait(timeout=PUBLISH_SECONDS)
        more = set(self._records(self.service.topic)).difference(published)
        wrong = [record.id for record in more if record.id != last.id]
        return Finding(f"{deleted} published documents deleted, and nothing published by that", wrong)

    def _records(self, topic: str) -> list[ConsumedRecord]:
        return consumed_records(read_all(self.service.bootstrap, [topic], include_open=True))


def _serve_twice(service: UserService) -> Receipt:
    """Serves a request, its repetition and an invalid one; returns the receipt of the first."""
    request = str(uuid.uuid4())
    receipt = service.save("user-asked-twice", "twice@example.com", request_id=request)
    if receipt is None or service.save("user-asked-twice", "twice@example.com", request_id=request) is not None:
        raise StackError("a repeated request was not recognised")
    try:
        service.save("user-refused", "", request_id=str(uuid.uuid4()))
    except EventInvalid:
        return receipt
    raise StackError("the writer added an event that breaks its schema")
