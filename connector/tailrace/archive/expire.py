"""Expires old files of an archive: deletes their entries, oldest first, and then the files.

Without its entry a file is not part of the archive. So if it is killed in between, the manifest is complete without the
file, and the next run deletes what is left of it. The newest entry stays, because numbers continue from it. Files that
a started replay has yet to read stay, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field

from tailrace import failpoints
from tailrace.archive.manifest import FILES, ManifestEntry
from tailrace.archive.repository import ArchiveRepository
from tailrace.errors import ArchiveDamaged, ConfigError
from tailrace.kafka.client import KafkaOptions
from tailrace.positions.archive import ArchivePosition
from tailrace.positions.base import MALFORMED, from_stored
from tailrace.state import offsets

_number = re.compile(rf"{FILES}/(\d{{8}})-.*").fullmatch


@dataclass(slots=True)
class ExpiryReport:
    """`files` are expired, or would be; `leftovers` are files without an entry that an earlier run has left."""

    files: list[ManifestEntry] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(entry.rows for entry in self.files)


def replays_in_progress(kafka: KafkaOptions, archive: str) -> dict[str, int]:
    """Returns the first file that each unfinished replay of the archive must still have, by the id of its plan."""
    prefix = f"{kafka.pipeline}.replay-"
    found: dict[str, int] = {}
    for key, value in offsets.read_keys(kafka, None).items():
        name = key.decode(errors="replace")
        if not name.startswith(prefix):
            continue
        try:
            stored = from_stored(json.loads(value))
        except MALFORMED as error:
            raise ConfigError(
                f"the stored position of the replay {name.removeprefix(prefix)} cannot be parsed: {error!r}",
                why="A newer version of Tailrace or another program wrote it. It may read this archive.",
                remedy="Use that version. Nothing was changed.",
            ) from None
        # The position behind the last file of a plan counts no rows.
        if isinstance(stored, ArchivePosition) and stored.archive == archive and not (stored.row and not stored.rows):
            found[name.removeprefix(prefix)] = stored.file
    return found


def plan_expiry(
    repository: ArchiveRepository, before_ms: int, replays: dict[str, int], ignored: Collection[str] = ()
) -> ExpiryReport:
    """Returns the files whose rows were all created before `before_ms`, as far as no newer file is before them.

    `ignored` are replays that will not be continued.
    """
    report = ExpiryReport()
    for entry in repository.entries:
        if entry.created.last_ms >= before_ms:
            break
        if entry is repository.entries[-1]:
            report.notes.append(f"{entry.file} stays: it is the newest file, and numbers continue from it")
            break
        needed = [id_ for id_, first in replays.items() if first <= entry.number and id_ not in ignored]
        if needed:
            report.notes.append(
                f"{entry.file} and later files stay: the replay {needed[0]} has not read them yet. Finish it with "
                f"`tailrace replay apply`, or add --ignore-replay {needed[0]}"
            )
            break
        report.files.append(entry)
    if repository.entries:
        first = repository.entries[0].number
        numbered = [(_number(name), name) for name in repository.orphans]
        # A file that is being written now has a number beyond the last entry.
        report.leftovers = [name for match, name in numbered if match is not None and int(match[1]) < first]
    return report


def expire(repository: ArchiveRepository, report: ExpiryReport) -> None:
    """Deletes the files of the report. May be killed, and run twice at once."""
    for name in report.leftovers:
        _remove(repository, name)
    for entry in report.files:
        _remove(repository, entry.name)
        failpoints.reached(failpoints.EXPIRE_UNLISTED)
        _remove(repository, entry.file)


def _remove(repository: ArchiveRepository, name: str) -> None:
    try:
        repository.store.remove(name)
    except ArchiveDamaged:
        pass  # another run has deleted it
