"""Takes over from a stopped Debezium: finds where its published events end, and stores that as the pipeline's position.

Debezium's offset may lie behind what it has published, and after a crash its last events need not be a prefix of the
log: partitions are written independently. So the log is read from where the slot begins (MongoDB: from the time of the
offset), and every row is looked up on its topic. The position is that behind the last published row. Rows before it
that are not on their topics are published in the Kafka transaction that stores the position: a kill leaves all of it or
nothing, and the command can be repeated.

Within a partition Debezium publishes in the order of the log. A missing row with a later published row of the same key
is therefore not what a crash leaves; it was deleted from the topic, or Debezium has skipped it. That is for a person to
decide.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator, Set
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Literal

from tailrace.debezium_import.offset import DebeziumOffset
from tailrace.debezium_import.outbox_log import LogRow, open_log
from tailrace.debezium_import.published_ids import SKEW_MS, PublishedIds, digest, record_time
from tailrace.errors import ConfigError, Rejected, TakeoverUncertain
from tailrace.event import OutboxEvent, Row
from tailrace.pipeline.batch import Batch
from tailrace.positions.base import Position
from tailrace.positions.mongo import TokenPosition
from tailrace.positions.postgres import LsnPosition
from tailrace.state.ownership import Ownership
from tailrace.state.stored_state import StoredState
from tailrace.wakeup import Wakeup
from tailrace.worker.wiring import Wiring

Holes = Literal["refuse", "publish", "skip"]
MOST_MISSING = 50_000
"""More than a producer can have had in flight: then something else is wrong. It also bounds the memory."""
EXAMPLES = 3


@dataclass(slots=True)
class Takeover:
    """What was found, and after `apply` what was done. `rows` counts the rows behind the start of the log."""

    position: Position
    rows: int = 0
    published: int = 0
    """Rows that Debezium has published."""
    ahead: int = 0
    """Of them, the rows that its offset does not cover."""
    missing: list[Row] = field(default_factory=list)
    """Rows before the position that are not on their topics; they are published with the position."""
    skipped: int = 0
    holes: list[str] = field(default_factory=list)
    """The ids of events that are missing although later events of their keys are published."""
    pending: int = 0
    """Rows behind the position, which the pipeline publishes when it is started."""


class TakeoverPlanner:
    """Reads log and topics; changes nothing."""

    def __init__(self, wiring: Wiring, offset: DebeziumOffset, *, timestamp: str | None = None) -> None:
        """`timestamp` is the column from which Debezium's router takes the timestamp of a record."""
        self._wiring = wiring
        self._offset = offset
        self._timestamp = timestamp
        self._processor = wiring.processor(with_rules=False)
        self._wakeup = Wakeup()

    def plan(self, ids: PublishedIds | None = None, *, holes: Holes = "refuse") -> tuple[Takeover, PublishedIds]:
        """Returns what a takeover would do, and the ids that it relies on, which the caller closes."""
        if ids is None:
            # Before the log is read: a server ends the stream of a client that waits for Kafka, and the transaction of
            # a killed Debezium may keep Kafka waiting for a minute.
            earliest, topics = self._look_ahead()
            ids = PublishedIds(self._wiring.kafka, earliest)
        else:
            topics = frozenset()
        try:
            ids.read(topics)
            found, last = self._find_last(ids)
            self._find_missing(found, last, ids, holes)
        except BaseException:
            ids.__exit__()
            raise
        return found, ids

    def _look_ahead(self) -> tuple[int | None, Set[str]]:
        """Returns the earliest time of a record to look for, None if it is not known; and the topics to look on."""
        earliest: int | None = time.time_ns() // 1_000_000 - SKEW_MS
        topics: set[str] = set()
        with closing(self._each()) as rows:
            for each in rows:
                event = None if each.covered else self._event(each.row)
                if event is None:
                    continue
                if (topic := self._topic(event)) is not None:
                    topics.add(topic)
                at_ms = record_time(event, self._timestamp)
                earliest = None if earliest is None or at_ms is None else min(earliest, at_ms)
        return earliest, topics

    def _find_last(self, ids: PublishedIds) -> tuple[Takeover, int]:
        """Finds the last published row; returns its number, 0 if there is none."""
        position: Position | None = None
        oldest: int | None = None
        published = ahead = number = last = 0
        with closing(self._each()) as rows:
            for number, each in enumerate(rows, 1):
                on_topic = not each.covered and self._is_published(each.row, ids)
                if each.covered or on_topic:
                    last, position, oldest = number, each.position, None
                    published += 1
                    ahead += on_topic
                else:
                    oldest = each.age if oldest is None else min(oldest, each.age)
        stored = _with_begun(position or self._log.start, self._log.begun(oldest))
        return Takeover(stored, number, published, ahead, pending=number - last), last

    def _find_missing(self, found: Takeover, last: int, ids: PublishedIds, holes: Holes) -> None:
        if found.published == last:
            return  # everything up to the last published row is published
        missing: list[tuple[Row, tuple[str, bytes] | None, str]] = []
        holed: set[tuple[str, bytes]] = set()
        keys: set[tuple[str, bytes] | None] = set()
        with closing(self._each()) as rows:
            for number, each in enumerate(rows, 1):
                event = self._event(each.row)
                key = None if event is None else self._key(event)
                if each.covered or self._is_published(each.row, ids):
                    if key is not None and key in keys:
                        holed.add(key)
                else:
                    missing.append((each.row, key, event.id if event else each.row.position))
                    keys.add(key)
                    if len(missing) > MOST_MISSING:
                        raise _uncertain(f"more than {MOST_MISSING:,}", [name for _, _, name in missing])
                if number == last:
                    break
        found.holes = [name for _, key, name in missing if key in holed]
        if found.holes and holes == "refuse":
            raise _uncertain(f"{len(found.holes):,}", found.holes)
        kept = [row for row, key, _ in missing if holes != "skip" or key not in holed]
        found.skipped = len(missing) - len(kept)
        found.missing = kept

    def _each(self) -> Generator[LogRow, None, None]:
        self._log = log = open_log(self._wiring, self._offset, self._wakeup)
        try:
            yield from log.rows()
        finally:
            log.close()

    def _event(self, row: Row) -> OutboxEvent | None:
        try:
            return self._processor.layout.read(row)
        except Rejected:
            return None

    def _key(self, event: OutboxEvent) -> tuple[str, bytes] | None:
        """Returns topic and key of an event, which decide its partition; None without a key."""
        topic = self._topic(event)
        return None if topic is None or event.key is None else (topic, digest(event.key))

    def _topic(self, event: OutboxEvent) -> str | None:
        try:
            return self._wiring.route(event).topic
        except Rejected:
            return None

    def _is_published(self, row: Row, ids: PublishedIds) -> bool:
        event = self._event(row)
        topic = None if event is None else self._topic(event)
        return event is not None and topic is not None and ids.contains(topic, event.id, event.key)


