"""Compares the projection with the outbox. The fault of this example: deletions, and old events sent again."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from pymongo import MongoClient

from examples.example import Example, Rows
from tailrace.testkit.demo.users import Users
from tailrace.testkit.oracle import WriteOutcome
from tailrace.testkit.workload.users import ENTITIES, OUTBOX, outbox_document
from tailrace.testkit.workload.writer import WorkloadEvent, WorkloadWriter

DELETED, REPEATED = 3, 6


class UserCards(Example[Users]):
    SERVICE = Users
    FAULT = f"{DELETED} users deleted; registrations of {REPEATED}, theirs too, published once more under new ids"

    def environment(self) -> dict[str, str]:
        return {"SHOP_MONGO": self.service.uri}

    def rows(self) -> Rows:
        with self._client() as client:
            return {card.pop("_id"): _description(card) for card in client[self.service.database]["user_cards"].find()}

    def expected(self) -> Rows:
        """Versions count up from 1: the last one has the whole state, and a deletion is final."""
        cards: Rows = {}
        with self._client() as client:
            for event in client[self.service.database][OUTBOX].find(sort=[("entity_version", 1)]):
                key, payload = event["entity_id"], event["payload"]
                if payload is None:
                    del cards[key]
                    continue
                city, changes = payload["address"]["city"], event["entity_version"] - 1
                cards[key] = _description({"email": payload["email"], "city": city, "changes": changes})
        return cards

    def disturb(self, earlier: WorkloadWriter) -> None:
        versions = {entry.key: entry.seq for entry in earlier.written if entry.outcome is WriteOutcome.COMMITTED}
        for number, (key, last) in enumerate(list(versions.items())[:REPEATED]):
            if number < DELETED:
                self._write(key, last + 1, {"event_type": "UserDeleted", "payload": None})
            self._write(key, 1, {})

    def _write(self, key: str, version: int, other: dict[str, Any]) -> None:
        """Writes a user and its event in one transaction, as the service does."""
        event = WorkloadEvent(str(uuid.uuid4()), key, version, valid=True)
        document = outbox_document(event, topic=self.service.topic, at=datetime.now(UTC)) | other
        with self._client() as client, client.start_session() as session, session.start_transaction():
            if document["payload"] is None:
                client[self.service.database][ENTITIES].delete_one({"_id": key}, session=session)
            client[self.service.database][OUTBOX].insert_one(document, session=session)

    def _client(self) -> MongoClient[dict[str, Any]]:
        return MongoClient(self.service.uri)


def _description(card: dict[str, Any]) -> str:
    return f"{card['email']}, {card['city']}, changed {card['changes']} times"
