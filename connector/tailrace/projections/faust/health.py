"""The states of an app's projections, as `/readyz` and `/metrics` show them. Health means progress (I10)."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tailrace.projections.faust.stall_detector import WARN_SHARE, slowest

if TYPE_CHECKING:
    from tailrace.projections.faust.app import ProjectionApp
    from tailrace.projections.projection import Projection

READY = ("RUNNING", "WAITING", "REBALANCING")


@dataclass(frozen=True, slots=True)
class ProjectionHealth:
    """The state of one projection in this worker; `what` and `remedy` if it is not ready.

    STARTING until its first partitions are read; RUNNING; WAITING while other workers have all partitions; REBALANCING
    while partitions are handed over; BLOCKED while a partition is retried after an error; STALLED if it has made no
    progress for half the time after which the worker ends; STOPPING after SIGTERM or an error.
    """

    projection: str
    state: str
    what: str = ""
    remedy: str = ""
    partitions: int = 0
    queued: int = 0
    stalled_seconds: float = 0.0
    lag: dict[str, int] = field(default_factory=dict)
    """By topic."""

    @property
    def is_ready(self) -> bool:
        return self.state in READY


def health(app: ProjectionApp) -> list[ProjectionHealth]:
    """Returns the states of all projections. To be called in the app's event loop, or while that is blocked."""
    return [_health(app, projection, time.monotonic()) for projection in app.projections]


def _health(app: ProjectionApp, projection: Projection, now: float) -> ProjectionHealth:
    name, maintenance, reader = projection.name, app.maintenance, app.reader
    if app.should_stop:
        return ProjectionHealth(name, "STOPPING", "the worker is stopping", "Start it again if it should run.")
    if maintenance is None or reader is None:
        return ProjectionHealth(
            name,
            "STARTING",
            "the worker has not started: it waits for Kafka, or for the projection's database",
            "Check that both can be reached; the worker's log names the error.",
        )
    unsettled_since = reader.unsettled_since
    unsettled = now - unsettled_since if unsettled_since is not None else 0.0
    missing, waited = maintenance.longest_wait(projection)
    worker, busy = slowest(projection.workers.values(), now)
    longest = max(unsettled, waited, busy)
    reached = reader.reached()  # also behind transaction markers, which have offsets, too
    lag = Counter(dict.fromkeys(projection.topics, 0))
    for partition, each in projection.workers.items():
        end = maintenance.ends.get(partition, 0)
        lag[partition.topic] += max(0, end - max(each.next, reached.get(partition, 0)))
    found = ProjectionHealth(
        name,
        "RUNNING" if projection.workers else "WAITING",
        partitions=len(projection.workers),
        queued=sum(each.queued for each in projection.workers.values()),
        stalled_seconds=longest,
        lag=dict(lag),
    )
    if longest > WARN_SHARE * projection.spec.settings.give_up:
        where = worker.partition if worker is not None and busy == longest else missing
        what = f"{where or 'the worker'} has made no progress for {longest:.0f} s"
        remedy = "Check the handler, locks in its database, and the brokers; the worker's log names the error."
        return replace(found, state="STALLED", what=what, remedy=remedy)
    if projection.blocked_partitions:
        where, kind = next(iter(projection.blocked_partitions.items()))
        what, remedy = f"{where} is retried after {kind}", "Check its database and its handler; the log has the error."
        return replace(found, state="BLOCKED", what=what, remedy=remedy)
    if unsettled_since is None:
        return found
    if projection.metrics.was_assigned:
        return replace(found, state="REBALANCING")
    what, remedy = "the worker has no partitions yet", "Wait; if that lasts, check the consumer group in Kafka."
    return replace(found, state="STARTING", what=what, remedy=remedy)
