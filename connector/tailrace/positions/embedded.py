"""Positions in an embedded outbox: the sequence number of its last published entry."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SOURCE = "embedded"


@dataclass(frozen=True, slots=True)
class EmbeddedPosition:
    """Behind entry `sequence` of the outbox with this identity, a random name that it got when it was created.

    `epoch` is a random name of the opening that wrote the entry; an older copy of the folder has another one there.
    """

    outbox: str
    sequence: int
    at_ms: int = 0
    epoch: str = ""

    def __str__(self) -> str:
        if not self.sequence:
            return f"the beginning of the embedded outbox {self.outbox[:8]}"
        return f"entry {self.sequence:,} of the embedded outbox {self.outbox[:8]}"

    @property
    def progress(self) -> tuple[int, int, int]:
        return (0, self.sequence, 0)

    def is_alike(self, other: object) -> bool:
        return isinstance(other, EmbeddedPosition) and self.outbox == other.outbox

    def covers(self, row_position: str) -> bool:
        """The position of a row is its sequence number."""
        return row_position.isdecimal() and int(row_position) <= self.sequence

    def to_json(self) -> dict[str, Any]:
        return {"source": SOURCE, **asdict(self)}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> EmbeddedPosition:
        """Parses the stored form; raises ValueError, KeyError or TypeError if it is invalid."""
        return cls(str(stored["outbox"]), int(stored["sequence"]), int(stored["at_ms"]), str(stored["epoch"]))
