"""MongoDB as the place of a projection: a client made for it, what must be there beforehand, its errors in our words.

Commits must survive an election and a crash: each write is in the journal of a majority before it is acknowledged. What
the driver says about an error may hold values of a document or a part of an address: both are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import AsyncMongoClient, IndexModel, ReadPreference, WriteConcern
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    InvalidURI,
    OperationFailure,
    PyMongoError,
)
from pymongo.read_concern import ReadConcern

from tailrace.connection_causes import certificate_error
from tailrace.errors import ConfigError, Reason, Rejected, StoreUnavailable, TailraceError, Unavailable
from tailrace.sources.mongo.client import MONGO_TLS

Document = dict[str, Any]
Client = AsyncMongoClient[Document]
Database = AsyncDatabase[Document]
Collections = Mapping[str, Sequence[IndexModel]]
"""Collections that must be there, each with its indexes."""

TIMEOUT = 10.0
LONGEST_APP_NAME = 128
POOL = 100
"""Connections at most; each partition at work has one."""
MAJORITY_SECONDS = 30
DURABLE = WriteConcern("majority", wtimeout=MAJORITY_SECONDS * 1000, j=True)

TRANSIENT = "TransientTransactionError"
UNKNOWN_COMMIT = "UnknownTransactionCommitResult"
WRITE_CONFLICT = 112
LOCK_TIMEOUT = 24
DUPLICATE_KEY = 11000
NAMESPACE_EXISTS = 48
REFUSED = {11, 13, 18, 31, 8000}  # UserNotFound, Unauthorized, AuthenticationFailed, RoleNotFound, AtlasError
AWAY = {
    6, 7, LOCK_TIMEOUT, 43, 50, 64, 89, 91, WRITE_CONFLICT, 133, 134, 150, 189, 202, 211, 234, 237, 246, 262, 9001,
    10107, 11600, 11601, 11602, 13388, 13435, 13436,
}  # fmt: skip
"""Unreachable hosts, time limits, a late majority, conflicts, elections, a server that shuts down or recovers."""

_OWN_DATES: CodecOptions[Document] = CodecOptions(
    document_class=dict, datetime_conversion=DatetimeConversion.DATETIME_MS
)


async def opened(
    uri: str, group: str, database: str, collections: Collections, *, timeout: float, pool_size: int = POOL
) -> Client:
    """A client whose server has answered and has all `collections`. It belongs to the event loop that runs now."""
    client = await connected(uri, group, timeout=timeout, pool_size=pool_size)
    try:
        await prepare(database_of(client, database), collections)
    except BaseException:
        await client.close()
        raise
    return client


async def connected(uri: str, group: str, *, timeout: float, pool_size: int = POOL) -> Client:
    """A client whose server has answered. ConfigError for a server without transactions."""
    client = _connect(uri, f"tailrace {group}", timeout, pool_size)
    try:
        with translated("asking the server who it is"):
            hello = await client.admin.command("hello")
        _require_transactions(hello)
    except BaseException:
        await client.close()
        raise
    return client


def _connect(uri: str, app_name: str, timeout: float, pool_size: int) -> Client:
    milliseconds = int(timeout * 1000)
    try:
        return AsyncMongoClient(
            uri,
            appname=app_name.encode()[:LONGEST_APP_NAME].decode(errors="ignore"),
            connectTimeoutMS=milliseconds,
            serverSelectionTimeoutMS=milliseconds,
            # That a link is dead, the driver's heartbeats find out, and then they end what waits on it.
            heartbeatFrequencyMS=max(500, milliseconds // 3),
            uuidRepresentation="standard",
            tz_aware=True,
            # A date that Python cannot hold must not spoil the answer it came in.
            datetime_conversion="DATETIME_AUTO",
            maxPoolSize=pool_size,
        )
    except (ConfigurationError, InvalidURI, ValueError, TypeError, OSError) as error:
        # Without the driver's own words, which may quote a part of a password.
        raise ConfigError(
            f"the MongoDB address of a projection cannot be used: {type(error).__name__}",
            why="An option in the address is wrong, a file it names cannot be read, or a password is not encoded.",
            remedy="Write it like mongodb://user:password@host/?replicaSet=rs0, special characters as %XX.",
        ) from None


def database_of(client: Client, name: str) -> Database:
    """The primary's view alone, whatever the address prefers: a projection reads what it wrote."""
    return client.get_database(
        name,
        read_preference=ReadPreference.PRIMARY,
        read_concern=ReadConcern("majority"),
        write_concern=DURABLE,
    )


def own(database: Database, name: str) -> AsyncCollection[Document]:
    """A collection of the kit's own; dates in it are read as plain milliseconds."""
    return database[name].with_options(codec_options=_OWN_DATES)


