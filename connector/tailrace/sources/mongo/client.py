"""The MongoDB client, the identity of the server, and the translation of driver errors.

The driver must not retry by itself: a `getMore` that is sent twice skips a batch. Every error is translated to one of
ours; only what is known to recover by waiting is retried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bson import Timestamp
from pymongo import MongoClient
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from tailrace.connection_causes import certificate_error
from tailrace.errors import (
    AccessRefused,
    CollectionGone,
    ConfigError,
    EventTooLarge,
    HistoryLost,
    SourceError,
    SourceUnavailable,
    TailraceError,
)
from tailrace.positions.mongo import ClusterTime, StreamIdentity
from tailrace.sources.mongo.documents import Document, milliseconds
from tailrace.sources.mongo.options import StreamSpec

Client = MongoClient[Document]

OLDEST = (6, 0)
MONGO_TLS = "tlsCAFile and tlsCertificateKeyFile in the address"
"""The settings that decide which certificates are trusted and which one is presented."""
PROBE_SECONDS = 2.0
HISTORY_LOST = {280, 286, 136}  # ChangeStreamFatalError, ChangeStreamHistoryLost, CappedPositionLost
ACCESS_CODES = {11, 13, 18, 31, 8000}  # UserNotFound, Unauthorized, AuthenticationFailed, RoleNotFound, AtlasError
NO_REPLICA_SET = {40573, 123, 76}  # $changeStream only on replica sets; NotAReplicaSet; NoReplicationEnabled
TOO_LARGE = 10334
TRANSIENT_CODES = {
    6, 7, 43, 50, 89, 91, 133, 134, 150, 189, 202, 211, 234, 237, 262, 9001, 10107, 11600, 11601, 11602, 13388, 13435,
    13436,
}  # fmt: skip
"""Unreachable hosts, lost cursors, time limits, elections, a server that shuts down or recovers."""
_RETRIED = {*TRANSIENT_CODES, 63, 94}  # StaleShardVersion, NotYetInitialized
NAMESPACE_EXISTS = 48
STEPPED_DOWN = "ResumableChangeStreamError"
_TOKEN = re.compile(r'_data: "[0-9A-F]*"?')


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The identity of a server; `now` is the cluster time of its last write."""

    replica_set: str
    version: tuple[int, ...]
    now: ClusterTime
    now_ms: int

    def stream(self, watched: StreamSpec, collections: dict[str, str]) -> StreamIdentity:
        """Returns the identity of a change stream on this server; `collections` are its UUIDs by name."""
        return StreamIdentity(self.replica_set, watched.database, collections, watched.fingerprint)


