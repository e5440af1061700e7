"""What a pipeline stored on the offsets topic with its last transaction: its position and its rewind marker."""

from __future__ import annotations

from tailrace.event import Record
from tailrace.kafka.client import KafkaOptions
from tailrace.positions.base import Position
from tailrace.state import offsets, rewind_marker
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
