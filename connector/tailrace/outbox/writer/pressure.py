"""How far the connector is behind, seen from the database, and a bounded brake for producers.

`connector_status.py` adds what a worker says about the pipeline.

In Postgres the slot shows how much of the log is not confirmed yet. Since when that is so is known from a watermark, or
from samples of the end of the log that the outbox has taken before; rows that are newer are counted. With row marks the
rows themselves show it. A connector that is down needs no special case: its slot stays where it is.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from tailrace.errors import ConfigError
from tailrace.outbox.layouts import ColumnMap
from tailrace.outbox.writer.evidence import DEAD, SLOT_CONDITION, DeliveryEvidence, dead_condition, several_slots
from tailrace.outbox.writer.requests import PARAMETER, Count, Query, Sleep, Steps
from tailrace.outbox.writer.rows import RowLayout
from tailrace.outbox.writer.table import Table
from tailrace.sql_names import quote, quote_table, split_table

COUNTED = 10_000
"""More pending events are not counted: counting would take longer than the answer is worth."""
DAY = 86_400
LATE_SECONDS = 10.0
"""A document that has waited longer shows that the connector is down or behind: marks follow within a second."""
SAMPLES = 3600
SAMPLE_SECONDS = 1.0

_SLOT = f"""\
SELECT slot_name, active, CAST(pg_current_wal_insert_lsn() - '0/0' AS bigint),
       CAST(confirmed_flush_lsn - '0/0' AS bigint), wal_status
