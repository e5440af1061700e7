"""A stopped pipeline set back to an earlier position: it streams forward from there when it is started again.

Position and rewind are written in one Kafka transaction, under the pipeline's own transactional id: whatever instance
may still be alive is fenced by then, and a kill leaves either both or neither. Nothing is set forward: that would pass
over events.
"""

from __future__ import annotations

import getpass
import time
import uuid
from dataclasses import dataclass, replace

from tailrace.check.health import NEVER_STARTED, NOT_RUNNING, read_health
from tailrace.dlq import requests
from tailrace.errors import ConfigError
from tailrace.event import Record
from tailrace.pipeline.batch import Batch
from tailrace.positions.base import Position
from tailrace.replay.source_log import SourceLog, describe_position
from tailrace.state import rewind_marker
from tailrace.state.ownership import Ownership
from tailrace.state.rewind_marker import Rewind
from tailrace.wakeup import Wakeup
from tailrace.worker.wiring import Wiring

STOPPED = (NOT_RUNNING, "STOPPED", "FAILED")
SILENT_SECONDS = 300.0
"""After which one that announced RETRYING is taken for killed; if it is not, it is fenced and ends."""


@dataclass(frozen=True, slots=True)
class Reset:
    """What was done: everything between `to` and `until` is published once more, under the rewind's id."""

    id: str
    before: Position
    to: Position
    until: Position


def require_stopped(wiring: Wiring) -> None:
    """Refuses a pipeline that runs, or may."""
    health = read_health(wiring.settings)
    if health.state == NEVER_STARTED:
        raise ConfigError(
            f"the pipeline {health.pipeline} has no stored position: it was never started",
            remedy="Start it; `source.start` says from where.",
        )
    # One that tries again says so at each attempt, which are a minute apart at most.
    last_ms = int(health.announced.get("at_ms", 0))
    silent = health.state == "RETRYING" and time.time() - last_ms / 1000 > SILENT_SECONDS
    if health.state not in STOPPED and not silent:
        raise ConfigError(
            f"the pipeline {health.pipeline} is {health.state}{f': {health.detail}' if health.detail else ''}",
            why="A position is set back while nobody moves it forward.",
            remedy="Stop it first. If it is known to be gone, wait until the database has noticed.",
        )


def require_unparked(wiring: Wiring) -> None:
    """What waits would be joined by itself: the same events, once more."""
    keys = requests.board(wiring.kafka, final=True).keys
    if keys:
        raise ConfigError(
            f"{len(keys)} keys are parked",
            why="Their events wait already, and would be added to those once more.",
            remedy="Redrive or discard what is in front of each (`tailrace dlq parked`), then come again.",
        )


def reset(wiring: Wiring, log: SourceLog, to: Position, *, id_: str = "", note: Record | None = None) -> Reset:
    """Sets it back; raises, with nothing changed, if it runs, was moved meanwhile, or cannot start at `to`.

    `note` is a record that is written in the same transaction.
    """
    require_stopped(wiring)
    to = log.renewed(to)
    # In a transaction, however the pipeline delivers: half of it would be a stretch that is not marked, or wrongly so.
    wiring = replace(wiring, kafka=replace(wiring.kafka, exactly_once=True))
    admin = wiring.admin()
    ownership = Ownership(wiring.kafka, uuid.uuid4().hex)
    ownership.take()
    publisher = wiring.publisher(admin, Wakeup(), lambda *_: None)
    try:
        before = publisher.open()
        if before is None:
            raise ConfigError("the pipeline has no stored position", remedy="Start it; `source.start` says from where.")
        _require_back(before, to)
        require_unparked(wiring)
        # What is still to come again from an earlier rewind comes again all the same.
        earlier = publisher.rewind
        until = before
        if earlier is not None and earlier.until.is_alike(before) and earlier.until.progress > before.progress:
            until = earlier.until
        now = time.time_ns() // 1_000_000
        rewind = Rewind(id_ or uuid.uuid4().hex[:12], to, until, now, getpass.getuser())
        batch = Batch(to)
        batch.add(rewind_marker.record(wiring.kafka, rewind))
        if note is not None:
            batch.add(note)
        publisher.submit(batch)
        while not publisher.wait(1.0):
            pass
    finally:
        publisher.close()
        ownership.release()
    return Reset(rewind.id, before, to, until)


def _require_back(before: Position, to: Position) -> None:
    if to.progress > before.progress:
        raise ConfigError(
            f"{describe_position(to)} lies ahead of the stored position, {describe_position(before)}",
            why="Everything in between would be passed over, and never be published.",
            remedy="Name an earlier point. Events that cannot be published are set aside by themselves: see "
            "`tailrace dlq`.",
        )
