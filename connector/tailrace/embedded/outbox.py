"""The embedded outbox: a key and raw bytes per entry, on disk before the service goes on.

Entries are drained in the order of their sequence numbers. An entry whose acceptance has not ended yet (`strict`) is
in flight: it is on disk, and not drained. Which entries are in flight is known in memory only: after a crash, what is
in the outbox counts as captured.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container, Iterable
from os import PathLike
from pathlib import Path

from tailrace.embedded.batch import OutboxBatch
from tailrace.embedded.database import OutboxDatabase
from tailrace.embedded.records import Entry

LOGGER = logging.getLogger("tailrace.embedded")
READ_BYTES = 8 * 1024 * 1024
"""One read returns no more than about so much."""
_REMOVED_AT_ONCE = 1000


class EmbeddedOutbox:
    """An outbox in a folder. It can be opened once, by one process; all methods may be called from any thread."""

    def __init__(self, path: str | PathLike[str], *, enabled: bool = True, strict: bool = True) -> None:
        """Opens the folder, or creates it. `strict`: if a write fails, nothing is accepted (`acceptance.strict`).

        If it is not `enabled`, nothing is opened and nothing is captured.
        """
        self.path = Path(path)
        self.strict = strict
        self.write_errors = 0
        """Writes that have failed since the start."""
        self._database = OutboxDatabase(self.path) if enabled else None
        self._in_flight: dict[int, bool] = {}
        """Entries in flight; whether their key has other entries."""
        self._mutex = threading.Lock()
        """Held while an acceptance ends, and while a batch looks at acceptances. Nothing is written meanwhile."""
        self._rejected: dict[int, bytes] = {}
        """Entries that were rejected and could not be deleted yet, with their keys."""
        self._observers: list[Callable[[], None]] = []

    @property
    def enabled(self) -> bool:
        return self._database is not None

    @property
    def identity(self) -> str:
        """A random name that was given to the folder when it was created."""
        return self._opened.identity

    def epoch(self, sequence: int) -> str:
        """Returns a random name of the opening that gave this number; empty if all up to it was drained before that."""
        return self._opened.epochs.at(sequence)

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last write; 0 before the first."""
        return self._opened.state.last

    @property
    def count(self) -> int:
        """The number of entries, with those in flight. It is stored: nothing is counted."""
        return self._database.state.entries if self._database is not None else 0

    @property
    def in_flight(self) -> int:
        """The number of entries whose acceptance has not ended."""
        return len(self._in_flight)

    def write(self, key: str | bytes, raw: bytes) -> int:
        """Adds an entry; returns its sequence number when it is on disk. It replaces an earlier entry of this key."""
        name, value = _bytes(key), bytes(memoryview(raw))

        def change(batch: OutboxBatch) -> int:
            with self._mutex:
                ready = self._ready(batch, name)
                self._note_another(batch, name)
            self._remove(batch, dict.fromkeys(ready, name))
            return batch.add(name, value)

        sequence = self._write(change)
        self._notify()
        return sequence

    def begin(self, key: str | bytes, raw: bytes) -> int:
        """Adds an entry that is in flight until `accepted` or `rejected` is called. An earlier one of its key stays."""
        name, value = _bytes(key), bytes(memoryview(raw))

        def change(batch: OutboxBatch) -> int:
            with self._mutex:
                has_others = self._note_another(batch, name)
                sequence = batch.add(name, value)
                # Before the batch is written: no reader may see the entry first.
                self._in_flight[sequence] = has_others
            given.append(sequence)
            if failed.is_set():
                give_up()
            return sequence

        def give_up() -> None:
            """Rejects what may be on disk all the same: it is not drained, and deleted with the next write."""
            for number in given:
                self._rejected[number] = name
                self._end_acceptance(number)

        given: list[int] = []
        failed = threading.Event()
        try:
            return self._write(change)
        except BaseException:
            # After an interrupt, another thread may write the entry only now.
            failed.set()
            give_up()
            raise

    def accepted(self, key: str | bytes, sequence: int) -> None:
        """Ends an entry's acceptance: it is drained from now on, and replaces earlier accepted ones of its key."""
        if self._end_acceptance(sequence):
            name = _bytes(key)

            def keep_newest(batch: OutboxBatch) -> None:
                for older in self._ready(batch, name)[:-1]:
                    batch.remove(name, older)

            try:
                self._opened.change(keep_newest, sync=False)
            except Exception as error:  # noqa: BLE001 - it is accepted: both entries are drained
                LOGGER.warning("an older entry of %s is not replaced: %s", self.path, error)
        self._notify()

    def rejected(self, key: str | bytes, sequence: int) -> None:
        """Ends an entry's acceptance: it is deleted. If that fails, the next write deletes it, and it is not drained.

        If the process dies before that write, the next start takes it for captured.
        """
        self._rejected[sequence] = _bytes(key)
        self._end_acceptance(sequence)
        rejected = dict(self._rejected)
        try:
            self._opened.change(lambda batch: self._remove(batch, rejected))
            self._forget(rejected)
        except Exception as error:  # noqa: BLE001 - the service's own error is raised
            LOGGER.warning(
                "a rejected entry of %s could not be deleted, and is deleted with the next write: %s", self.path, error
            )
        self._notify()  # readers may wait for it

    def delete(self, key: str | bytes) -> bool:
        """Deletes what is stored under a key, except what is in flight; returns whether there was anything."""
        name = _bytes(key)

        def change(batch: OutboxBatch) -> bool:
            found = self._ready(batch, name)
            self._remove(batch, dict.fromkeys(found, name))
            return bool(found)

        return bool(self._opened.change(change))

    def read(
        self,
        limit: int = 100,
        *,
        after: int = 0,
        ordered: bool = False,
        limit_bytes: int = READ_BYTES,
        without: Container[int] = (),
    ) -> list[Entry]:
        """Returns up to `limit` entries with larger sequence numbers than `after`, oldest first.

        Entries in flight are left out; with `ordered`, also all behind the first of them. `without` are sequence
        numbers to leave out.
        """
        database, found, size = self._opened, [], 0
        with database.reading:
            for entry in database.entries(after):
                if entry.sequence in self._in_flight:
                    if ordered:
                        break
                elif entry.sequence not in self._rejected and entry.sequence not in without:
                    found.append(entry)
                    size += entry.size
                if len(found) >= limit or size >= limit_bytes:
                    break
        return found

    def remove(self, entries: Iterable[Entry]) -> None:
        """Deletes entries that were drained. After a power cut, some may be back."""
        removed = [(entry.key, entry.sequence) for entry in entries]

        def change(batch: OutboxBatch) -> None:
            for key, sequence in removed:
                batch.remove(key, sequence)

        self._opened.change(change, sync=False)

    def remove_through(self, sequence: int) -> int:
        """Deletes all drained entries up to a sequence number; returns how many. Those in flight stay."""
        removed = 0
        while True:
            found = [each for each in self.read(_REMOVED_AT_ONCE, ordered=True) if each.sequence <= sequence]
            if not found:
                return removed
            self.remove(found)
            removed += len(found)

    def subscribe(self, observer: Callable[[], None]) -> None:
        """`observer` is called after each entry that can be drained, in the writing thread. It must return at once."""
        self._observers.append(observer)

    def unsubscribe(self, observer: Callable[[], None]) -> None:
        self._observers.remove(observer)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    def __enter__(self) -> EmbeddedOutbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _opened(self) -> OutboxDatabase:
        if self._database is None:
            raise RuntimeError("the outbox is not enabled")
        return self._database

    def _write(self, change: Callable[[OutboxBatch], int]) -> int:
        rejected = dict(self._rejected)

        def all_changes(batch: OutboxBatch) -> int:
            self._remove(batch, rejected)
            return change(batch)

        try:
            sequence: int = self._opened.change(all_changes)
        except BaseException:
            self.write_errors += 1
            raise
        self._forget(rejected)
        return sequence

    @staticmethod
    def _remove(batch: OutboxBatch, entries: dict[int, bytes]) -> None:
        for sequence, key in entries.items():
            batch.remove(key, sequence)

    def _end_acceptance(self, sequence: int) -> bool:
        """Notes that an entry is no longer in flight; returns whether its key has other entries."""
        with self._mutex:
            return self._in_flight.pop(sequence, False)

    def _note_another(self, batch: OutboxBatch, key: bytes) -> bool:
        """Notes for a key's entries in flight that there will be another; returns whether the key has any entry."""
        others = batch.sequences(key)
        for other in others:
            if other in self._in_flight:
                self._in_flight[other] = True
        return bool(others)

    def _forget(self, deleted: Iterable[int]) -> None:
        for sequence in deleted:
            self._rejected.pop(sequence, None)

    def _ready(self, batch: OutboxBatch, key: bytes) -> list[int]:
        """Returns the entries of a key that are neither in flight nor rejected, oldest first."""
        return [each for each in batch.sequences(key) if each not in self._in_flight and each not in self._rejected]

    def _notify(self) -> None:
        for observer in self._observers:
            observer()


def _bytes(given: str | bytes) -> bytes:
    """Raises TypeError for what is no text and no bytes."""
    return given.encode() if isinstance(given, str) else bytes(memoryview(given))
