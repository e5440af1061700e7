"""How far a partition was read since it was assigned. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReadProgress:
    """`delivered` is the offset after the last delivered record; `passed` is the offset up to which the log was read.

    The log between them holds only transaction markers, aborted records and the holes of compaction.
    """

    start: int
    delivered: int
    passed: int

    def deliver(self, offset: int) -> None:
        """Counts a record as delivered."""
        self.delivered = offset + 1
        self.passed = max(self.passed, self.delivered)

    def committable(self, applied: int | None) -> int:
        """Returns the offset to commit to Kafka: `passed` if all delivered records are applied, else `applied`."""
        done = max(self.start, self.start if applied is None else applied)
        return max(done, self.passed) if done >= self.delivered else done
