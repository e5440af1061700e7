"""What the server is asked to watch, and the fingerprint of that question. Pure.

Inserts only: a service that marks or purges its documents sends nothing. Beside them only the ends of a collection,
without which a dropped outbox would look like a quiet one. A token is good for one question: its fingerprint is part of
every position, and another question is refused.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

Stage = dict[str, Any]
ENDS = ("drop", "rename", "dropDatabase", "invalidate")
UNUSED = ("documentKey", "lsid", "txnNumber")
"""Fields of a change that nobody here reads; a large `_id` would come twice without this."""
SPLITTING = (7, 0)
SPLITTING_LATE = ((6, 0, 9), (6, 1))
"""Releases that can send a change of more than 16 MB in fragments: all since the first; of those before, these."""


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """One collection, or several of one database in one stream."""

    database: str
    collections: tuple[str, ...]

    @property
    def target(self) -> str | int:
        """What `aggregate` is run on: the collection, or 1 for the whole database."""
        return self.collections[0] if len(self.collections) == 1 else 1

    @property
    def cursor_name(self) -> str:
        """What `getMore` calls it."""
        return self.collections[0] if len(self.collections) == 1 else "$cmd.aggregate"

    @property
    def filter(self) -> Stage:
        ends = {"operationType": {"$in": list(ENDS)}}
        if len(self.collections) == 1:
            return {"$match": {"$or": [{"operationType": "insert"}, ends]}}
        names = {"$in": list(self.collections)}
        of_ours = {"operationType": {"$in": ["insert", "drop", "rename"]}, "ns.coll": names}
        # Another collection that takes the name of ours ends ours, which is told as the rename of the other alone.
        replaced = {"operationType": "rename", "to.coll": names}
        return {"$match": {"$or": [of_ours, replaced, {"operationType": {"$in": ["dropDatabase", "invalidate"]}}]}}

    @property
    def fingerprint(self) -> str:
        """Of everything that decides which changes come, in which form; splitting changes neither."""
        question = [self.database, self.target, self.filter, UNUSED]
        return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:16]

    def stages(self, start: Stage, *, splits: bool) -> list[Stage]:
        """The pipeline that begins at `start` ({} is now)."""
        stages = [{"$changeStream": start}, self.filter, {"$project": dict.fromkeys(UNUSED, 0)}]
        return [*stages, {"$changeStreamSplitLargeEvent": {}}] if splits else stages

    def heads(self, start: Stage, *, splits: bool) -> list[Stage]:
        """The same changes without their documents: those that are too large to be sent can be sent so."""
        stages: list[Stage] = [{"$changeStream": start}, self.filter, {"$project": {"clusterTime": 1}}]
        return [*stages, {"$changeStreamSplitLargeEvent": {}}] if splits else stages

    def inserted(self, start: Stage, collection: str) -> list[Stage]:
        """A stream of nothing but the ids of what was inserted into `collection` since `start`."""
        wanted = {"operationType": "insert", "ns.coll": collection}
        return [{"$changeStream": start}, {"$match": wanted}, {"$project": {"documentKey": 1}}]


def can_split(version: tuple[int, ...]) -> bool:
    """Whether a server of this version can send a large change in fragments."""
    first, end = SPLITTING_LATE
    return version >= SPLITTING or first <= version < end


@dataclass(frozen=True, slots=True)
class MongoOptions:
    """What the source needs to know; the settings of the same names, and which fields the layout reads."""

    uri: str
    app_name: str
    database: str
    collections: tuple[str, ...]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    ignored: frozenset[str]
    payload: str
    timestamp: str | None = None
    create: bool = True
    beginning: bool = False
    order_by: tuple[str, ...] = ("_id",)
    link_timeout: float = 30.0
    adopt: bool = False
    untimed_ms: int | None = None
    """The time of documents that were there before and have none; None for when they are read."""

    @property
    def watched(self) -> StreamSpec:
        return StreamSpec(self.database, self.collections)