FROM pg_replication_slots WHERE {SLOT_CONDITION}"""  # noqa: S608 - markers of parameters


@dataclass(frozen=True, slots=True)
class Pressure:
    """How far the connector is behind. None means that neither the database nor the worker shows it."""

    running: bool | None
    """Whether a connector reads the outbox now: by the slot, or, where there is none, by the worker."""
    lag_bytes: int | None
    """Log that is not confirmed; it contains the changes of all tables."""
    lag_seconds: float | None
    """For how long the oldest of it has been waiting: at least, if this process has observed it for less time."""
    pending_events: int | None
    """About how many events are not published yet, rather too many than too few; counted up to 10,000."""
    explanation: str
    """One sentence for a person, such as that the connector is not running."""
    state: str | None = None
    """The state of the pipeline, such as `RUNNING` or `FAILED`; None without an answer of `Outbox(worker=…)`."""
    remedy: str | None = None
    """What to do if the pipeline does not run, as its worker says."""


@dataclass(frozen=True, slots=True)
class Brake:
    """When producers are slowed down, and by how much. A limit of None is not looked at.

    At a limit the delay begins, at twice the limit it is `max_delay` seconds.
    """

    pending_events: int | None = 5000
    lag_seconds: float | None = None
    lag_bytes: int | None = None
    max_delay: float = 0.1
    interval: float = 1.0
    """Seconds for which a measured pressure is used."""

    def delay(self, pressure: Pressure) -> float:
        """Returns the seconds that a producer should wait."""
        limits = (
            (pressure.pending_events, self.pending_events),
            (pressure.lag_seconds, self.lag_seconds),
            (pressure.lag_bytes, self.lag_bytes),
        )
        beyond = [value / limit - 1 for value, limit in limits if value is not None and limit]
        return self.max_delay * min(1.0, max(0.0, *beyond, 0.0))


class BrakeState:
    """The pressure that was measured last, and when. Shared by threads: at worst, two measure at once."""

    def __init__(self, brake: Brake) -> None:
        self._brake = brake
        self._measured = -brake.interval
        self._delay = 0.0

    def steps(self, measure: Callable[[], Steps[Pressure]]) -> Steps[float]:
        """Waits as long as the brake says; returns the seconds."""
        now = time.monotonic()
        if now - self._measured >= self._brake.interval:
            self._measured = now
            self._delay = self._brake.delay((yield from measure()))
        if self._delay > 0:
            yield Sleep(self._delay)
        return self._delay


class Samples:
    """The end of the log at earlier times."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._times: list[float] = []

    def add(self, end: int, at: float) -> None:
        if self._times and at - self._times[-1] < SAMPLE_SECONDS:
            return
        self._ends.append(max(end, self._ends[-1] if self._ends else 0))
        self._times.append(at)
        if len(self._times) > SAMPLES:
            del self._ends[: SAMPLES // 2], self._times[: SAMPLES // 2]

    def time_of(self, position: int) -> float:
        """Returns a time at which the log ended at or before `position`; the first known time if there is none."""
        return self._times[max(0, bisect_right(self._ends, position) - 1)]


class PostgresPressure:
    """Measures the pressure on one table."""

    def __init__(self, name: str, layout: RowLayout, columns: ColumnMap) -> None:
        self._name = name
        self._layout = layout
        self._columns = columns
        self._samples = Samples()

    def steps(self, evidence: DeliveryEvidence, table: Table) -> Steps[Pressure]:
        rows = yield Query(_SLOT, (evidence.slot, evidence.slot))
        if len(rows) > 1:
            raise several_slots([str(row[0]) for row in rows])
        now = time.time()
        running = lag = None
        text = f"there is no slot {evidence.slot or 'tailrace_…'}: no pipeline has read this outbox yet"
        since: float | None = None
        pending: int | None
        if rows:
            name, running, end, confirmed, wal_status = rows[0]
            lag = max(0, end - confirmed)
            self._samples.add(end, now)
            since = now if not lag else self._samples.time_of(confirmed)
            text = f"the connector reads the slot {name}"
            if not running:
                text = f"the connector is not running: nobody reads the slot {name}"
            if wal_status == "lost":
                text = f"the slot {name} is lost: `tailrace recover` is needed"
        if evidence.marks == "rows" and self._layout.mark is not None:
            seconds, pending = yield from self._by_marks(table)
        else:
            if evidence.marks == "watermark" and evidence.pipeline is not None:
                since = yield from self._by_watermark(evidence)
            seconds = None if since is None else max(0.0, now - since)
            pending = None if since is None else (yield from self._newer(since, table))
        return Pressure(running, lag, seconds, pending, text)

    def _by_marks(self, table: Table) -> Steps[tuple[float | None, int]]:
        column, done = self._layout.mark or ("", "")
        at = self._columns.timestamp or "created_at"
        is_dead = "false" if column == "processed" and "error" not in table else dead_condition(column)
        [(pending, seconds)] = yield Query(
            f"SELECT count(*), CAST(extract(epoch FROM clock_timestamp() - min({quote(at)})) AS double precision) "  # noqa: S608
            f"FROM (SELECT {quote(at)} FROM {quote_table(self._name)} "
            f"WHERE lower(CAST({quote(column)} AS text)) <> '{done}' AND ({is_dead}) IS NOT TRUE LIMIT {COUNTED}) "
            "AS pending"
        )
        return (max(0.0, seconds) if pending else 0.0), pending

    def _by_watermark(self, evidence: DeliveryEvidence) -> Steps[float | None]:
        """Returns when the watermark was written: what was committed before it, and is not passed, is not counted."""
        beside = f"{quote(split_table(self._name)[0])}.tailrace_watermark"
        rows = yield Query(
            f"SELECT CAST(extract(epoch FROM max(at)) AS double precision) FROM {beside} "  # noqa: S608 - quoted
            f"WHERE pipeline = CAST({PARAMETER} AS text)",
            (evidence.pipeline,),
        )
        found: float | None = rows[0][0]
        return found

    def _newer(self, since: float, table: Table) -> Steps[int | None]:
        """Counts the rows since a time by their ids, which begin with the time; None if the ids are others."""
        column = self._columns.id
        if table[column].type != "uuid":
            return None
        bound = f"CAST(CAST({PARAMETER} AS text) AS uuid)"
        rows = yield Query(
            f"SELECT count(*) FROM (SELECT FROM {quote_table(self._name)} "  # noqa: S608 - quoted
            f"WHERE {quote(column)} >= {bound} AND {quote(column)} < {bound} LIMIT {COUNTED}) AS newer",
            # The upper bound leaves out nearly all random ids, such as those of version 4.
            (_first_id(since), _first_id(time.time() + DAY)),
        )
        return int(rows[0][0])


def _first_id(at: float) -> str:
    """Returns the lowest id of version 7 of a time."""
    milliseconds = int(at * 1000)
    return f"{milliseconds >> 16:08x}-{milliseconds & 0xFFFF:04x}-7000-8000-000000000000"


def mongo_pressure(name: str, layout: RowLayout, columns: ColumnMap, evidence: DeliveryEvidence) -> Steps[Pressure]:
    """Counts the documents that are not marked as published; without row marks nothing is known."""
    if evidence.marks != "rows" or layout.mark is None:
        return Pressure(None, None, None, None, "nothing in MongoDB shows what is published without row marks")
    column, done = layout.mark
    at = columns.timestamp or "created_at"
    waiting = {column: {"$nin": [done, DEAD.get(column)]}}
    pending, oldest = yield Count(name, waiting, at, COUNTED)
    seconds = 0.0 if oldest is None else max(0.0, time.time() - oldest)
    text = "all documents are marked" if not pending else f"{pending:,} documents are not marked as published"
    if pending and seconds > LATE_SECONDS:
        text += f", the oldest for {seconds:,.0f} s: the connector is not running, or is behind"
    return Pressure(None, None, seconds, pending, text)


def require_brake(state: BrakeState | None) -> BrakeState:
    if state is None:
        raise ConfigError(
            "this outbox has no brake",
            why="Producers are not slowed down unless it is asked for.",
            remedy="Give Outbox(brake=Brake(pending_events=5000)).",
        )
    return state
