"""A MongoDB collection as the target of a drainer: a document per entry, inserted unordered; duplicates are success."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tailrace.embedded.drainer import BatchResult
from tailrace.embedded.records import Entry
from tailrace.errors import ConfigError, install_remedy

if TYPE_CHECKING:
    from pymongo import IndexModel, MongoClient
    from pymongo.collection import Collection

DUPLICATE = 11000
REFUSED = {2, 9, 16, 17280, 10334, 121, 52, 57}
"""Codes of documents that the server never takes: too large, not valid, a bad name of a field."""


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
            import pymongo  # noqa: F401 - for the error
        except ModuleNotFoundError:
            raise ConfigError(
                "a mirror in MongoDB needs pymongo, which is not installed", remedy=install_remedy("mongo")
            ) from None
        self._uri = uri
        self._names = (database, collection)
        self._document = document
        self._indexes = list(indexes)
        self._options: dict[str, Any] = {
            "maxPoolSize": pool_size,
            "minPoolSize": 1,
            "connectTimeoutMS": round(connect_timeout * 1000),
            "serverSelectionTimeoutMS": round(connect_timeout * 1000),
            "socketTimeoutMS": round(socket_timeout * 1000),
        }
        self._client: MongoClient[dict[str, Any]] | None = None
        self._documents: Collection[dict[str, Any]] | None = None

    def open(self) -> None:
        from pymongo import MongoClient, WriteConcern

        if self._client is None:
            self._client = MongoClient(self._uri, appname="tailrace embedded outbox", **self._options)
        database, name = self._names
        # An entry is deleted once it is here: a fail-over must not lose it.
        found = self._client[database][name].with_options(write_concern=WriteConcern("majority"))
        if self._indexes:
            found.create_indexes(self._indexes)
        self._documents = found

    def write(self, entries: Sequence[Entry]) -> BatchResult:
        documents: list[tuple[int, dict[str, Any]]] = []
        refused: dict[int, str] = {}
        for entry in entries:
            try:
                documents.append((entry.sequence, dict(self._document(entry))))
            except Exception as error:  # noqa: BLE001 - the function of a user
                refused[entry.sequence] = f"no document can be made of it ({type(error).__name__})"
        written, duplicates = self._insert(documents, refused)
        return BatchResult(written, duplicates, refused)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _insert(self, documents: list[tuple[int, dict[str, Any]]], refused: dict[int, str]) -> tuple[int, int]:
        """Returns how many were inserted, and how many existed."""
        from bson.errors import BSONError
        from pymongo.errors import BulkWriteError, DocumentTooLarge

        if not documents:
            return 0, 0
        if self._documents is None:
            raise RuntimeError("the target is not open")
        try:
            self._documents.insert_many([document for _, document in documents], ordered=False)
        except BulkWriteError as error:
            return self._judge(error, documents, refused)
        except (BSONError, DocumentTooLarge, OverflowError, UnicodeError) as error:
            # The driver does not say which document it cannot encode.
            if len(documents) > 1:
                middle = len(documents) // 2
                first, second = (self._insert(part, refused) for part in (documents[:middle], documents[middle:]))
                return first[0] + second[0], first[1] + second[1]
            refused[documents[0][0]] = f"BSON cannot hold its document ({type(error).__name__})"
            return 0, 0
        return len(documents), 0

    @staticmethod
    def _judge(error: Any, documents: list[tuple[int, dict[str, Any]]], refused: dict[int, str]) -> tuple[int, int]:  # noqa: ANN401
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
                raise error
        return int(details.get("nInserted", 0)), duplicates