async def prepare(database: Database, collections: Collections) -> None:
    """Makes what is missing; several workers may do so at once."""
    for name, indexes in collections.items():
        # Beforehand, since a transaction that makes a collection gets in the way of others.
        with translated(f"creating the collection {name}"):
            try:
                await database.create_collection(name, check_exists=False)
            except OperationFailure as error:
                if error.code != NAMESPACE_EXISTS:
                    raise
        if indexes:
            with translated(f"creating the indexes of {name}"):
                await database[name].create_indexes(list(indexes))


def _require_transactions(hello: Document) -> None:
    if "setName" in hello or hello.get("msg") == "isdbgrid":
        return
    if hello.get("isreplicaset"):
        raise StoreUnavailable(
            "the projection's MongoDB has not found its place in its replica set yet",
            why="It has just started, or the set was never initiated.",
            remedy="Tailrace tries again by itself. A new set needs rs.initiate() once.",
        )
    raise ConfigError(
        "the projection's MongoDB is not a member of a replica set",
        why="Marker, effect and offset are written in one transaction, and only replica sets have transactions.",
        remedy="Start mongod with --replSet rs0 and run rs.initiate(); one member is enough.",
    )


def is_transient(error: BaseException) -> bool:
    """Whether the same will pass when it is tried again, later or at once."""
    if isinstance(error, Unavailable):
        return True
    if not isinstance(error, PyMongoError) or _certificate(error) is not None:
        return False
    if (
        isinstance(error, ConnectionFailure)
        or error.has_error_label(TRANSIENT)
        or error.has_error_label(UNKNOWN_COMMIT)
    ):
        return True
    if isinstance(error, BulkWriteError):
        # A write that was refused is refused again; a majority that was late is not.
        details = error.details or {}
        return bool(details.get("writeConcernErrors")) and not details.get("writeErrors")
    return isinstance(error, OperationFailure) and error.code in AWAY


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turns the driver's errors into ours."""
    try:
        yield
    except PyMongoError as error:
        raise translate(error, doing) from None


def translate(error: PyMongoError, doing: str) -> TailraceError:
    """Our word for an error of the driver outside of a transaction."""
    if (invalid := _certificate(error)) is not None:
        return invalid
    if is_transient(error):
        return StoreUnavailable(
            f"the projection's MongoDB gave no answer while {doing}",
            why=_said(error),
            remedy="Tailrace tries again by itself. See that the server runs and can be reached, and has a primary.",
        )
    if isinstance(error, OperationFailure):
        return access_refused(error, doing) if error.code in REFUSED else _refused(error, doing)
    return ConfigError(
        f"the projection's MongoDB cannot be used: {type(error).__name__} while {doing}",
        remedy="Correct the address and the names of database and collections.",
    )


def _certificate(error: PyMongoError) -> TailraceError | None:
    if not isinstance(error, ConnectionFailure):
        return None
    return certificate_error(_said(error), "the projection's MongoDB", MONGO_TLS)


def access_refused(error: OperationFailure, doing: str) -> ConfigError:
    return ConfigError(
        f"the projection's MongoDB refuses {doing}",
        why=_said(error),
        remedy="Correct user and password, and give the user the role readWrite on the projection's database.",
    )


def _refused(error: OperationFailure, doing: str) -> ConfigError:
    return ConfigError(
        f"the projection's MongoDB refuses {doing}",
        why=_said(error),
        remedy="An index that exists with other options must be dropped first; a unique one needs unique documents.",
    )


def refusal(collection: str, write_error: Mapping[str, Any]) -> Rejected:
    """Our word for a write that the server will never take; what it says of the document's values is left out."""
    code = write_error.get("code")
    if code == DUPLICATE_KEY:
        fields = ", ".join(write_error.get("keyPattern") or {}) or "?"
        return Rejected(
            Reason.PERMANENT_FAILURE,
            f"a document for {collection} has the same ({fields}) as another there, and a unique index forbids that",
            remedy="Correct the other document or the index; then put the event back with `tailrace dlq redrive`.",
        )
    return Rejected(
        Reason.PERMANENT_FAILURE,
        f"MongoDB refuses a write to {collection}: {_without_values(str(write_error.get('errmsg', '')))} (code {code})",
        remedy="Correct the handler, or the rules of the collection; then put the event back.",
    )


def _said(error: PyMongoError) -> str:
    """The server's own words, on one line; the driver adds the whole answer, which is too much."""
    return _without_values(str(error).partition(", full error:")[0].partition(", Timeout:")[0])


def _without_values(text: str) -> str:
    return " ".join(text.partition(" dup key:")[0].partition("{")[0].split())[:300]
