"""A place in MongoDB's log: a resume token, and the cluster time it stands for.

Every change has a token of its own, those of one transaction too, so a token alone is an exact place. Tokens sort as
their changes do. `ordinal` counts the changes that share a cluster time, which gives each a name that does not depend
on where reading began. While the documents that were there before are read, a position says how far that came.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tailrace.positions.recovery_mark import Recovery

SOURCE = "mongo"
HASH_DIGITS = 16
"""Of the hash that ends the place of a document that was there before the stream."""


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
    recovery: Recovery | None = None
    """The collection is read to close a gap: what was published before is left out."""
    begun: str = ""
    """The server's clock (ms) at the first start, with `start: now`: what was written before is not published. Empty:
    nothing was, or it is not known.
    """

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

    def is_alike(self, other: object) -> bool:
        """Whether both are places in one log, asked the same."""
        return isinstance(other, TokenPosition) and self.log == replace(other.log, collections=self.log.collections)

    def covers(self, place: str) -> bool:
        """Whether the document at `place` lies at or before this position, of the same log.

        One that was there before the stream (its place ends in a hash) lies before everything that the stream brings;
        while those are read, none can be told from the others.
        """
        time, _, number = place.partition(":")
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
            stored["collection_read"] = asdict(self.collection_read)
        if self.recovery:
            stored["recovery"] = asdict(self.recovery)
        if self.begun:
            stored["begun"] = self.begun
        return stored

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> TokenPosition:
        """Reads the stored form; ValueError, KeyError or TypeError if it is not one."""
        read, recovery = stored.get("collection_read"), stored.get("recovery")
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
            recovery=Recovery(**recovery) if recovery else None,
            begun=str(stored.get("begun", "")),
        )
