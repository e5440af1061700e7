"""Reads the position and the rewind marker that a pipeline has stored, and checks that they still exist.

A replication slot remembers its pipeline; a MongoDB change stream does not. If the offsets topic were lost, a start
would look like a first one and skip everything since. But the dead-letter topic is created at the first start, after
ownership was taken, and shows that the pipeline has run. A status record does not: a start that fails here writes one.
"""

from __future__ import annotations

from tailrace.errors import PositionForgotten
from tailrace.event import Record
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.topics import absent, partition_counts
from tailrace.positions.base import Position
from tailrace.state import offsets, rewind_marker
from tailrace.state.owner_watch import OWNER_SUFFIX
from tailrace.state.rewind_marker import Rewind


class StoredState:
    """Reads both at once, and makes the record that stores a position. A `kafka.publisher.PositionStore`."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self.rewind: Rewind | None = None
        """The last rewind, once `read` was called."""

    def read(self) -> Position | None:
        keys = self._options.pipeline.encode(), rewind_marker.key(self._options)
        position, rewind = map(offsets.read_keys(self._options, set(keys)).get, keys)
        self.rewind = None if rewind is None else rewind_marker.parse(self._options, rewind)
        return None if position is None else offsets.parse(self._options, position)

    def record(self, position: Position) -> Record:
        return offsets.record(self._options, position)


def require_position_known(options: KafkaOptions, admin: offsets.Admin) -> None:
    """Raises PositionForgotten if the pipeline has a dead-letter topic, but nothing on the offsets topic."""
    existing = partition_counts(admin)
    if options.dead_letter_topic not in existing:
        return
    ours = {options.pipeline.encode(), (options.pipeline + OWNER_SUFFIX).encode()}
    if options.offsets_topic in existing and offsets.read_keys(options, ours, committed=False):
        return
    raise _forgotten(options)


def require_stored(options: KafkaOptions, admin: offsets.Admin) -> None:
    """Raises PositionForgotten if the position that this process has stored is gone, with its topic."""
    key = options.pipeline.encode()
    if absent(admin, [options.offsets_topic]) or not offsets.read_keys(options, {key}, committed=False):
        raise _forgotten(options)


def _forgotten(options: KafkaOptions) -> PositionForgotten:
    return PositionForgotten(
        f"the pipeline has a dead-letter topic, {options.dead_letter_topic}, but nothing on {options.offsets_topic}",
        why="It has run before, and the offsets topic was deleted or changed. Its position is not known.",
        remedy="Check kafka.offsets_topic and pipeline. If the position is lost, `tailrace recover plan FILE` compares "
        "the outbox with the topics. If this is its first start, start once with --adopt: it begins as source.start "
        "says, and published events may be published again or skipped.",
    )
