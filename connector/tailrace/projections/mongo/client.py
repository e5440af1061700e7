"""Connects to a projection's MongoDB, creates collections, and translates errors.

Commits must survive an election and a crash: each write is in the journal of a majority before it is acknowledged.
Error texts of the driver may contain values of a document or parts of an address: both are left out.
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
from tailrace.sources.mongo.client import ACCESS_CODES, MONGO_TLS, NAMESPACE_EXISTS, TRANSIENT_CODES, server_text

Document = dict[str, Any]
Client = AsyncMongoClient[Document]
Database = AsyncDatabase[Document]
Collections = Mapping[str, Sequence[IndexModel]]
"""Names of collections with their indexes."""

TIMEOUT = 10.0
LONGEST_APP_NAME = 128
MAJORITY_SECONDS = 30
DURABLE = WriteConcern("majority", wtimeout=MAJORITY_SECONDS * 1000, j=True)

TRANSIENT_LABEL = "TransientTransactionError"
UNKNOWN_COMMIT = "UnknownTransactionCommitResult"
WRITE_CONFLICT = 112
LOCK_TIMEOUT = 24
DUPLICATE_KEY = 11000
_RETRIED = {*TRANSIENT_CODES, LOCK_TIMEOUT, WRITE_CONFLICT, 64, 246}  # WriteConcernFailed, SnapshotUnavailable

_DATES_AS_MS: CodecOptions[Document] = CodecOptions(
    document_class=dict, datetime_conversion=DatetimeConversion.DATETIME_MS
)


async def connected(uri: str, group: str, *, timeout: float, pool_size: int) -> Client:
    """Connects; raises ConfigError for a server without transactions. The client belongs to the running event loop."""
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
            # The driver's heartbeats notice a dead connection, and end operations that wait on it.
            heartbeatFrequencyMS=max(500, milliseconds // 3),
            uuidRepresentation="standard",
            tz_aware=True,
            # A date that Python cannot represent must not break the whole answer.
            datetime_conversion="DATETIME_AUTO",
            maxPoolSize=pool_size,
        )
    except (ConfigurationError, InvalidURI, ValueError, TypeError, OSError) as error:
        # Without the driver's text, which may quote a part of a password.
        raise ConfigError(
            f"the MongoDB address of a projection cannot be used: {type(error).__name__}",
            why="An option in the address is wrong, a file it names cannot be read, or a password is not encoded.",
            remedy="Write it like mongodb://user:password@host/?replicaSet=rs0, special characters as %XX.",
        ) from None


def database_of(client: Client, name: str) -> Database:
    """Returns a database that reads from the primary only, so that a projection reads its own writes."""
    return client.get_database(
        name,
        read_preference=ReadPreference.PRIMARY,
        read_concern=ReadConcern("majority"),
        write_concern=DURABLE,
    )


def kit_collection(database: Database, name: str) -> AsyncCollection[Document]:
    """Returns one of the kit's own collections; dates in it are read as milliseconds."""
    return database[name].with_options(codec_options=_DATES_AS_MS)


async def prepare(database: Database, collections: Collections) -> None:
    """Creates missing collections and indexes; several workers may do so at once."""
    for name, indexes in collections.items():
        # In advance, since a transaction that creates a collection conflicts with others.
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
            "the projection's MongoDB has not joined its replica set yet",
            why="It has just started, or the set was never initiated.",
            remedy="Tailrace retries automatically. A new set needs rs.initiate() once.",
        )
    raise ConfigError(
        "the projection's MongoDB is not a member of a replica set",
        why="Marker, effect and offset are written in one transaction, and only replica sets have transactions.",
        remedy="Start mongod with --replSet rs0 and run rs.initiate(); one member is enough.",
    )


def is_transient(error: BaseException) -> bool:
    """Whether a retry can succeed after this error."""
    if isinstance(error, Unavailable):
        return True
    if not isinstance(error, PyMongoError) or _certificate(error) is not None:
        return False
    if (
        isinstance(error, ConnectionFailure)
        or error.has_error_label(TRANSIENT_LABEL)
        or error.has_error_label(UNKNOWN_COMMIT)
    ):
        return True
    if isinstance(error, BulkWriteError):
        # A rejected write is rejected again; a late majority is not.
        details = error.details or {}
        return bool(details.get("writeConcernErrors")) and not details.get("writeErrors")
    return isinstance(error, OperationFailure) and error.code in _RETRIED


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Translates the driver's errors."""
    try:
        yield
    except PyMongoError as error:
        raise translate(error, doing) from None


def translate(error: PyMongoError, doing: str) -> TailraceError:
    """Returns Tailrace's error for an error of the driver outside of a transaction."""
    if (invalid := _certificate(error)) is not None:
        return invalid
    if is_transient(error):
        return StoreUnavailable(
            f"the projection's MongoDB gave no answer while {doing}",
            why=_server_text(error),
            remedy="Tailrace retries automatically. Check that the server runs, can be reached, and has a primary.",
        )
    if isinstance(error, OperationFailure):
        return access_refused(error, doing) if error.code in ACCESS_CODES else _refused(error, doing)
    return ConfigError(
        f"the projection's MongoDB cannot be used: {type(error).__name__} while {doing}",
        remedy="Fix the address and the names of database and collections.",
    )


def _certificate(error: PyMongoError) -> TailraceError | None:
    if not isinstance(error, ConnectionFailure):
        return None
    return certificate_error(_server_text(error), "the projection's MongoDB", MONGO_TLS)


def access_refused(error: OperationFailure, doing: str) -> ConfigError:
    return ConfigError(
        f"the projection's MongoDB refuses {doing}",
        why=_server_text(error),
        remedy="Fix user and password, and give the user the role readWrite on the projection's database.",
    )


def _refused(error: OperationFailure, doing: str) -> ConfigError:
    return ConfigError(
        f"the projection's MongoDB refuses {doing}",
        why=_server_text(error),
        remedy="An index that exists with other options must be dropped first; a unique one needs unique documents.",
    )


def rejected(collection: str, write_error: Mapping[str, Any]) -> Rejected:
    """Translates the rejection of a write that the server will never accept, without the document's values."""
    code = write_error.get("code")
    if code == DUPLICATE_KEY:
        fields = ", ".join(write_error.get("keyPattern") or {}) or "?"
        return Rejected(
            Reason.PERMANENT_FAILURE,
            f"a document for {collection} has the same ({fields}) as another there, and a unique index forbids that",
            remedy="Fix the other document or the index; then publish the event again with `tailrace dlq redrive`.",
        )
    return Rejected(
        Reason.PERMANENT_FAILURE,
        f"MongoDB refuses a write to {collection}: {_without_values(str(write_error.get('errmsg', '')))} (code {code})",
        remedy="Fix the handler or the validation rules of the collection; then redrive the event.",
    )


def _server_text(error: PyMongoError) -> str:
    """Returns the server's message on one line, without values of documents."""
    return _without_values(server_text(error))


def _without_values(text: str) -> str:
    return " ".join(text.partition(" dup key:")[0].partition("{")[0].split())[:300]
