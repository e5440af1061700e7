"""Positions in an archive: a file and a row in it.

Files are numbered in the order in which they were listed, and never change, so a killed replay can resume at its
position.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SOURCE = "archive"
NO_POSITION = "table"
"""Prefix of the position of a row, in a table or an archive, whose position in the log is not known."""


@dataclass(frozen=True, slots=True)
class ArchivePosition:
    """Behind row `row` of file `file` in the archive named `archive`; `rows` counts the rows read so far."""

    archive: str
    file: int = 0
    row: int = 0
    rows: int = 0
    at_ms: int = 0

    def __str__(self) -> str:
        if not self.row:
            return f"the beginning of file {max(1, self.file):,} of the archive"
        return f"row {self.row:,} of file {self.file:,} of the archive"

    @property
    def progress(self) -> tuple[int, int, int]:
        return (0, self.file, self.row)

    def is_alike(self, other: object) -> bool:
        return isinstance(other, ArchivePosition) and self.archive == other.archive

    def covers(self, row_position: str) -> bool:
        """Positions of rows belong to the log, not to the archive: all rows count as covered, except at the start."""
        return self.row > 0

    def to_json(self) -> dict[str, Any]:
        return {"source": SOURCE, **asdict(self)}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> ArchivePosition:
        """Parses the stored form; raises ValueError, KeyError or TypeError if it is invalid."""
        numbers = (int(stored[name]) for name in ("file", "row", "rows", "at_ms"))
        return cls(str(stored["archive"]), *numbers)
