"""The manifest of an archive: one numbered entry per file, written once and never changed. Pure.

Each entry is a separate object, and a number can be taken only once: the second of two writers fails and adds
nothing. A file without an entry is not part of the archive.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from tailrace.errors import ArchiveDamaged

FORMAT = 1
ENTRIES, FILES = "manifest", "rows"
"""The folders of a pipeline's archive."""
_entry_name = re.compile(rf"{ENTRIES}/(\d{{8}})\.json").fullmatch


class TimeRange(NamedTuple):
    """A time range in ms; both ends are included."""

    first_ms: int
    last_ms: int

    def meets(self, since_ms: int | None, until_ms: int | None) -> bool:
        """Returns whether the range overlaps the time from `since_ms` up to but not including `until_ms`."""
        return (since_ms is None or self.last_ms >= since_ms) and (until_ms is None or self.first_ms < until_ms)


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A complete file: what it contains, and how to verify it.

    `created` is by the time column of the outbox; `committed` is by the commit, where it was known. `first` and `last`
    are sort keys.
    """

    number: int
    file: str
    pipeline: str
    table: str
    rows: int
    bytes: int
    sha256: str
    created: TimeRange
    committed: TimeRange
    order_by: tuple[str, ...]
    first: tuple[str | None, ...]
    last: tuple[str | None, ...]
    columns: tuple[tuple[str, int], ...]
    written_ms: int

    @property
    def name(self) -> str:
        return entry_name(self.number)

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        fields["created"], fields["committed"] = self.created._asdict(), self.committed._asdict()
        fields = {"format": FORMAT, **fields}
        return {**fields, "digest": _digest(fields)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ManifestEntry:
        """Raises KeyError, TypeError or ValueError if it is not an entry."""
        if fields["format"] != FORMAT:
            raise ValueError(f"format {fields['format']} is not supported by this version")
        # Entries of the first archives have no digest.
        if "digest" in fields and fields["digest"] != _digest(
            {name: fields[name] for name in fields if name != "digest"}
        ):
            raise ValueError("it was edited: its digest does not match")
        return cls(
            number=int(fields["number"]),
            file=str(fields["file"]),
            pipeline=str(fields["pipeline"]),
            table=str(fields["table"]),
            rows=int(fields["rows"]),
            bytes=int(fields["bytes"]),
            sha256=str(fields["sha256"]),
            created=_span(fields["created"]),
            committed=_span(fields["committed"]),
            order_by=tuple(map(str, fields["order_by"])),
            first=_values(fields["first"]),
            last=_values(fields["last"]),
            columns=tuple((str(name), int(kind)) for name, kind in fields["columns"]),
            written_ms=int(fields["written_ms"]),
        )


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def entry_name(number: int) -> str:
    return f"{ENTRIES}/{number:08}.json"


def file_name(number: int, mark: str) -> str:
    """`mark` is unique, so that two writers never overwrite each other's file."""
    return f"{FILES}/{number:08}-{mark}.parquet"


def numbers(names: Iterable[str]) -> list[int]:
    """Returns the numbers of the entries among `names`, in order. The oldest may be deleted on purpose; a gap is a
    loss.
    """
    found = sorted(int(match[1]) for name in names if (match := _entry_name(name)))
    if found and found != list(range(found[0], found[0] + len(found))):
        missing = sorted(set(range(found[0], found[-1])) - set(found))
        raise ArchiveDamaged(
            f"the archive has no entry {missing[0]}, but has {found[-1]}",
            why=f"{entry_name(missing[0])} was deleted or moved, so its file is not known any more.",
            remedy="Restore it from a copy of the archive (versions of the bucket, a backup). Nothing was changed.",
        )
    return found


def orphans(entries: Sequence[ManifestEntry], names: Iterable[str]) -> list[str]:
    """Returns files without an entry: a writer was stopped before it listed them, or is working now."""
    listed = {entry.file for entry in entries}
    return sorted(name for name in names if name.startswith(f"{FILES}/") and name not in listed)


def _span(fields: dict[str, Any]) -> TimeRange:
    return TimeRange(int(fields["first_ms"]), int(fields["last_ms"]))


def _values(fields: Sequence[str | None]) -> tuple[str | None, ...]:
    return tuple(None if value is None else str(value) for value in fields)