def connect(uri: str, *, app_name: str, timeout: float) -> Client:
    """Returns a client that is not connected yet."""
    milliseconds = int(timeout * 1000)
    try:
        return MongoClient(
            uri,
            appname=app_name,
            retryReads=False,
            connectTimeoutMS=milliseconds,
            serverSelectionTimeoutMS=milliseconds,
            # No timeout for a response: the server may have to scan hours of oplog first. The driver's heartbeats
            # detect a dead connection and end what waits on it.
            heartbeatFrequencyMS=max(500, milliseconds // 3),
            # Two connections at most: the stream, and other commands.
            maxPoolSize=4,
        )
    except (ConfigurationError, InvalidURI, ValueError, TypeError, OSError) as error:
        # Without the driver's text, which may quote a part of a password.
        raise ConfigError(
            f"source.mongo cannot be used: {type(error).__name__}",
            why="An option in the address is wrong, a file it names cannot be read, or a password is not encoded.",
            remedy="Write it like mongodb://user:${env:DB_PASSWORD}@host/?replicaSet=rs0.",
        ) from None


def has_primary(uri: str, *, app_name: str) -> bool:
    """Whether a primary answers now; a cheap probe, used while a pipeline waits."""
    with connect(uri, app_name=app_name, timeout=PROBE_SECONDS) as client:
        try:
            client.admin.command("ping")
        except PyMongoError:
            return False
        return True


@contextmanager
def translated_errors(doing: str) -> Iterator[None]:
    """Translates driver errors raised inside the block."""
    try:
        yield
    except PyMongoError as error:
        raise translate(error, doing) from None


def identify(client: Client) -> ServerFacts:
    """Returns the identity of the server; raises AccessRefused if it has no change streams."""
    with translated_errors("asking the server who it is"):
        hello = client.admin.command("hello")
        version = tuple(client.server_info()["versionArray"][:3])
    require_replica_set(hello)
    if version[:2] < OLDEST:
        raise AccessRefused(
            f"the server is MongoDB {'.'.join(map(str, version))}",
            why="Reading existing documents needs snapshots, which older servers do not have.",
            remedy="Upgrade to MongoDB 6.0 or newer.",
        )
    # A new primary has all majority-committed writes, but may learn the majority's time only a moment later.
    written = hello.get("lastWrite", {}).get("opTime", {}).get("ts") or hello.get("operationTime")
    now = cluster_time(written) if isinstance(written, Timestamp) else ClusterTime(0, 0)
    local = hello.get("localTime")
    now_ms = milliseconds(local) or now.seconds * 1000
    return ServerFacts(str(hello.get("setName", "")), version, now, now_ms)


def require_replica_set(hello: Document) -> None:
    """Raises if the server is not a member of a replica set; `hello` is its answer to that command."""
    if hello.get("msg") == "isdbgrid":
        raise AccessRefused(
            "the server is a router of a sharded cluster",
            why="Tailrace follows replica sets; through a router its guarantees are not tested.",
            remedy="Keep the outbox in an unsharded replica set, and name that one in source.mongo.",
        )
    if "setName" not in hello and hello.get("isreplicaset"):
        raise SourceUnavailable(
            "the server has not joined its replica set yet",
            why="It has just started, or the set was never initiated.",
            remedy="Tailrace retries by itself. A new set needs rs.initiate() once.",
        )
    if "setName" not in hello:
        raise not_a_replica_set()


def require_collection(name: str, kind: str) -> None:
    """Raises if it is not a plain collection; `kind` is the type from listCollections."""
    if kind != "collection":
        raise ConfigError(
            f"{name} is not a collection but a {kind}",
            why="MongoDB has change streams only for plain collections.",
            remedy="Name the collection that the service inserts into in source.collection.",
        )


def collection_ids(client: Client, database: str, names: tuple[str, ...], *, create: bool) -> dict[str, str]:
    """Returns the UUID of each collection, empty if it may not be read; creates missing ones, or raises."""
    found: dict[str, str] = {}
    for _ in range(2):
        with translated_errors("looking for the outbox collections"):
            try:
                listed = list(client[database].list_collections(filter={"name": {"$in": list(names)}}))
                for each in listed:
                    require_collection(f"{database}.{each['name']}", str(each.get("type", "collection")))
                found = {each["name"]: each.get("info", {}).get("uuid", b"").hex() for each in listed}
            except OperationFailure as error:
                if error.code not in ACCESS_CODES:
                    raise
                # The listCollections privilege is not needed to follow a stream.
                return dict.fromkeys(names, "")
        missing = [name for name in names if name not in found]
        if not missing:
            return found
        if not create:
            break
        for name in missing:
            _create(client, database, name)
    raise CollectionGone(
        f"there is no collection {database}.{', '.join(missing)}",
        why="source.create is false, so Tailrace does not create it.",
        remedy=f"db.createCollection({missing[0]!r}), or correct source.collection.",
    )


def _create(client: Client, database: str, name: str) -> None:
    with translated_errors(f"creating the collection {database}.{name}"):
        try:
            client[database].create_collection(name)
        except OperationFailure as error:
            if error.code != NAMESPACE_EXISTS:
                raise


def cluster_time(stamp: Timestamp) -> ClusterTime:
    return ClusterTime(stamp.time, stamp.inc)


def not_a_replica_set() -> AccessRefused:
    return AccessRefused(
        "the server is not a member of a replica set",
        why="Only replica sets have change streams and transactions.",
        remedy="Start mongod with --replSet rs0 and run rs.initiate(); one member is enough.",
    )


def translate(error: PyMongoError, doing: str) -> TailraceError:
    """Returns our error for an error of the driver."""
    said = server_text(error)
    if isinstance(error, OperationFailure):
        return _refusal(error, doing, said)
    if isinstance(error, ConnectionFailure) and (invalid := certificate_error(said, "MongoDB", MONGO_TLS)) is not None:
        return invalid
    if isinstance(error, ServerSelectionTimeoutError):
        return SourceUnavailable(
            f"no primary could be reached while {doing}",
            why=said,
            remedy="Tailrace retries by itself. Without a majority of its members a replica set has no primary: "
            "see that they run and can be reached.",
        )
    if isinstance(error, ConnectionFailure):  # the network, or a member that steps down
        return SourceUnavailable(
            f"MongoDB gave no answer while {doing}",
            why=said,
            remedy="Tailrace retries by itself.",
        )
    if isinstance(error, ConfigurationError | InvalidURI):
        return ConfigError("source.mongo cannot be used", why=said, remedy="Correct the address.")
    return SourceError(
        f"the driver failed while {doing}", why=said, remedy="Start again; if it fails again, report it."
    )


def _refusal(error: OperationFailure, doing: str, said: str) -> TailraceError:
    code = error.code
    if code in HISTORY_LOST:
        return HistoryLost(
            "MongoDB's log (the oplog) no longer reaches back to the stored position",
            why=f"The connector was away for longer than the oplog keeps: {said}",
            remedy="Documents inserted since then are in the collection, not in the stream: "
            "`tailrace recover plan FILE` finds them, `recover apply` publishes them. Or start once with --adopt to "
            "continue from now without them; a larger oplog (replSetResizeOplog) keeps more.",
        )
    if code == TOO_LARGE:
        return EventTooLarge(
            "a change is larger than MongoDB can send (16 MB)",
            why=f"The document is close to that limit already: {said}",
            remedy="MongoDB 6.0.9, 7.0 and newer send it in parts: upgrade. Otherwise `tailrace recover plan FILE` "
            "looks for it in the collection; or start once with --adopt, which skips it.",
        )
    if code in NO_REPLICA_SET:
        return not_a_replica_set()
    if code in ACCESS_CODES:
        return AccessRefused(
            f"MongoDB refuses {doing}",
            why=said,
            remedy="The user needs the actions find and changeStream on the outbox collection (on the database, for "
            "several); `tailrace init --mongo` writes the commands.",
        )
    if code in _RETRIED or error.has_error_label(STEPPED_DOWN):
        return SourceUnavailable(f"MongoDB failed while {doing}", why=said, remedy="Tailrace retries by itself.")
    return SourceError(f"MongoDB refuses {doing}", why=said, remedy="See the server's log; then start again.")


def server_text(error: Exception) -> str:
    """Returns the server's error text on one line, without the full response that the driver adds."""
    text = str(error).split(", full error:")[0].split(", Timeout:")[0]
    # A token contains the document's id.
    return " ".join(_TOKEN.sub("_data: …", text).split())[:300]
