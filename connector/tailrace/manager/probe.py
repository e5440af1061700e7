"""A thread beside the pipeline that asks the servers every ten seconds: lag, log, pending events, dead letters, TLS.

It has its own sessions, and a limit for every wait. An error here never ends the pipeline.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tailrace.check.result import human_seconds
from tailrace.config.secrets import mask
from tailrace.dlq.parked_keys import state_topic
from tailrace.dlq.reader import DeadLetterReader
from tailrace.dlq.requests import parking_state
from tailrace.dlq.resolutions import resolutions_topic
from tailrace.errors import TailraceError
from tailrace.kafka.topic_ends import TopicEnds, TopicEndsReader
from tailrace.manager.certificates import TlsServer, expiry, tls_servers
from tailrace.manager.forecast import LogGrowth, PendingEvents, lost_in
from tailrace.positions.base import Position
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.observation import SourceObservation
from tailrace.sources.postgres.observation import PostgresObserver
from tailrace.worker.alert_rules import LeakRule, LogDangerRule
from tailrace.worker.alerts import LEAK, LOG_IN_DANGER
from tailrace.worker.metrics import PipelineMetrics, Value
from tailrace.worker.outage import listens
from tailrace.worker.wiring import Wiring

PROBE_SECONDS = 10.0
RECENT_SECONDS = 300.0
"""Rates of health checks are taken over this time."""
COUNT_FACTOR = 10.0
"""After dead letters were counted, the next count waits this many times as long as the count took."""
COUNTED_DEAD_LETTERS, COUNTING_SECONDS = 10_000, 3.0
CERTIFICATE_SECONDS = 600.0
STALE_PERIODS = 3.0
"""After this many periods, an observation says nothing any more."""

log = logging.getLogger("tailrace.probe")


class Observer(Protocol):
    """Observes a source: `PostgresObserver`, `MongoObserver`."""

    def observe(self, position: Position | None) -> SourceObservation: ...
    def close(self) -> None: ...


class Notify(Protocol):
    """Raises an alert: `Supervisor.notify`."""

    def __call__(self, kind: str, what: str, *, why: str = "", remedy: str = "") -> None: ...


class _Sample(NamedTuple):
    at: float
    delivered: int
    failed: int
    dead_letters: int


class PipelineProbe:
    """Fills the probed metrics, and `facts` for health checks. `start` and `close` are called once."""

    def __init__(
        self, wiring: Wiring, metrics: PipelineMetrics, notify: Notify, *, every: float = PROBE_SECONDS
    ) -> None:
        self._wiring = wiring
        self._metrics = metrics
        self._notify = notify
        self._every = every
        self._source: Observer | None = None
        self._ends = TopicEndsReader(wiring.kafka)
        self._counted_ends: TopicEnds | None = None
        self._count_at = self._certified_at = float("-inf")
        self._growth = LogGrowth()
        self._pending = PendingEvents()
        self._leak, self._danger = LeakRule(), LogDangerRule()
        self._samples: deque[_Sample] = deque()
        self._seen: tuple[float, SourceObservation] | None = None
        self._dead_letters: dict[str, Any] | None = None
        self._parked: dict[str, Any] | None = None
        self._certificates: dict[str, float] = {}
        self.facts: dict[str, Any] = {}
        """What was read last, as plain data; see docs/health.md."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread soon; does not wait for it."""
        self._closed.set()

    @property
    def observed(self) -> SourceObservation | None:
        """The last observation of the source; None if there is none, or if it is old."""
        seen = self._seen
        return seen[1] if seen is not None and time.monotonic() - seen[0] < STALE_PERIODS * self._every else None

    def _run(self) -> None:
        while not self._closed.is_set():
            began = time.monotonic()
            try:
                self.look()
            except Exception:  # a probe must never end the pipeline
                log.debug("the probe failed", exc_info=True)
            self._closed.wait(max(self._every / 2, began + self._every - time.monotonic()))
        if self._source is not None:
            self._source.close()

    def look(self) -> None:
        """Asks all servers once."""
        now = time.monotonic()
        servers = {
            "source": self._ask(self._look_at_source),
            "kafka": self._ask(self._look_at_kafka),
        }
        registry = self._wiring.settings.schemas.registry if self._wiring.settings.schemas else None
        if registry is not None:
            url = registry.url
            servers["registry"] = None if listens(url) else {"what": "the schema registry does not answer"}
        if now - self._certified_at >= CERTIFICATE_SECONDS:
            self._certified_at = now
            self._look_at_certificates()
        self._publish(now, servers)

    def _ask(self, look: Callable[[], None]) -> dict[str, str] | None:
        """Returns the error of a server that does not answer, or None."""
        try:
            look()
        except TailraceError as error:
            return {"code": error.code, "what": mask(error.what), "why": mask(error.why), "remedy": mask(error.remedy)}
        return None

    def _look_at_source(self) -> None:
        self._seen = None
        if self._source is None:
            self._source = _observer(self._wiring)
        position = self._metrics.position
        self._seen = time.monotonic(), self._source.observe(position)

    def _look_at_kafka(self) -> None:
        kafka, now = self._wiring.kafka, time.monotonic()
        topics = (kafka.dead_letter_topic, resolutions_topic(kafka), state_topic(kafka))
        ends = self._ends.read(topics)
        if ends == self._counted_ends or now < self._count_at:
            return
        # An empty topic need not be read, which would take consumers of its own.
        written = {name for (name, _), end in ends.items() if end}
        if kafka.dead_letter_topic in written:
            counted = DeadLetterReader(kafka).count(COUNTED_DEAD_LETTERS, COUNTING_SECONDS)
            self._dead_letters = counted.to_json()
        else:
            self._dead_letters = {"open": 0, "more": False, "by_reason": {}}
        keys = parking_state(kafka).keys if state_topic(kafka) in written else {}
        self._parked = {"keys": len(keys), "since_ms": min((each.since_ms for each in keys.values()), default=None)}
        self._counted_ends = ends
        self._count_at = time.monotonic() + COUNT_FACTOR * (time.monotonic() - now)

    def _look_at_certificates(self) -> None:
        source = self._source
        parameter = source.parameter if isinstance(source, PostgresObserver) else lambda _: ""
        for server in tls_servers(self._wiring.settings, parameter):
            if (at := _expiry(server)) is not None:
                self._certificates[server.name] = at

    def _publish(self, now: float, servers: dict[str, dict[str, str] | None]) -> None:
        """Derives metrics, facts and alerts from what was read."""
        metrics, seen = self._metrics, self._seen[1] if self._seen is not None else None
        values: dict[str, Value] = {"server_up": {name: float(error is None) for name, error in servers.items()}}
        dead_letters = sum(metrics.dead_letters.values())
        self._samples.append(_Sample(now, metrics.delivered, metrics.failed, dead_letters))
        while self._samples[0].at < now - RECENT_SECONDS:
            self._samples.popleft()
        first = self._samples[0]
        facts: dict[str, Any] = {
            "at_ms": time.time_ns() // 1_000_000,
            "source": "mongodb" if isinstance(self._wiring.database, MongoOptions) else "postgres",
            "servers": servers,
            "dead_letters": self._dead_letters,
            "parked": self._parked,
            "certificates": dict(self._certificates),
            "retrying_records": len(self._wiring.record_retries.pending),
            "recent": {
                "seconds": now - first.at,
                "delivered": metrics.delivered - first.delivered,
                "failed": metrics.failed - first.failed,
                "dead_letters": dead_letters - first.dead_letters,
            },
        }
        if self._dead_letters is not None:
            values["outbox_dlq_events_count"] = self._dead_letters["open"]
        if self._parked is not None:
            values["outbox_parked_keys_count"] = self._parked["keys"]
        if self._certificates:
            values["certificate_expiry_timestamp_seconds"] = dict(self._certificates)
        if seen is not None:
            facts |= self._source_facts(now, seen, values)
        metrics.probed(values)
        self.facts = facts
        leak = self._leak.look(now, dead_letters)
        if leak is not None:
            self._notify(
                LEAK,
                f"{leak.dead_letters} events were dead-lettered within {human_seconds(leak.seconds)}, a few at a time",
                why="A part of the events does not fit its schema or rules, and their number never looks alarming.",
                remedy="See `tailrace dlq list FILE`, and fix the service or the schema.",
            )

    def _source_facts(self, now: float, seen: SourceObservation, values: dict[str, Value]) -> dict[str, Any]:
        growth = seen.growth if seen.log_end is None else self._growth.look(now, seen.log_end)
        left = 0.0 if seen.lost else lost_in(seen.safe_bytes, growth)
        pending = self._pending.look(seen, self._metrics.published)
        known = {
            "outbox_lag_bytes": seen.lag_bytes,
            "outbox_lag_seconds": seen.lag_seconds,
            "outbox_pending_events_count": pending,
            "outbox_table_size_bytes": seen.table_bytes,
            "log_retained_bytes": seen.retained_bytes,
            "log_safe_bytes": seen.safe_bytes,
            "log_growth_bytes_per_second": growth,
            "log_lost_in_seconds": left,
        }
        values.update({name: value for name, value in known.items() if value is not None})
        danger = self._danger.look(left, seen.safe_bytes, seen.limit_bytes, lost=bool(seen.lost))
        if danger is not None:
            self._notify(
                LOG_IN_DANGER,
                seen.lost or danger.what,
                why="The server limits its log, and the pipeline is behind.",
                remedy="Let the pipeline catch up, or raise the limit (max_slot_wal_keep_size; the size of the oplog). "
                "If the log is lost: `tailrace recover plan FILE`.",
            )
        finite = None if left is None or left == float("inf") else left
        return {
            "lag": {"bytes": seen.lag_bytes, "seconds": seen.lag_seconds, "events": pending},
            "log": {
                "retained_bytes": seen.retained_bytes,
                "safe_bytes": seen.safe_bytes,
                "limit_bytes": seen.limit_bytes,
                "growth": growth,
                "lost_in_seconds": finite,
                "status": seen.status,
                "lost": seen.lost,
            },
            "reading_existing": seen.reading_existing,
        }


def _observer(wiring: Wiring) -> Observer:
    if isinstance(wiring.database, MongoOptions):
        from tailrace.sources.mongo.observation import MongoObserver  # its driver is an optional dependency

        return MongoObserver(wiring.database)
    return PostgresObserver(wiring.database)


def _expiry(server: TlsServer) -> float | None:
    try:
        return expiry(server)
    except (OSError, ValueError):
        return None  # the server is away, or refuses a handshake without a certificate of ours
