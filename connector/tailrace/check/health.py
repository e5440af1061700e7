"""The state of a pipeline for `tailrace status`: its last announcement, compared with what both servers report now.

A killed connector has announced RUNNING, so RUNNING counts only while the database sees the connector read. The state
of the database is read in `health_postgres.py` and `health_mongo.py`. Nothing here fences, commits or changes anything.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tailrace.check.result import human_seconds
from tailrace.config.model import PipelineSettings
from tailrace.dlq import requests
from tailrace.dlq.reader import DeadLetterReader, OpenDeadLetters
from tailrace.errors import TailraceError
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.tail import ClusterObserver
from tailrace.positions.base import Position
from tailrace.sources.mongo.options import MongoOptions
from tailrace.state import offsets
from tailrace.state.status import standby_key, status_key
from tailrace.worker.options import column_map, kafka_options, source_options

READ_SECONDS = 10.0
"""How long to wait for the end of the offsets topic, which an open transaction of another pipeline delays."""
COUNTED_DEAD_LETTERS = 10_000
COUNTING_SECONDS = 3.0
"""Limits for counting open dead letters: a status must not read a topic of millions."""

STANDBY_SECONDS = 120.0
"""How long the last announcement of a standby instance is shown."""

RUNNING, NOT_RUNNING, NEVER_STARTED, UNKNOWN = "RUNNING", "NOT RUNNING", "NEVER STARTED", "UNKNOWN"
DATABASES = {"postgres": "Postgres", "mongo": "MongoDB", "rocksdb": "the embedded outbox"}


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the stored position is behind the end of the log.

    `since_ms` is a lower bound for when the first unread change was written, on the database's clock; None if there is
    none. `noise`: no more than an idle pipeline skips every few seconds.
    """

    since_ms: int | None
    bytes: int | None = None
    noise: bool = False


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The current state of the database, as it reports it.

    `reader` describes who reads for the pipeline, `absence` that nobody does; both are half sentences. `blind`: the
    user may not see sessions, so an absence proves nothing. `reading`: the first start is reading existing rows.
    `inactive_ms`: since when nobody reads, if the server reports it.
    """

    now_ms: int
    reader: str
    absence: str
    blind: bool = False
    reading: str = ""
    inactive_ms: int | None = None
    lag: Lag | None = None
    slot: dict[str, Any] | None = None
    oplog: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class KafkaStatus:
    """The state that is stored in Kafka: the last announcement and the position."""

    announced: dict[str, Any] = field(default_factory=dict)
    position: Position | None = None
    standby: dict[str, Any] = field(default_factory=dict)
    """The last announcement of an instance that waits for the running one."""


@dataclass(frozen=True, slots=True)
class PipelineHealth:
    """The state of a pipeline as far as it is known.

    `away` maps servers that did not answer to the reason. `source` is the kind of database; its log is described by
    `slot` (Postgres) or `oplog` (MongoDB).
    """

    pipeline: str
    source: str
    state: str
    detail: str
    since_ms: int | None
    announced: dict[str, Any]
    error: dict[str, Any] | None
    position: str | None
    lag_bytes: int | None
    lag_seconds: float | None
    slot: dict[str, Any] | None
    oplog: dict[str, Any] | None
    away: dict[str, str]
    dead_letters: dict[str, Any] | None = None
    parked: dict[str, Any] | None = None
    clock_ahead_seconds: float | None = None
    """By how much the database's clock is ahead of this machine's."""
    standby: dict[str, Any] | None = None
    """The last announcement of an instance that waits for the running one, or fails meanwhile."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_health(settings: PipelineSettings) -> PipelineHealth:
    """Reads Kafka first, then the database, so that a position never seems to be ahead of the log."""
    away: dict[str, str] = {}
    kafka: KafkaStatus | None = None
    server: SourceStatus | None = None
    ahead: float | None = None
    source = settings.source.kind
    try:
        kafka = read_kafka_status(kafka_options(settings))
    except TailraceError as error:
        away["kafka"] = f"{error.code}: {error.what}"
    dead_letters: OpenDeadLetters | None = None
    parked: dict[str, Any] | None = None
    if kafka is not None:
        try:
            dead_letters = DeadLetterReader(kafka_options(settings)).count(COUNTED_DEAD_LETTERS, COUNTING_SECONDS)
            parked = _parked(kafka_options(settings))
        except TailraceError as error:
            away["dead letters"] = f"{error.code}: {error.what}"
    try:
        before = time.time()
        server = read_source_status(settings, kafka.position if kafka else None)
        ahead = clock_ahead(server.now_ms, before, time.time())
    except TailraceError as error:
        away[source] = f"{error.code}: {error.what}"
    health = derive_health(settings.pipeline, source, kafka, server, away)
    counted = dead_letters.to_json() if dead_letters else None
    standby = _recent(kafka.standby) if kafka else None
    return replace(health, dead_letters=counted, parked=parked, clock_ahead_seconds=ahead, standby=standby)


def clock_ahead(server_ms: int, before: float, after: float) -> float:
    """Returns by how many seconds a clock that was read between two moments is ahead; 0 if unknown."""
    seconds = server_ms / 1000
    return round(seconds - after if seconds > after else min(0.0, seconds - before), 3)