def take_over(
    planner: TakeoverPlanner, wiring: Wiring, require_stopped: Callable[[], None], *, holes: Holes = "refuse"
) -> Takeover:
    """Plans a takeover and stores its position; raises, with nothing changed, if Debezium may still publish.

    `require_stopped` raises if Debezium runs; it is called before Kafka is read, and again before the commit.
    """
    # Always in a transaction: the missing events and the position belong together.
    wiring = replace(wiring, kafka=replace(wiring.kafka, exactly_once=True))
    require_stopped()
    found, ids = planner.plan(holes=holes)
    with ids:
        admin = wiring.admin()
        wiring.ensure_offsets(admin)
        ownership = Ownership(wiring.kafka, uuid.uuid4().hex)
        ownership.take()
        publisher = wiring.publisher(admin, Wakeup(), lambda *_: None, stored=StoredState(wiring.kafka))
        try:
            _require_new(publisher.open(), wiring)
            # Requests that Debezium had sent when it ended may have arrived since.
            if ids.refresh():
                found, _ = planner.plan(ids, holes=holes)
            batch = Batch(found.position)
            wiring.processor().process(found.missing, batch)
            require_stopped()
            publisher.submit(batch)
            while not publisher.wait(1.0):
                pass
        finally:
            publisher.close()
            ownership.release()
    return found


def _with_begun(position: Position, begun: str) -> Position:
    assert isinstance(position, LsnPosition | TokenPosition)  # noqa: S101 - of a database's log
    return replace(position, begun=begun)


def _require_new(stored: Position | None, wiring: Wiring) -> None:
    if stored is not None:
        raise ConfigError(
            f"the pipeline {wiring.settings.pipeline} has a stored position already: {stored}",
            why="It has taken over before, or was started: it knows itself where to continue.",
            remedy=f"Start it with `tailrace run`. To import a second connector, give it another name (--name). "
            f"Nothing was changed on {wiring.kafka.offsets_topic}.",
        )


def _uncertain(count: str, names: list[str]) -> TakeoverUncertain:
    return TakeoverUncertain(
        f"{count} events are not on their topics, although Debezium has published later ones "
        f"({', '.join(names[:EXAMPLES])})",
        why="A crash leaves no such holes: within a partition Debezium publishes in order. Debezium has skipped them "
        "(errors.tolerance, a filter), they were deleted from the topics (retention, compaction), or the pipeline "
        "routes them to other topics or keys than Debezium.",
        remedy="Compare one of them with `tailrace route`, and correct the pipeline's file if its topic or key "
        "differs. Otherwise decide: --holes publish publishes them now, behind later events of their keys; --holes "
        "skip leaves them out. Nothing was changed.",
    )
