"""A MongoDB collection as the target of a drainer: a document per entry, inserted unordered; duplicates are success."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tailrace.embedded.drainer import DrainedBatch
from tailrace.embedded.records import Entry
from tailrace.errors import ConfigError, StoreUnavailable, install_remedy

if TYPE_CHECKING:
    from pymongo import IndexModel, MongoClient

DUPLICATE = 11000
NOT_BSON = {15, 16, 22, 10334}
"""Codes of a whole command that no server takes: of its documents, one is too large, nested too deeply or damaged."""
REFUSED = {
    *NOT_BSON,
    *(2, 9, 52, 53, 57, 121),  # a bad value, name of a field or _id; refused by the collection's validator
    *(171, 5894900, 13027, 16755, 16766, 16804, 17261, 17262, 17280),  # what an index of the collection cannot hold
}
"""Codes of documents that the server never takes. Everything else is tried again, and holds up the batches behind."""


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    """Raises StoreUnavailable for errors of the driver. A message of the server may quote a document."""
    from pymongo.errors import OperationFailure, PyMongoError

    try:
        yield
    except PyMongoError as error:
        found = f"code {error.code}" if isinstance(error, OperationFailure) else str(error).partition(",")[0]
        raise StoreUnavailable(
            f"{doing}: {type(error).__name__}",
            why=found,
            remedy="Check the server and the address. It is tried again, and the outbox keeps everything meanwhile.",
        ) from None


class MongoTarget:
    """Implements `DrainTarget`. `document` makes the document of an entry; `_id` must depend on its key only."""

    def __init__(
        self,
        uri: str,
        database: str,
        collection: str,
        document: Callable[[Entry], Mapping[str, Any]],
        *,
        indexes: Sequence[IndexModel] = (),
        pool_size: int = 10,
        connect_timeout: float = 10.0,
        socket_timeout: float = 60.0,
    ) -> None:
        try:
            from pymongo import MongoClient, WriteConcern
            from pymongo.errors import ConfigurationError, InvalidURI
        except ModuleNotFoundError:
            raise ConfigError(
                "a mirror in MongoDB needs pymongo, which is not installed", remedy=install_remedy("mongo")
            ) from None
        self._document = document
        self._indexes = list(indexes)
        try:
            self._client: MongoClient[dict[str, Any]] = MongoClient(
                uri,
                connect=False,
                appname="tailrace embedded outbox",
                maxPoolSize=pool_size,
                minPoolSize=1,
                connectTimeoutMS=round(connect_timeout * 1000),
                serverSelectionTimeoutMS=round(connect_timeout * 1000),
                socketTimeoutMS=round(socket_timeout * 1000),
            )
        except (ConfigurationError, InvalidURI, ValueError, TypeError, OSError) as error:
            # Without the driver's text, which may quote a part of a password.
            raise ConfigError(
                f"the address of the mirror cannot be used: {type(error).__name__}",
                why="An option in it is wrong, a file it names cannot be read, or a password is not encoded.",
                remedy="Write it like mongodb://user:password@host/?replicaSet=rs0.",
            ) from None
        # An entry is deleted once it is here: a fail-over must not lose it.
        self._documents = self._client[database][collection].with_options(write_concern=WriteConcern("majority"))

    def open(self) -> None:
        """Creates the indexes, which also shows that the server is there."""
        with _translated("connecting to the mirror"):
            if self._indexes:
                self._documents.create_indexes(self._indexes)

    def write(self, entries: Sequence[Entry]) -> DrainedBatch:
        documents: list[tuple[int, dict[str, Any]]] = []
        refused: dict[int, str] = {}
        for entry in entries:
            try:
                document = dict(self._document(entry))
            except Exception as error:  # noqa: BLE001 - the function of a user
                refused[entry.sequence] = f"no document can be made of it ({type(error).__name__})"
                continue
            if "_id" in document:
                documents.append((entry.sequence, document))
            else:  # MongoDB would make one, and another one if the batch is written again
                refused[entry.sequence] = "its document has no _id"
        with _translated("writing to the mirror"):
            written, duplicates = self._insert(documents, refused)
        return DrainedBatch(written, duplicates, refused)

    def close(self) -> None:
        self._client.close()

    def _insert(self, documents: list[tuple[int, dict[str, Any]]], refused: dict[int, str]) -> tuple[int, int]:
        """Returns how many were inserted, and how many existed."""
        from bson.errors import BSONError
        from pymongo.errors import BulkWriteError, DocumentTooLarge, OperationFailure

        if not documents:
            return 0, 0
        try:
            self._documents.insert_many([document for _, document in documents], ordered=False)
        except BulkWriteError as error:
            return self._judge(error, documents, refused)
        except (BSONError, DocumentTooLarge, OverflowError, UnicodeError, OperationFailure) as error:
            if isinstance(error, OperationFailure) and error.code not in NOT_BSON:
                raise
            # Neither the driver nor the server says which document it is.
            if len(documents) > 1:
                middle = len(documents) // 2
                first, second = (self._insert(part, refused) for part in (documents[:middle], documents[middle:]))
                return first[0] + second[0], first[1] + second[1]
            refused[documents[0][0]] = f"MongoDB cannot hold its document ({type(error).__name__})"
            return 0, 0
        return len(documents), 0

    @staticmethod
    def _judge(error: Any, documents: list[tuple[int, dict[str, Any]]], refused: dict[int, str]) -> tuple[int, int]:  # noqa: ANN401
        from pymongo.errors import OperationFailure

        details = error.details or {}
        if details.get("writeConcernErrors"):
            raise error  # perhaps not durable: the batch is written again
        duplicates = 0
        for each in details.get("writeErrors", ()):
            if each["code"] == DUPLICATE and set(each.get("keyPattern", {"_id": 1})) == {"_id"}:
                duplicates += 1
            elif each["code"] == DUPLICATE:
                refused[documents[each["index"]][0]] = "a unique index has another document with its values"
            elif each["code"] in REFUSED:
                refused[documents[each["index"]][0]] = f"MongoDB refuses its document (code {each['code']})"
            else:
                raise OperationFailure("a document was not written", each["code"])
        return int(details.get("nInserted", 0)), duplicates
