"""Positions in the log of MongoDB: a resume token and its cluster time.

Every change has its own token, also within a transaction, so a token is an exact position. Tokens sort in log order.
`ordinal` counts the changes with the same cluster time, so each change has a name that does not depend on where reading
began. While the existing documents are read, the position has the progress of that read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tailrace.positions.first_read import FirstRead
from tailrace.positions.recovery_mark import Recovery

SOURCE = "mongo"
HASH_DIGITS = 16
"""Digits of the hash that ends the position of a document from before the stream."""


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """The log that a position belongs to, and how it was watched.

    A collection gets a UUID when it is created: a re-created collection, or one of another cluster, has another UUID.
    `pipeline` is a fingerprint of the change stream's aggregation: a token is valid only for the same stream.
    """

    replica_set: str
    database: str
    collections: dict[str, str]
    pipeline: str


@dataclass(frozen=True, slots=True)
class ClusterTime:
    """A cluster time of MongoDB: seconds, and a counter within the second."""

    seconds: int
    increment: int

    def __str__(self) -> str:
        return f"{self.seconds}.{self.increment}"

    @classmethod
    def parse(cls, text: str) -> ClusterTime:
        seconds, increment = text.split(".")
        return cls(int(seconds), int(increment))

    @property
    def pair(self) -> tuple[int, int]:
        return (self.seconds, self.increment)


@dataclass(frozen=True, slots=True)
class CollectionRead:
    """Progress of reading the documents from before the stream.

    `collection` is the one being read, empty before the first; `after` is the sort key of the last published document
    (Extended JSON), `documents` the number of published documents. `where` is the filter for the documents
    (`source.start_where`) as JSON; empty: all documents.
    """

    collection: str = ""
    after: str | None = None
    documents: int = 0
    where: str = ""


@dataclass(frozen=True, slots=True)
class TokenPosition:
    """A position in a change stream. `token` is the server's resume token; `at_ms` is the source's clock."""

    log: StreamIdentity
    token: dict[str, Any]
    time: ClusterTime
    at_ms: int
    ordinal: int = 0
    collection_read: CollectionRead | None = field(default=None)
    recovery: Recovery | None = None
    """Set while a recovery reads the collection; it leaves out what was published before."""
    begun: str = ""
    """With `start: now`, the server's clock (ms) at the first start: earlier documents are not published. Empty:
    none, or unknown.
    """
    first_read: FirstRead | None = None
    """With `source.start_where`, which documents the first read has left out."""

    def __str__(self) -> str:
        if self.collection_read:
            return f"{self.time} (reading the collection)"
        return f"{self.time}:{self.ordinal}" if self.ordinal else str(self.time)

    @property
    def progress(self) -> tuple[int, str, int]:
        """The sort key of positions of one log; resume tokens are hexadecimal texts that sort in log order."""
        if read := self.collection_read:
            return (0, "", read.documents)
        return (1, str(self.token["_data"]), 0)

    def is_alike(self, other: object) -> bool:
        """Whether both are positions of the same log and stream."""
        return isinstance(other, TokenPosition) and self.log == replace(other.log, collections=self.log.collections)

    def covers(self, row_position: str) -> bool:
        """Whether the document with this position text lies at or before this position, in the same log.

        Documents from before the stream (their position ends in a hash) lie before all changes of the stream; while
        they are being read, it is unknown which of them are covered.
        """
        time, _, number = row_position.partition(":")
        if self.collection_read is not None:
            return False
        if len(number) == HASH_DIGITS:
            return ClusterTime.parse(time).pair <= self.time.pair
        return (*ClusterTime.parse(time).pair, int(number)) <= (*self.time.pair, self.ordinal)

    def to_json(self) -> dict[str, Any]:
        stored: dict[str, Any] = {
            "source": SOURCE,
            "token": self.token,
            "time": str(self.time),
            "ordinal": self.ordinal,
            "at_ms": self.at_ms,
            "log": asdict(self.log),
        }
        if self.collection_read:
            stored["collection_read"] = {
                name: value for name, value in asdict(self.collection_read).items() if name != "where" or value
            }
        if self.recovery:
            stored["recovery"] = asdict(self.recovery)
        if self.begun:
            stored["begun"] = self.begun
        if self.first_read:
            stored["first_read"] = asdict(self.first_read)
        return stored

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> TokenPosition:
        """Parses the stored form; raises ValueError, KeyError or TypeError if it is invalid."""
        read, recovery, first_read = (stored.get(name) for name in ("collection_read", "recovery", "first_read"))
        if not isinstance(stored["token"]["_data"], str) or not isinstance(stored["time"], str):
            raise TypeError("token or time is invalid")
        if not isinstance(stored["log"]["collections"], dict):
            raise TypeError("the collections are not named")
        return cls(
            log=StreamIdentity(**stored["log"]),
            token=stored["token"],
            time=ClusterTime.parse(stored["time"]),
            at_ms=int(stored["at_ms"]),
            ordinal=int(stored["ordinal"]),
            collection_read=CollectionRead(**read) if read else None,
            recovery=Recovery(**recovery) if recovery else None,
            begun=str(stored.get("begun", "")),
            first_read=FirstRead(**first_read) if first_read else None,
        )
