"""The users service of this example on the servers of the demo: set-up, pipeline file and workload."""

from __future__ import annotations

from examples.user_outbox.users import UserService
from tailrace.outbox.mongosh import collection_commands
from tailrace.testkit.demo.users import Users
from tailrace.testkit.workload.users import OUTBOX, UsersWriter
from tailrace.testkit.workload.writer import Mix, WorkloadEvent, WorkloadWriter

PROCESSED_EVENTS = "processed_events"
# The markers of all projections in this database, with flat fields.
_VIEW = [
    {
        "$project": {
            "_id": 0,
            "consumer_group": "$_id.consumer_group",
            "event_id": "$_id.event_id",
            "entity_id": 1,
            "entity_version": 1,
            "processed_at": 1,
            "outcome": 1,
        }
    }
]


class UserOutboxWriter(UsersWriter):
    """The workload of the demo, written by the service; the oracle decides ids and which transactions roll back."""

    _service: UserService | None = None

    def _write(self, event: WorkloadEvent) -> None:
        session = self._in_session()
        if self._service is None:
            self._service = UserService(session.client, self._database, topic=self._topic)
        self._service.save_in(session, event.key, f"{event.key}@example.com", event_id=event.id)


class OutboxUsers(Users):
    def create(self) -> None:
        super().create()
        with self._mongo.client() as client:
            # As `tailrace outbox ddl --layout document` writes them for mongosh: the five indexes.
            for command in collection_commands(self.database, OUTBOX):
                client[command.database].command(command.body)
            client[self.database].create_collection(PROCESSED_EVENTS, viewOn="tailrace_markers", pipeline=_VIEW)

    def source_text(self) -> str:
        return f"{super().source_text()}\nmarks: rows                 # keeps `status` and `published_at` up to date\n"

    def writer(self, *, seed: int, keys: int, mix: Mix) -> WorkloadWriter:
        return UserOutboxWriter(self.uri, self.database, topic=self.topic, seed=seed, keys=keys, mix=mix)
