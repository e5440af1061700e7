"""`MongoSet`: a replica set of three, for tests of elections, of a primary that steps down, and of rollback.

Its members are servers of ours: each can be killed, paused and started again on its own. With two members left the
set elects a new primary within seconds; with one, it has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from tailrace.testkit.stack import mongo_local
from tailrace.testkit.stack.cache import Progress, quiet
from tailrace.testkit.stack.mongo import MAJORITY, Document, MongoServer
from tailrace.testkit.stack.server_choice import ServerChoice
from tailrace.testkit.stack.waiting import wait_until

if TYPE_CHECKING:
    from pymongo import MongoClient

SIZE = 3
ASK_TIMEOUT_MS = 1000
MAJORITY_SOCKET_MS = 5000  # longer than the server itself waits for the majority
ELECTION_TIMEOUT = 60.0  # two to four seconds on a machine at rest
CATCH_UP_SECONDS = 10
HOLDS_BACK = "stopReplProducer"
WAIT_MS = 60_000


class ReplicaSetMember(MongoServer):
    """One of the set. It is started when it speaks, and once it was initiated, when it can be read from."""

    def __init__(self, set_name: str, settings: Mapping[str, str], oplog_mb: int | None, progress: Progress) -> None:
        super().__init__(settings=settings, oplog_mb=oplog_mb, choice=ServerChoice.LOCAL, progress=progress)
        self.set_name = set_name
        self.initiated = False

    def hello(self) -> Document:
        """What it says of itself; empty when it does not answer."""
        from pymongo.errors import PyMongoError

        if not self.running:
            return {}
        try:
            with self.client(
                serverSelectionTimeoutMS=ASK_TIMEOUT_MS, connectTimeoutMS=ASK_TIMEOUT_MS, socketTimeoutMS=ASK_TIMEOUT_MS
            ) as client:
                return dict(client.admin.command("hello"))
        except PyMongoError:
            return {}

    def fall_behind(self) -> None:
        """Take no more of what the primary writes, yet vote on; returns when that is in force.

        What the primary then has alone is rolled back when it dies. A pause would not do: what lies in the sockets of
        a paused server is read when it goes on.
        """
        with self.client() as client:
            before = client.admin.command("configureFailPoint", HOLDS_BACK, mode="alwaysOn")["count"]
            client.admin.command("waitForFailPoint", HOLDS_BACK, timesEntered=before + 1, maxTimeMS=WAIT_MS)

    def catch_up(self) -> None:
        """Follow the primary again."""
        with self.client() as client:
            client.admin.command("configureFailPoint", HOLDS_BACK, mode="off")

    def _create(self) -> None:
        super()._create()
        self.initiated = False

    def _unready(self, client: MongoClient[Document], hello: Document) -> str | None:
        if not self.initiated:
            options = client.admin.command("getCmdLineOpts")["parsed"]
            ours = options.get("replication", {}).get("replSet") == self.set_name
            return None if ours else f"the server on port {self.port} is not ours"
        if "setName" not in hello:
            return "it has not found its place in the set yet"
        return None if hello["isWritablePrimary"] or hello["secondary"] else "it is neither primary nor secondary yet"


class MongoReplicaSet:
    """Three members on this machine; started on entering, with a primary."""

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        oplog_mb: int | None = None,
        progress: Progress = quiet,
    ) -> None:
        self.set_name = mongo_local.new_set_name()
        self.members = [ReplicaSetMember(self.set_name, settings or {}, oplog_mb, progress) for _ in range(SIZE)]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def uri(self) -> str:
        """For clients that follow the primary; names all members, so that any of them may be down."""
        return f"mongodb://{','.join(self._addresses)}/?replicaSet={self.set_name}"

    @property
    def _addresses(self) -> list[str]:
        return [f"{member.host}:{member.port}" for member in self.members]

    def start(self) -> None:
        """Start all, make them a set, and return when it has a primary and everyone follows it."""
        with ThreadPoolExecutor(SIZE) as pool:
            for started in [pool.submit(member.start) for member in self.members]:
                started.result()
        with self.members[0].client() as client:
            client.admin.command("replSetInitiate", mongo_local.set_config(self.set_name, self._addresses))
        for member in self.members:
            member.initiated = True
        self.await_primary()
        for member in self.members:
            wait_until(partial(_follows, member), ELECTION_TIMEOUT, what="the start of all members")

    def client(self, **options: Any) -> MongoClient[Document]:  # noqa: ANN401 - whatever MongoClient takes
        """A client that follows the primary. The caller closes it."""
        from pymongo import MongoClient

        return MongoClient(self.uri, **options)

    def primary(self) -> ReplicaSetMember | None:
        """Who says now that it is the primary; of two, the one that was elected last."""
        claims = [(hello["electionId"], member) for member in self.members if (hello := _primary(member))]
        return max(claims, key=lambda claim: claim[0])[1] if claims else None

    def await_primary(
        self, not_: ReplicaSetMember | None = None, timeout: float = ELECTION_TIMEOUT
    ) -> ReplicaSetMember:
        """The primary, when there is one that the majority follows: a write has passed. Never the one in `not_`."""

        def elected() -> list[ReplicaSetMember]:
            found = self.primary()
            return [found] if found is not None and found is not not_ and _leads(found) else []

        return wait_until(elected, timeout, what="the election of a primary")[0]

    def step_down(self, seconds: int = 30) -> ReplicaSetMember:
        """Make the primary step down, whether or not somebody is ready, and stay so; returns the new one."""
        old = self.await_primary()
        with old.client() as client:
            client.admin.command(
                "replSetStepDown", seconds, secondaryCatchUpPeriodSecs=min(seconds, CATCH_UP_SECONDS), force=True
            )
        return self.await_primary(not_=old)

    def close(self) -> None:
        """End all members and remove all they wrote."""
        with ThreadPoolExecutor(SIZE) as pool:
            for closed in [pool.submit(member.close) for member in self.members]:
                closed.result()


def _follows(member: ReplicaSetMember) -> bool:
    hello = member.hello()
    return bool(hello.get("isWritablePrimary") or hello.get("secondary"))


def _primary(member: ReplicaSetMember) -> Document:
    hello = member.hello()
    return hello if hello.get("isWritablePrimary") else {}


def _leads(member: ReplicaSetMember) -> bool:
    from pymongo.errors import PyMongoError

    try:
        with member.client(serverSelectionTimeoutMS=ASK_TIMEOUT_MS, socketTimeoutMS=MAJORITY_SOCKET_MS) as client:
            client.admin.command("appendOplogNote", 1, data={"by": "tailrace"}, writeConcern=MAJORITY)
    except PyMongoError:
        return False
    return True
