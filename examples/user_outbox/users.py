"""The users service: a user and its event are written in one transaction of a session, or neither."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.client_session import ClientSession

from tailrace.outbox import Outbox, Receipt

SCHEMAS = Path(__file__).parents[2] / "schemas"


class UserService:
    """Registers, changes and deletes users. Make one at start-up; it may be used by many threads."""

    def __init__(self, client: MongoClient[dict[str, Any]], database: str, *, topic: str) -> None:
        self._client = client
        self._users = client[database]["users"]
        # `marks` as in the pipeline: a receipt then waits for `status: published`.
        self.outbox = Outbox(layout="document", table=f"{database}.outbox", schemas=SCHEMAS, topic=topic, marks="rows")

    def save_in(self, session: ClientSession, user: str, email: str, *, event_id: str | None = None) -> Receipt:
        """Registers or changes a user in the session's transaction, with its event."""
        # Two transactions that change the same user conflict: MongoDB aborts one of them.
        before = self._users.find_one({"_id": user}, session=session)
        revision = 1 if before is None else before["revision"] + 1
        new = {"$set": {"email": email, "revision": revision}}
        self._users.update_one({"_id": user}, new, upsert=True, session=session)
        payload = {
            "user": user,
            "revision": revision,
            "email": email,
            "address": {"city": "Oslo", "country": "NO"},
        }
        return self.outbox.add(
            session,
            "UserRegistered" if revision == 1 else "UserChanged",
            payload,
            aggregate=("user", user),
            aggregate_version=revision,
            id=event_id,
        )

    def save(self, user: str, email: str, *, request_id: str) -> Receipt | None:
        """Does so once for each request: returns None if the request was served before.

        The id of the request is that of the event. MongoDB may run the callback again: the attempt before was aborted,
        with its event.
        """

        def transaction(session: ClientSession) -> Receipt | None:
            if self.outbox.exists(session, request_id):
                return None
            return self.save_in(session, user, email, event_id=request_id)

        with self._client.start_session() as session:
            return session.with_transaction(transaction)

    def delete(self, user: str) -> Receipt:
        """Deletes a user. The event is a tombstone, with the version after the last one."""

        def transaction(session: ClientSession) -> Receipt:
            gone = self._users.find_one_and_delete({"_id": user}, session=session)
            if gone is None:
                raise LookupError(f"there is no user {user}")
            return self.outbox.add(
                session, "UserDeleted", None, aggregate=("user", user), aggregate_version=gone["revision"] + 1
            )

        with self._client.start_session() as session:
            return session.with_transaction(transaction)
