"""A place in MongoDB's log: a resume token, and the cluster time it stands for.

Every change has a token of its own, those of one transaction too, so a token alone is an exact place. Tokens sort as
their changes do. `ordinal` counts the changes that share a cluster time, which gives each a name that does not depend
on where reading began. While the documents that were there before are read, a position says how far that came.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

SOURCE = "mongo"


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """Which log a position belongs to, and through what it was read.

    A collection's UUID is given when it is created and copied to every member: it tells one that was dropped and made
    anew, or that of another cluster, from the one that was read. `pipeline` is a fingerprint of what the server was
    asked to watch: a token is good for the same question only.
    """

    replica_set: str
    database: str
    collections: dict[str, str]
    pipeline: str


@dataclass(frozen=True, slots=True)
class ClusterTime:
    """MongoDB's logical clock: seconds, and a counter within the second."""

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
    """Progress of reading the documents that were there before the stream began.

    `collection` is the one being read, empty before the first; `after` is the sort key of the last published document
    (Extended JSON), `documents` how many are published.
    """

    collection: str = ""
    after: str | None = None
    documents: int = 0


@dataclass(frozen=True, slots=True)
class TokenPosition:
    """Where the pipeline stands. `token` is the server's, opaque but for its order; `at_ms` is the source's clock."""

    log: StreamIdentity
    token: dict[str, Any]
    time: ClusterTime
    at_ms: int
    ordinal: int = 0
    collection_read: CollectionRead | None = field(default=None)

    def __str__(self) -> str:
        if self.collection_read:
            return f"{self.time} (reading the collection)"
        return f"{self.time}:{self.ordinal}" if self.ordinal else str(self.time)

    @property
    def progress(self) -> tuple[int, str, int]:
        """Tokens are hexadecimal texts made to be compared as such."""
        if read := self.collection_read:
            return (0, "", read.documents)
        return (1, str(self.token["_data"]), 0)

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
            stored["collection_read"] = asdict(self.collection_read)
        return stored

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> TokenPosition:
        """Reads the stored form; ValueError, KeyError or TypeError if it is not one."""
        read = stored.get("collection_read")
        if not isinstance(stored["token"]["_data"], str) or not isinstance(stored["time"], str):
            raise TypeError("token or time is not one")
        if not isinstance(stored["log"]["collections"], dict):
            raise TypeError("the collections are not named")
        return cls(
            log=StreamIdentity(**stored["log"]),
            token=stored["token"],
            time=ClusterTime.parse(stored["time"]),
            at_ms=int(stored["at_ms"]),
            ordinal=int(stored["ordinal"]),
            collection_read=CollectionRead(**read) if read else None,
        )
