"""Where a pipeline stands, from anywhere: what it announced, checked against what both servers say now.

An announcement is news, and news grow old: a connector that was killed has announced RUNNING. So RUNNING is believed
only while the server sees a session on the slot. Nothing here fences, commits or changes anything.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tailrace.config.model import Pipeline as Settings
from tailrace.errors import TailraceError
from tailrace.kafka import offsets, park_requests
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.letter_box import LetterBox, OpenLetters
from tailrace.kafka.status import status_key
from tailrace.kafka.watch import Observer
from tailrace.lsn import format_lsn, parse_lsn
from tailrace.position import Position
from tailrace.sources.postgres import slot as catalogue
from tailrace.sources.postgres.admission import Slot
from tailrace.sources.postgres.link import Link
from tailrace.sources.postgres.source import PostgresOptions
from tailrace.worker.assembly import column_map, kafka_options, postgres_options

READ_SECONDS = 10.0
"""How long the end of the offsets topic is waited for: another pipeline's transaction may hold it back."""
COUNTED_LETTERS = 10_000
COUNTING_SECONDS = 3.0
"""Open dead letters are counted no further than this: a glance must not read a topic of millions."""
NOISE_BYTES = 64 * 1024
"""WAL of others (checkpoints, vacuum) that an idle pipeline steps over only every few seconds: not a lag."""

RUNNING, NOT_RUNNING, NEVER_STARTED, UNKNOWN = "RUNNING", "NOT RUNNING", "NEVER STARTED", "UNKNOWN"


@dataclass(frozen=True, slots=True)
class News:
    """What Kafka knows: the last announcement and the stored position."""

    announced: dict[str, Any] = field(default_factory=dict)
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """What Postgres knows. `inactive_ms`: since when nobody reads the slot, where the server tells (17 and newer)."""

    slot: Slot | None
    lsn: int
    now_ms: int
    reading_table: bool = False
    inactive_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """The truth as far as it is known; `away` names the servers that gave no answer, and why."""

    pipeline: str
    state: str
    detail: str
    since_ms: int | None
    announced: dict[str, Any]
    error: dict[str, Any] | None
    position: str | None
    lag_bytes: int | None
    lag_seconds: float | None
    slot: dict[str, Any] | None
    away: dict[str, str]
    dead_letters: dict[str, Any] | None = None
    parked: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def look(settings: Settings) -> Health:
    """Asks Kafka, then Postgres: in this order a running pipeline is never seen ahead of its server's log."""
    away: dict[str, str] = {}
    news: News | None = None
    server: Server | None = None
    try:
        news = read_news(kafka_options(settings))
    except TailraceError as error:
        away["kafka"] = f"{error.code}: {error.what}"
    letters: OpenLetters | None = None
    parked: dict[str, Any] | None = None
    if news is not None:
        try:
            letters = LetterBox(kafka_options(settings)).count(COUNTED_LETTERS, COUNTING_SECONDS)
            parked = _parked(kafka_options(settings))
        except TailraceError as error:
            away["dead letters"] = f"{error.code}: {error.what}"
    try:
        server = read_server(postgres_options(settings, column_map(settings)))
    except TailraceError as error:
        away["postgres"] = f"{error.code}: {error.what}"
    health = judge(settings.pipeline, news, server, away)
    return replace(health, dead_letters=letters.to_json() if letters else None, parked=parked)


def _parked(options: KafkaOptions) -> dict[str, Any] | None:
    """How many keys wait, since when the first of them, and how much was asked for; None if none does."""
    board = park_requests.board(options)
    if not board.keys:
        return None
    oldest = min(state.since_ms for state in board.keys.values())
    return {"keys": len(board.keys), "since_ms": oldest, "requests": len(board.requests)}


def read_news(options: KafkaOptions) -> News:
    if options.offsets_topic not in Observer(options).look().topics:
        return News()
    position, status = options.pipeline.encode(), status_key(options.pipeline)
    found = offsets.read_keys(options, {position, status}, timeout=READ_SECONDS)
    try:
        announced = json.loads(found.get(status, b"{}"))
    except ValueError:
        announced = {}
    stored = offsets.parse(options, found[position]) if position in found else None
    return News(announced if isinstance(announced, dict) else {}, stored)


