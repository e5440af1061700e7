"""`MongoReplicaSet`: three members, for tests of elections, of a primary that steps down, and of rollback.

Each member can be killed, paused and restarted on its own. With two members left the set elects a new primary within
seconds; with one it has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tailrace.testkit.stack import mongo_local
from tailrace.testkit.stack.mongo import MAJORITY, Document, MongoServer
from tailrace.testkit.stack.paths import Progress, quiet
from tailrace.testkit.stack.server import ServerChoice, ServerGroup
from tailrace.testkit.stack.waiting import wait_until

if TYPE_CHECKING:
    from pymongo import MongoClient

SIZE = 3
REQUEST_TIMEOUT_MS = 1000
MAJORITY_SOCKET_MS = 5000  # longer than the server itself waits for the majority
ELECTION_TIMEOUT = 60.0  # two to four seconds on an idle machine
CATCH_UP_SECONDS = 10
STOP_REPLICATION = "stopReplProducer"
WAIT_MS = 60_000


class ReplicaSetMember(MongoServer):
    """One member. It is ready when it answers; after the set was initiated, when it can be read from."""

    def __init__(self, set_name: str, settings: Mapping[str, str], oplog_mb: int | None, progress: Progress) -> None:
        super().__init__(settings=settings, oplog_mb=oplog_mb, choice=ServerChoice.LOCAL, progress=progress)
        self.set_name = set_name
        self.initiated = False

    def hello(self) -> Document:
        """Returns the reply to `hello`; empty if there is none."""
        from pymongo.errors import PyMongoError

        if not self.running:
            return {}
        timeouts = dict.fromkeys(
            ("serverSelectionTimeoutMS", "connectTimeoutMS", "socketTimeoutMS"), REQUEST_TIMEOUT_MS
        )
        try:
            with self.client(**timeouts) as client:
                return dict(client.admin.command("hello"))
        except PyMongoError:
            return {}

    def stop_replicating(self) -> None:
        """Stops copying the primary's oplog, but keeps voting; returns when that is in force.

        What only the primary has is rolled back when the primary dies. A pause is not enough: a resumed server reads
        the data left in its sockets.
        """
        with self.client() as client:
            before = client.admin.command("configureFailPoint", STOP_REPLICATION, mode="alwaysOn")["count"]
            client.admin.command("waitForFailPoint", STOP_REPLICATION, timesEntered=before + 1, maxTimeMS=WAIT_MS)

    def resume_replicating(self) -> None:
        """Copies the primary's oplog again."""
        with self.client() as client:
            client.admin.command("configureFailPoint", STOP_REPLICATION, mode="off")

    def _create(self) -> None:
        super()._create()
        self.initiated = False

    def _unready(self, client: MongoClient[Document], hello: Document) -> str | None:
        if not self.initiated:
            options = client.admin.command("getCmdLineOpts")["parsed"]
            ours = options.get("replication", {}).get("replSet") == self.set_name
            return None if ours else f"the server on port {self.port} is not ours"
        if "setName" not in hello:
            return "it has not joined the set yet"
        return None if hello["isWritablePrimary"] or hello["secondary"] else "it is neither primary nor secondary yet"


class MongoReplicaSet(ServerGroup):
    """Three local members; started on entering, with a primary."""

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        oplog_mb: int | None = None,
        progress: Progress = quiet,
    ) -> None:
        self.set_name = mongo_local.new_set_name()
        self.members = [ReplicaSetMember(self.set_name, settings or {}, oplog_mb, progress) for _ in range(SIZE)]

    @property
    def servers(self) -> list[ReplicaSetMember]:
        return self.members

    @property
    def uri(self) -> str:
        """For clients that follow the primary; names all members, so that any of them may be down."""
        return f"mongodb://{','.join(self._addresses)}/?replicaSet={self.set_name}"

    @property
    def _addresses(self) -> list[str]:
        return [f"{member.host}:{member.port}" for member in self.members]

    def _connect(self) -> None:
        """Initiates the set; returns when it has a primary that the others follow."""
        with self.members[0].client() as client:
            client.admin.command("replSetInitiate", mongo_local.set_config(self.set_name, self._addresses))
        for member in self.members:
            member.initiated = True
        self.await_primary()
        for member in self.members:
            wait_until(partial(_follows, member), ELECTION_TIMEOUT, what="the start of all members")

    def client(self, **options: Any) -> MongoClient[Document]:  # noqa: ANN401 - what MongoClient takes
        """Returns a client that follows the primary. The caller closes it."""
        from pymongo import MongoClient

        return MongoClient(self.uri, **options)

    def primary(self) -> ReplicaSetMember | None:
        """Returns the member that says it is the primary; of two, the one elected last."""
        primaries = [
            (hello["electionId"], member)
            for member in self.members
            if (hello := member.hello()).get("isWritablePrimary")
        ]
        return max(primaries, key=lambda each: each[0])[1] if primaries else None

    def await_primary(
        self, not_: ReplicaSetMember | None = None, timeout: float = ELECTION_TIMEOUT
    ) -> ReplicaSetMember:
        """Returns a primary other than `not_` as soon as one has committed a write by a majority."""

        def elected() -> list[ReplicaSetMember]:
            found = self.primary()
            return [found] if found is not None and found is not not_ and _commits(found) else []

        return wait_until(elected, timeout, what="the election of a primary")[0]

    def step_down(self, seconds: int = 30) -> ReplicaSetMember:
        """Makes the primary step down for `seconds`, also if no other member is ready; returns the new primary."""
        old = self.await_primary()
        with old.client() as client:
            client.admin.command(
                "replSetStepDown", seconds, secondaryCatchUpPeriodSecs=min(seconds, CATCH_UP_SECONDS), force=True
            )
        return self.await_primary(not_=old)


def _follows(member: ReplicaSetMember) -> bool:
    hello = member.hello()
    return bool(hello.get("isWritablePrimary") or hello.get("secondary"))


def _commits(member: ReplicaSetMember) -> bool:
    from pymongo.errors import PyMongoError

    try:
        with member.client(serverSelectionTimeoutMS=REQUEST_TIMEOUT_MS, socketTimeoutMS=MAJORITY_SOCKET_MS) as client:
            client.admin.command("appendOplogNote", 1, data={"by": "tailrace"}, writeConcern=MAJORITY)
    except PyMongoError:
        return False
    return True
