"""One open RocksDB folder: column families, and commits that survive a crash.

RocksDB allows one process to open a folder. All stores of a process that name the same folder share it. A transaction
remembers what it has read, and commits only if nobody has changed that meanwhile: otherwise it is retried.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rocksdict import Rdict, WriteBatch, WriteOptions

from tailrace.errors import ConfigError, StoreFailed, StoreInUse
from tailrace.rocksdb_folder import FolderUse, create_family, open_folder

T = TypeVar("T")
KIT = "tailrace"
"""The column family of the store's own records."""
USE = FolderUse(
    own=KIT,
    kind="a RocksDB store",
    lost="the projection reads its topics from their beginning",
    one_user="Run one worker for this projection, and stop it before other commands that open its store.",
)
Place = tuple[str, bytes]
"""A column family and a key."""
Changes = Mapping[Place, bytes | None]
"""New values by place; None deletes."""


class TransactionConflict(Exception):
    """Another transaction has changed what this one has read. A retry succeeds."""


class ReadSet:
    """What a transaction has read, from its first read on."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.places: set[Place] = set()
        self.prefixes: set[Place] = set()

    def meets(self, changed: Collection[Place]) -> bool:
        if not self.places.isdisjoint(changed):
            return True
        return any(
            family == other and key.startswith(prefix) for family, prefix in self.prefixes for other, key in changed
        )


class RocksDatabase:
    """See the module's docstring. It is used by one thread."""

    _opened: dict[Path, RocksDatabase] = {}  # noqa: RUF012 - of the process: a folder can be opened once

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = threading.get_ident()
        self._users = 0
        self._failed: StoreFailed | None = None
        self._sequence = 0
        self._commits: deque[tuple[int, frozenset[Place]]] = deque()
        self._reading: set[ReadSet] = set()
        self._locks: dict[object, asyncio.Lock] = {}
        self._sync = WriteOptions()
        self._sync.sync = True
        self._root: Rdict | None = None
        self._root, self._families = open_folder(path, USE)

    @classmethod
    def join(cls, path: Path, families: Iterable[str]) -> RocksDatabase:
        """Opens the folder, or shares it if this process has opened it already. Creates missing families."""
        path = path.resolve()
        database = cls._opened.get(path)
        if database is None:
            database = cls._opened[path] = cls(path)
        elif database._thread != threading.get_ident():
            raise StoreInUse(
                f"the RocksDB folder {path} is in use",
                why="Another thread of this process has opened it.",
                remedy="Open all stores of a folder in one thread.",
            )
        database._users += 1
        try:
            for name in families:
                if name not in database._families:
                    created = database._run(create_family, database._opened_root, name)
                    database._families[name] = created
        except BaseException:
            database.leave()
            raise
        return database

    def leave(self) -> None:
        """Closes the folder when its last user has left."""
        self._users -= 1
        if self._users == 0:
            del self._opened[self._path]
            families, self._families = self._families, {}
            root, self._root = self._root, None
            failure: Exception | None = None
            for opened in (*families.values(), root):
                try:
                    if opened is not None:
                        opened.close()
                except Exception as error:  # noqa: BLE001 - it is closed without its last flush
                    failure = error
            if failure is not None and self._failed is None:
                raise self._error(str(failure)) from failure

    def lock(self, name: object) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    def begin(self) -> ReadSet:
        reads = ReadSet(self._sequence)
        self._reading.add(reads)
        return reads

    def end(self, reads: ReadSet) -> None:
        self._reading.discard(reads)
        oldest = min((each.start for each in self._reading), default=self._sequence)
        while self._commits and self._commits[0][0] <= oldest:
            self._commits.popleft()

    def is_stale(self, reads: ReadSet) -> bool:
        """Whether a transaction that began later has changed something of what was read."""
        return any(number > reads.start and reads.meets(changed) for number, changed in self._commits)

    def get(self, family: str, key: bytes) -> bytes | None:
        value: bytes | None = self._run(self._family(family).get, key)
        return value

    def items(self, family: str, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values from `start` on, in the order of the keys, as they are now."""
        found = self._family(family).iter()
        self._run(found.seek, start)
        while found.valid():
            yield found.key(), found.value()
            self._run(found.next)
        self._run(found.status)  # a damaged file ends the iteration, too

    def commit(self, changes: Changes, reads: ReadSet) -> None:
        """Writes all changes in one batch; returns when it is on disk."""
        if self.is_stale(reads):
            raise TransactionConflict("another transaction has changed what this one has read")
        if not changes:
            return
        batch = WriteBatch(raw_mode=True)
        handles = {name: self._opened_root.get_column_family_handle(name) for name in {name for name, _ in changes}}
        for (family, key), value in changes.items():
            if value is None:
                batch.delete(key, handles[family])
            else:
                batch.put(key, value, handles[family])
        self._run(self._opened_root.write, batch, self._sync)
        self._sequence += 1
        if len(self._reading) > 1:
            self._commits.append((self._sequence, frozenset(changes)))

    @property
    def _opened_root(self) -> Rdict:
        if self._root is None:
            raise RuntimeError("the store is not open")
        return self._root

    def _family(self, name: str) -> Rdict:
        family = self._families.get(name)
        if family is None:
            if self._root is None:
                raise RuntimeError("the store is not open")
            raise ConfigError(f"there is no column family {name}", remedy="Name it in `families` of the RocksStore.")
        return family

    def _run(self, function: Callable[..., T], *given: Any, **options: Any) -> T:  # noqa: ANN401
        """Calls RocksDB. After an error nothing more is read or written: RocksDB must be opened again."""
        if self._failed is not None:
            raise self._failed
        try:
            return function(*given, **options)
        except Exception as error:  # the driver raises plain exceptions
            self._failed = self._error(str(error))
            raise self._failed from error

    def _error(self, why: str) -> StoreFailed:
        return StoreFailed(
            f"RocksDB cannot read or write {self._path}",
            why=why,
            remedy=(
                "Check the disk: is it full, or broken? Then restart: it continues after its last commit. If the "
                "folder is damaged, delete it: the projection reads its topics from their beginning."
            ),
        )
