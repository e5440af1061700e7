"""The options of a MongoDB source, and the change stream that they describe. Free of the driver, which is optional.

The stream has only inserts, so marking or deleting documents sends nothing, and drops and renames of the collection,
without which a dropped outbox would look idle. A resume token is valid only for one stream: the fingerprint of the
stream is part of every position, and a position of another stream is refused.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

Stage = dict[str, Any]
ENDS = ("drop", "rename", "dropDatabase", "invalidate")
UNUSED = ("documentKey", "lsid", "txnNumber")
"""Unused fields of a change; they would repeat a large `_id`."""
SPLITTING = (7, 0)
SPLITTING_LATE = ((6, 0, 9), (6, 1))
"""Releases that can send a change of more than 16 MB in fragments: from SPLITTING on, and these earlier ones."""


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """The change stream of one or several collections of a database."""

    database: str
    collections: tuple[str, ...]

    @property
    def target(self) -> str | int:
        """The target of `aggregate`: the collection, or 1 for the whole database."""
        return self.collections[0] if len(self.collections) == 1 else 1

    @property
    def cursor_name(self) -> str:
        """The collection name for `getMore`."""
        return self.collections[0] if len(self.collections) == 1 else "$cmd.aggregate"

    @property
    def filter(self) -> Stage:
        ends = {"operationType": {"$in": list(ENDS)}}
        if len(self.collections) == 1:
            return {"$match": {"$or": [{"operationType": "insert"}, ends]}}
        names = {"$in": list(self.collections)}
        of_ours = {"operationType": {"$in": ["insert", "drop", "rename"]}, "ns.coll": names}
        # Renaming another collection to our name replaces ours, which is reported only as that rename.
        replaced = {"operationType": "rename", "to.coll": names}
        return {"$match": {"$or": [of_ours, replaced, {"operationType": {"$in": ["dropDatabase", "invalidate"]}}]}}

    @property
    def fingerprint(self) -> str:
        """The fingerprint of everything that decides which changes are sent, and in which form."""
        stream = [self.database, self.target, self.filter, UNUSED]
        return hashlib.sha256(json.dumps(stream, sort_keys=True).encode()).hexdigest()[:16]

    def stages(self, start: Stage, *, splits: bool) -> list[Stage]:
        """Returns the aggregation that begins at `start` ({} is now)."""
        stages = [{"$changeStream": start}, self.filter, {"$project": dict.fromkeys(UNUSED, 0)}]
        return [*stages, {"$changeStreamSplitLargeEvent": {}}] if splits else stages

    def heads(self, start: Stage, *, splits: bool) -> list[Stage]:
        """The same changes without their documents, for changes that are too large to send."""
        stages: list[Stage] = [{"$changeStream": start}, self.filter, {"$project": {"clusterTime": 1}}]
        return [*stages, {"$changeStreamSplitLargeEvent": {}}] if splits else stages

    def inserted(self, start: Stage, collection: str) -> list[Stage]:
        """Returns the aggregation for the ids of documents inserted into `collection` since `start`."""
        wanted = {"operationType": "insert", "ns.coll": collection}
        return [{"$changeStream": start}, {"$match": wanted}, {"$project": {"documentKey": 1}}]


def can_split(version: tuple[int, ...]) -> bool:
    """Whether a server of this version can send a large change in fragments."""
    first, end = SPLITTING_LATE
    return version >= SPLITTING or first <= version < end


@dataclass(frozen=True, slots=True)
class MongoOptions:
    """The settings of the same names, and the fields that the layout reads."""

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
    start_where: str = ""
    """The filter for the documents of the first read, as JSON; empty: all documents."""
    default_where: bool = False
    """The setting is not given: `start_where` is the layout's own predicate, because rows are marked."""
    order_by: tuple[str, ...] = ("_id",)
    link_timeout: float = 30.0
    adopt: bool = False
    untimed_ms: int | None = None
    """The time of existing documents that have none; None: the time of reading."""

    @property
    def watched(self) -> StreamSpec:
        return StreamSpec(self.database, self.collections)
