"""The scratch outbox of a drill in MongoDB: a collection of the outbox's database."""

from __future__ import annotations

from typing import Any

from pymongo import MongoClient
from pymongo.uri_parser import parse_uri

from tailrace.testkit.drill.outbox import CONNECT_SECONDS, ScratchOutbox
from tailrace.testkit.drill.plan import DrillPlan
from tailrace.testkit.workload.users import MAJORITY, UsersWriter, ids_in_collection
from tailrace.testkit.workload.writer import Mix, WorkloadWriter


class MongoScratch(ScratchOutbox):
    def __init__(self, uri: str, plan: DrillPlan) -> None:
        self._uri = uri
        self._plan = plan
        hosts = [f"{host}:{port}" if port else str(host) for host, port in parse_uri(uri, warn=False)["nodelist"]]
        self.server = f"MongoDB {','.join(hosts)}/{plan.database}"

    def create(self) -> None:
        with self._client() as client:
            client[self._plan.database].create_collection(self._plan.outbox, write_concern=MAJORITY)

    def remove(self) -> list[str]:
        plan = self._plan
        with self._client() as client:
            database = client.get_database(plan.database, write_concern=MAJORITY)
            if plan.outbox not in database.list_collection_names(filter={"name": plan.outbox}):
                return []
            database.drop_collection(plan.outbox)
        return [f"collection {plan.database}.{plan.outbox}"]

    def writer(self, seed: int, mix: Mix) -> WorkloadWriter:
        plan = self._plan
        return UsersWriter(
            self._uri, plan.database, collections=[plan.outbox], topic=plan.events, entities=False, seed=seed, mix=mix
        )

    def in_outbox(self) -> set[str]:
        return ids_in_collection(self._uri, self._plan.database, [self._plan.outbox])

    def _client(self) -> MongoClient[dict[str, Any]]:
        return MongoClient(self._uri, serverSelectionTimeoutMS=CONNECT_SECONDS * 1000)
