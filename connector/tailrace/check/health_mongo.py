"""What MongoDB sees of a pipeline: its sessions, the first change that waits for it, and how far its log reaches back.

A plain user sees the sessions of its own, and those of the connector carry its name. An open connection is what shows
that it lives: a cursor outlives its owner by minutes. The lag is not guessed from clocks, because the position of a
pipeline at rest is a few seconds old and the server's log stands still when nobody writes: the stream is asked from the
stored position what comes next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tailrace.check.health_server import Lag, SourceStatus
from tailrace.errors import AccessRefused, CollectionGone, EventTooLarge, HistoryLost, SourceUnavailable
from tailrace.positions.base import Position
from tailrace.positions.mongo import TokenPosition
from tailrace.sources.mongo.change_stream import ChangeStreamCursor
from tailrace.sources.mongo.changes import Changes, server_token
from tailrace.sources.mongo.client import Client, connect, identify, translated_errors
from tailrace.sources.mongo.documents import Documents
from tailrace.sources.mongo.options import MongoOptions, can_split

LOOK_SECONDS = 10.0
GLANCE_MS = 100
"""How long the server waits for a change to come; one that is there it finds without waiting."""
OPLOG = "oplog.rs"


@dataclass(frozen=True, slots=True)
class OplogRange:
    """How far the oplog reaches, in seconds since 1970; `full` once it forgets its oldest entries."""

    first: int
    last: int
    full: bool


@dataclass(frozen=True, slots=True)
class NextChange:
    """What comes behind the stored position: `first_ms` of the first change, None if there is none.

    `lost` says that the log no longer reaches back there.
    """

    first_ms: int | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class MongoStatus:
    """As the server has it; `sessions` None where it does not tell, `log` None where we may not look."""

    now_ms: int
    sessions: tuple[str, ...] | None
    waiting: NextChange | None = None
    log: OplogRange | None = None


def observer(options: MongoOptions) -> Client:
    """A client under another name than the connector's, which must not be taken for it."""
    timeout = min(options.link_timeout, LOOK_SECONDS)
    return connect(options.uri, app_name=f"{options.app_name} (observer)", timeout=timeout)


def read_mongo(options: MongoOptions, position: Position | None) -> SourceStatus:
    stored = position if isinstance(position, TokenPosition) else None
    with observer(options) as client:
        facts = identify(client)
        seen = MongoStatus(facts.now_ms, sessions(client, options.app_name), log=read_log(client))
        if stored is not None:
            seen = replace(seen, waiting=_waiting(client, options, stored, splits=can_split(facts.version)))
        return interpret(seen, stored)


def sessions(client: Client, app_name: str) -> tuple[str, ...] | None:
    """The addresses from which the connector is connected; None if the server does not tell."""
    stage = {"$currentOp": {"allUsers": False, "idleConnections": True}}
    wanted = {"$match": {"appName": app_name, "client": {"$type": "string"}}}
    try:
        with translated_errors("looking for the connector's sessions"):
            found = client.admin.command(
                {"aggregate": 1, "pipeline": [stage, wanted, {"$project": {"client": 1}}], "cursor": {}}
            )
    except AccessRefused:
        return None
    return tuple(str(each["client"]) for each in found["cursor"]["firstBatch"])


def _waiting(client: Client, options: MongoOptions, stored: TokenPosition, *, splits: bool) -> NextChange:
    try:
        first_ms = first_waiting(client, options, stored, splits=splits)
    except HistoryLost:
        return NextChange(stored.at_ms, lost=True)
    except (AccessRefused, CollectionGone, EventTooLarge, SourceUnavailable):
        # It may have far to look, or cannot send the next one: then only the position tells how late it is at most.
        return NextChange(stored.at_ms)
    return NextChange(first_ms if stored.collection_read is None else stored.at_ms)


def first_waiting(client: Client, options: MongoOptions, stored: TokenPosition, *, splits: bool) -> int | None:
    """When the first event behind the position was written, or None; raises what the source would raise there."""
    watched = options.watched
    stages = watched.stages({"startAfter": server_token(stored.token)}, splits=splits)
    cursor = ChangeStreamCursor(client, watched, stages)
    try:
        with translated_errors("looking at the change stream behind the stored position"):
            batch = cursor.more(wait_ms=GLANCE_MS)
    finally:
        cursor.close()
    following = Changes(stored, Documents(options.required, options.optional, options.payload, options.ignored))
    for change in batch.changes:
        following.feed(change)
        if following.rows:
            return following.rows[0].committed_ms
    return stored.at_ms if batch.changes else None  # the rest of a large one is still to come


def read_log(client: Client) -> OplogRange | None:
    """How far the oplog reaches; None for those who may not read it."""
    ends: list[int] = []
    try:
        with translated_errors("looking at the oplog"):
            for order in (1, -1):
                question = {"find": OPLOG, "sort": {"$natural": order}, "limit": 1, "projection": {"ts": 1}}
                found = client.local.command({**question, "singleBatch": True})["cursor"]["firstBatch"]
                ends += [entry["ts"].time for entry in found]
            size = client.local.command({"collStats": OPLOG})
    except AccessRefused:
        return None
    if len(ends) < 2:
        return None
    # Entries are forgotten by blocks of a hundredth or so: never quite full.
    return OplogRange(ends[0], ends[1], full=size.get("size", 0) >= 0.9 * size.get("maxSize", 0))


def interpret(seen: MongoStatus, stored: TokenPosition | None) -> SourceStatus:
    """Pure: what that means for a pipeline at this position."""
    clients = seen.sessions
    blind = clients is None
    absence = f"the server {'does not tell whether it has a' if blind else 'has no'} session of the connector"
    reading = bool(clients) and stored is not None and stored.collection_read is not None
    return SourceStatus(
        now_ms=seen.now_ms,
        reader=f"the connector is connected from {clients[0]}" if clients else "",
        absence=absence,
        blind=blind,
        reading="reading the documents that were in the collection before" if reading else "",
        lag=None if seen.waiting is None else Lag(seen.waiting.first_ms),
        oplog=_oplog(seen, stored),
    )


def _oplog(seen: MongoStatus, stored: TokenPosition | None) -> dict[str, object]:
    """For people and `--json`: seconds, or None where we may not look. `room` is what is left before the position."""
    log = seen.log
    return {
        "reaches_back": None if seen.waiting is None else not seen.waiting.lost,
        "window_seconds": log.last - log.first if log else None,
        "room_seconds": stored.time.seconds - log.first if log and stored else None,
        "full": log.full if log else None,
    }
