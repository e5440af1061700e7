"""A place in an archive: behind which row of which of its files.

Files are numbered in the order in which they were listed, and never change: so a place means the same for ever, and a
replay that was killed goes on there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SOURCE = "archive"


@dataclass(frozen=True, slots=True)
class ArchivePosition:
    """`archive` says whose it is; before a file's first row, `row` is 0. `rows` counts those read so far."""

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

    def covers(self, place: str) -> bool:
        """A row's place is that of the log, which tells nothing here: all are behind the beginning."""
        return self.row > 0

    def to_json(self) -> dict[str, Any]:
        return {"source": SOURCE, **asdict(self)}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> ArchivePosition:
        """Reads the stored form; ValueError, KeyError or TypeError if it is not one."""
        numbers = (int(stored[name]) for name in ("file", "row", "rows", "at_ms"))
        return cls(str(stored["archive"]), *numbers)
