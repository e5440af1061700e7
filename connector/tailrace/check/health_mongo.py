"""Asks MongoDB about a pipeline: its sessions, the next change after its position, and the range of the oplog.

Every user sees its own sessions, and those of the connector carry its application name. An open connection shows that
it runs; a cursor outlives its process by minutes. The lag is read from the change stream after the stored position, not
computed from clocks: the position of an idle pipeline is a few seconds old, and an idle server writes no oplog.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tailrace.check.health import Lag, SourceStatus
from tailrace.errors import AccessRefused, CollectionGone, EventTooLarge, HistoryLost, SourceUnavailable
from tailrace.positions.base import Position
from tailrace.positions.mongo import TokenPosition
from tailrace.sources.mongo.change_stream import ChangeStreamCursor
from tailrace.sources.mongo.changes import ChangeFollower, server_token
from tailrace.sources.mongo.client import Client, connect, identify, translated_errors
from tailrace.sources.mongo.documents import DocumentConverter
from tailrace.sources.mongo.observation import read_oplog
from tailrace.sources.mongo.options import MongoOptions, can_split

LOOK_SECONDS = 10.0
WAIT_MS = 100
"""How long the server waits for a new change; it finds existing ones without waiting."""


@dataclass(frozen=True, slots=True)
class OplogRange:
    """First and last entry of the oplog in seconds since 1970; `full` if it already drops old entries."""

    first: int
    last: int
    full: bool


@dataclass(frozen=True, slots=True)
class NextChange:
    """The first change after the stored position: its time, or None if there is none.

    `lost`: the oplog no longer reaches back to the position.
    """

    first_ms: int | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class MongoStatus:
    """The server's answers; `sessions` or `log` is None if the user may not read it."""

    now_ms: int
    sessions: tuple[str, ...] | None
    waiting: NextChange | None = None
    log: OplogRange | None = None


def observer(options: MongoOptions) -> Client:
    """Connects with another application name than the connector's, to be distinguished from it."""
    timeout = min(options.link_timeout, LOOK_SECONDS)
    return connect(options.uri, app_name=f"{options.app_name} (observer)", timeout=timeout)


def read_mongo(options: MongoOptions, position: Position | None) -> SourceStatus:
    stored = position if isinstance(position, TokenPosition) else None
    with observer(options) as client:
        facts = identify(client)
        reported = MongoStatus(facts.now_ms, sessions(client, options.app_name), log=read_log(client))
        if stored is not None:
            reported = replace(reported, waiting=_waiting(client, options, stored, splits=can_split(facts.version)))
        return interpret(reported, stored)


def sessions(client: Client, app_name: str) -> tuple[str, ...] | None:
    """Returns the addresses from which the connector is connected; None if that may not be read."""
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
        # The search may take long, or the next change cannot be sent. The position gives an upper bound of the lag.
        return NextChange(stored.at_ms)
    return NextChange(first_ms if stored.collection_read is None else stored.at_ms)


def first_waiting(client: Client, options: MongoOptions, stored: TokenPosition, *, splits: bool) -> int | None:
    """Returns when the first event after the position was written, or None; raises what the source would raise."""
    watched = options.watched
    stages = watched.stages({"startAfter": server_token(stored.token)}, splits=splits)
    cursor = ChangeStreamCursor(client, watched, stages)
    try:
        with translated_errors("reading the change stream after the stored position"):
            batch = cursor.more(wait_ms=WAIT_MS)
    finally:
        cursor.close()
    following = ChangeFollower(stored, DocumentConverter.of(options))
    for change in batch.changes:
        following.feed(change)
        if following.rows:
            return following.rows[0].committed_ms
    return stored.at_ms if batch.changes else None  # the rest of a split change is still to come


def read_log(client: Client) -> OplogRange | None:
    """Returns the range of the oplog; None if the user may not read it."""
    found = read_oplog(client)
    if found is None:
        return None
    # Old entries are dropped in blocks of about 1 %, so it is never exactly full.
    return OplogRange(found.first, found.last, full=found.size >= 0.9 * found.limit)


def interpret(reported: MongoStatus, stored: TokenPosition | None) -> SourceStatus:
    """Derives the status of a pipeline at this position. Pure."""
    clients = reported.sessions
    blind = clients is None
    absence = f"the server {'does not show whether there is a' if blind else 'has no'} session of the connector"
    reading = bool(clients) and stored is not None and stored.collection_read is not None
    return SourceStatus(
        now_ms=reported.now_ms,
        reader=f"the connector is connected from {clients[0]}" if clients else "",
        absence=absence,
        blind=blind,
        reading="reading the documents that existed before the first start" if reading else "",
        lag=None if reported.waiting is None else Lag(reported.waiting.first_ms),
        oplog=_oplog(reported, stored),
    )


def _oplog(reported: MongoStatus, stored: TokenPosition | None) -> dict[str, object]:
    """For `tailrace status`, in seconds, or None if unknown. `room`: oplog before the stored position."""
    log = reported.log
    return {
        "reaches_back": None if reported.waiting is None else not reported.waiting.lost,
        "window_seconds": log.last - log.first if log else None,
        "room_seconds": stored.time.seconds - log.first if log and stored else None,
        "full": log.full if log else None,
    }
