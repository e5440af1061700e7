"""Rewinds a stopped pipeline to an earlier position, from which it streams when it is started again.

Position and rewind marker are written in one Kafka transaction under the pipeline's transactional id, so any running
instance is fenced, and a kill leaves both or neither. A position is never moved forward, because events would be
skipped.
"""

from __future__ import annotations

import getpass
import os
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
from tailrace.state.stored_state import StoredState
from tailrace.wakeup import Wakeup
from tailrace.worker.wiring import Wiring

STOPPED = (NOT_RUNNING, "STOPPED", "FAILED")
SILENT_SECONDS = 300.0
"""After this time without a sign, an instance that announced RETRYING counts as killed; if it runs, it is fenced."""


@dataclass(frozen=True, slots=True)
class Reset:
    """The result: everything between `to` and `until` is published again under the id of the rewind."""

    id: str
    before: Position
    to: Position
    until: Position


def require_stopped(wiring: Wiring) -> None:
    """Refuses a pipeline that is or may be running."""
    health = read_health(wiring.settings)
    if health.state == NEVER_STARTED:
        raise ConfigError(
            f"the pipeline {health.pipeline} has no stored position: it was never started",
            remedy="Start it; `source.start` sets where it begins.",
        )
    # A retrying instance announces each attempt, at least once a minute.
    last_ms = int(health.announced.get("at_ms", 0))
    silent = health.state == "RETRYING" and time.time() - last_ms / 1000 > SILENT_SECONDS
    if health.state not in STOPPED and not silent:
        raise ConfigError(
            f"the pipeline {health.pipeline} is {health.state}{f': {health.detail}' if health.detail else ''}",
            why="A position can be moved back only while no instance moves it forward.",
            remedy="Stop it first. If the process is gone, wait until the database has noticed.",
        )


def require_unparked(wiring: Wiring) -> None:
    """Refuses parked keys: their waiting events would be joined by the same events again."""
    keys = requests.parking_state(wiring.kafka, final=True).keys
    if keys:
        raise ConfigError(
            f"{len(keys)} keys are parked",
            why="Their events are waiting already, and would be added once more.",
            remedy="Redrive or discard the first event of each (`tailrace dlq parked`), then try again.",
        )


def reset(wiring: Wiring, log: SourceLog, to: Position, *, id_: str = "", note: Record | None = None) -> Reset:
    """Rewinds the pipeline to `to`; raises, with nothing changed, if it runs, has moved, or cannot start there.

    `note` is a record that is written in the same transaction.
    """
    require_stopped(wiring)
    to = log.validated(to)
    # Always in a transaction: half of it would leave a range that is marked wrongly or not at all.
    wiring = replace(wiring, kafka=replace(wiring.kafka, exactly_once=True))
    admin = wiring.admin()
    ownership = Ownership(wiring.kafka, uuid.uuid4().hex)
    ownership.take()
    state = StoredState(wiring.kafka)
    publisher = wiring.publisher(admin, Wakeup(), lambda *_: None, stored=state)
    try:
        before = publisher.open()
        if before is None:
            raise ConfigError(
                "the pipeline has no stored position", remedy="Start it; `source.start` sets where it begins."
            )
        _require_back(before, to)
        require_unparked(wiring)
        # The rest of an earlier rewind is published again as well.
        earlier = state.rewind
        until = before
        if earlier is not None and earlier.until.is_alike(before) and earlier.until.progress > before.progress:
            until = earlier.until
        now = time.time_ns() // 1_000_000
        rewind = Rewind(id_ or uuid.uuid4().hex[:12], to, until, now, _user())
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


def _user() -> str:
    """The user's name, or its number: in a container it may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _require_back(before: Position, to: Position) -> None:
    if to.progress > before.progress:
        raise ConfigError(
            f"{describe_position(to)} is ahead of the stored position, {describe_position(before)}",
            why="Everything in between would be skipped and never published.",
            remedy="Give an earlier point. Events that cannot be published are dead-lettered automatically: see "
            "`tailrace dlq`.",
        )