def _parked(options: KafkaOptions) -> dict[str, Any] | None:
    """Counts parked keys and requests, with the time of the oldest; None without parked keys."""
    parking_state = requests.parking_state(options)
    if not parking_state.keys:
        return None
    oldest = min(state.since_ms for state in parking_state.keys.values())
    return {"keys": len(parking_state.keys), "since_ms": oldest, "requests": len(parking_state.requests)}


def read_kafka_status(options: KafkaOptions) -> KafkaStatus:
    if options.offsets_topic not in ClusterObserver(options).look().topics:
        return KafkaStatus()
    position, status, standby = options.pipeline.encode(), status_key(options.pipeline), standby_key(options.pipeline)
    found = offsets.read_keys(options, {position, status, standby}, timeout=READ_SECONDS)
    stored = offsets.parse(options, found[position]) if position in found else None
    return KafkaStatus(_announcement(found.get(status)), stored, _announcement(found.get(standby)))


def _announcement(value: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(value or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def read_source_status(settings: PipelineSettings, position: Position | None) -> SourceStatus:
    """Reads what the source database reports about the pipeline and its stored position."""
    # Both modules import this one, and the driver of MongoDB is an optional dependency.
    options = source_options(settings, column_map(settings))
    if isinstance(options, MongoOptions):
        from tailrace.check.health_mongo import read_mongo

        return read_mongo(options, position)
    from tailrace.check.health_postgres import read_postgres

    return read_postgres(options, position)


def derive_health(
    pipeline: str, source: str, kafka: KafkaStatus | None, server: SourceStatus | None, away: dict[str, str]
) -> PipelineHealth:
    """Derives state and lag from what both servers report. Pure."""
    announced = kafka.announced if kafka else {}
    position = kafka.position if kafka else None
    state, detail = _state(DATABASES[source], kafka, server)
    lag, seconds = server.lag if server else None, None
    if server is not None and lag is not None:
        since = None if state == RUNNING and lag.noise else lag.since_ms
        seconds = 0.0 if since is None else max(0.0, (server.now_ms - since) / 1000)
    return PipelineHealth(
        pipeline=pipeline,
        source=source,
        state=state,
        detail=detail,
        since_ms=_since(state, announced, server),
        announced=announced,
        error=announced.get("error"),
        position=str(position) if position else None,
        lag_bytes=lag.bytes if lag else None,
        lag_seconds=seconds,
        slot=server.slot if server else None,
        oplog=server.oplog if server else None,
        away=away,
    )


def _recent(announced: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the announcement if it is recent: instances repeat theirs at least once a minute."""
    at = announced.get("at_ms")
    return announced if isinstance(at, int) and time.time() - at / 1000 < STANDBY_SECONDS else None


def _state(database: str, kafka: KafkaStatus | None, server: SourceStatus | None) -> tuple[str, str]:
    if kafka is None:
        reported = f"; {server.reader or server.absence}" if server else ""
        return UNKNOWN, f"Kafka does not answer{reported}"
    announced = str(kafka.announced.get("state", ""))
    if not announced and kafka.position is None:
        return NEVER_STARTED, ""
    if server is None and announced in ("", RUNNING):
        return UNKNOWN, f"{database} does not answer; the connector announced {announced or 'nothing'}"
    if server is None:
        # Only RUNNING must be confirmed by the database.
        return announced, ""
    return _seen_state(announced, kafka, server)


def _seen_state(announced: str, kafka: KafkaStatus, server: SourceStatus) -> tuple[str, str]:
    """Compares the announcement with what the database reports; both servers answered."""
    if server.reader and announced in ("", RUNNING):
        return RUNNING, server.reading
    if server.reader:
        # The last announcement of a replaced instance may come after the first one of its successor.
        replaced = announced == "STOPPED"
        return (RUNNING if replaced else announced), f"{'one instance stopped, ' * replaced}but {server.reader}"
    if announced not in ("", RUNNING):
        return announced, ""
    if server.reading:
        return RUNNING, server.reading
    if server.blind:
        return UNKNOWN, f"{server.absence}; the connector announced {announced or 'nothing'}"
    return NOT_RUNNING, _absence(announced, kafka, server)


def _absence(announced: str, kafka: KafkaStatus, server: SourceStatus) -> str:
    last_state = (
        "its last state is RUNNING: it was killed, or lost Kafka" if announced else "it never announced a state"
    )
    alive = max(int(kafka.announced.get("at_ms", 0)), kafka.position.at_ms if kafka.position else 0)
    since = server.inactive_ms or alive
    gone = f" for {human_seconds((server.now_ms - since) / 1000)}{'' if server.inactive_ms else ' at most'}"
    return f"{server.absence},{gone}; {last_state}" if since else f"{server.absence}; {last_state}"


def _since(state: str, announced: dict[str, Any], server: SourceStatus | None) -> int | None:
    if state == NOT_RUNNING:
        return server.inactive_ms if server else None
    at = announced.get("at_ms")
    return int(at) if isinstance(at, int) and state == announced.get("state") else None


def ago(at_ms: int) -> str:
    """Formats a time in this machine's time zone, and how long ago it was."""
    shown = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(at_ms / 1000))
    return f"{shown} ({human_seconds(time.time() - at_ms / 1000)} ago)"