def read_server(options: PostgresOptions) -> Server:
    with Link(options.conninfo, replication=False, timeout=min(options.link_timeout, READ_SECONDS)) as link:
        slot = catalogue.read_slot(link, options.slot)
        # While the rows of the table are read, nobody is on the slot: the session that reads them stands for it.
        now, lsn, readers = link.query(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, "
            "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, "
            "(SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailrace' AND datname = "
            "current_database() AND query LIKE '%outbox\\_rows%' AND pid <> pg_backend_pid())"
        )[0]
        inactive = None
        if link.server_version >= 170000:
            rows = link.query(
                "SELECT (extract(epoch FROM inactive_since) * 1000)::bigint FROM pg_replication_slots "
                "WHERE slot_name = $1",
                [options.slot],
            )
            inactive = int(rows[0][0]) if rows and rows[0][0] else None
        return Server(slot, parse_lsn(str(lsn)), int(now or 0), readers != "0", inactive)


def judge(pipeline: str, news: News | None, server: Server | None, away: dict[str, str]) -> Health:
    """Pure: the derived state, and the lag, from what is known."""
    announced = news.announced if news else {}
    position = news.position if news else None
    slot = server.slot if server else None
    state, detail = _state(news, server)
    behind = seconds = None
    if server is not None and position is not None and not position.creating:
        behind = max(0, server.lsn - position.lsn)
        quiet = behind == 0 or (state == RUNNING and behind <= NOISE_BYTES)
        seconds = 0.0 if quiet else max(0.0, (server.now_ms - position.at_ms) / 1000)
    return Health(
        pipeline=pipeline,
        state=state,
        detail=detail,
        since_ms=_since(state, announced, server),
        announced=announced,
        error=announced.get("error"),
        position=str(position) if position else None,
        lag_bytes=behind,
        lag_seconds=seconds,
        slot=None if slot is None else {**asdict(slot), "confirmed_lsn": format_lsn(slot.confirmed_lsn)},
        away=away,
    )


def _state(news: News | None, server: Server | None) -> tuple[str, str]:
    if news is None:
        active = server is not None and server.slot is not None and server.slot.active_pid is not None
        seen = f"; the slot is {'read by someone' if active else 'not in use'}" if server else ""
        return UNKNOWN, f"Kafka gives no answer{seen}"
    announced = str(news.announced.get("state", ""))
    if not announced and news.position is None:
        return NEVER_STARTED, ""
    if server is None and announced in ("", RUNNING):
        return UNKNOWN, f"Postgres gives no answer; the connector announced {announced or 'nothing'}"
    if server is None:
        # A connector that ended has said so itself; only that it still runs must be seen.
        return announced, ""
    return _seen_state(announced, news, server)


def _seen_state(announced: str, news: News, server: Server) -> tuple[str, str]:
    """Both servers answered: the announcement is believed as far as the slot bears it out."""
    reader = server.slot.active_pid if server.slot else None
    if reader is not None and announced in ("", RUNNING):
        return RUNNING, ""
    if reader is not None:
        who = f"the slot is read by server process {reader}"
        # The last word of an instance that was replaced may come after the first one of its successor.
        return (RUNNING, f"one instance stopped, but {who}") if announced == "STOPPED" else (announced, f"but {who}")
    if announced not in ("", RUNNING):
        return announced, ""
    if server.reading_table and news.position is not None and news.position.table_read is not None:
        return RUNNING, "reading the rows that were in the table before"
    return NOT_RUNNING, _absence(announced, news, server)


def _absence(announced: str, news: News, server: Server) -> str:
    why = "nobody reads the slot" if server.slot else "there is no slot"
    told = "it announced RUNNING and never an end: killed, or cut off from Kafka" if announced else "it never announced"
    alive = max(int(news.announced.get("at_ms", 0)), news.position.at_ms if news.position else 0)
    since = server.inactive_ms or alive
    gone = f" for {human_seconds((server.now_ms - since) / 1000)}{'' if server.inactive_ms else ' at most'}"
    return f"{why},{gone}; {told}" if since else f"{why}; {told}"


def _since(state: str, announced: dict[str, Any], server: Server | None) -> int | None:
    if state == NOT_RUNNING:
        return server.inactive_ms if server else None
    at = announced.get("at_ms")
    return int(at) if isinstance(at, int) and state == announced.get("state") else None


def human_seconds(seconds: float) -> str:
    """`3 s`, `12 min`, `5 h`, `2 d`."""
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{max(0.0, seconds) / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def ago(at_ms: int) -> str:
    """When, in this machine's time zone, and how long ago."""
    shown = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(at_ms / 1000))
    return f"{shown} ({human_seconds(time.time() - at_ms / 1000)} ago)"
