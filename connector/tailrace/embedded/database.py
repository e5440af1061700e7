"""The RocksDB folder of an embedded outbox: batches that are on disk before they count, and reads.

Requests of several threads become one batch, because a batch waits for the disk. Sequence numbers are given in the
order of the batches, so a reader that has passed a number never finds a smaller one later.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.embedded.batch import OutboxBatch
from tailrace.embedded.epochs import Epochs
from tailrace.embedded.records import (
    ENTRIES,
    EPOCH,
    IDENTITY,
    KEYS,
    OWN,
    STATE,
    Entry,
    OutboxState,
    decode_entry,
    key_prefix,
    sequence_key,
    sequence_of,
)
from tailrace.errors import ConfigError, StoreFailed, install_remedy
from tailrace.rocksdb_folder import FolderUse, create_family, open_folder

if TYPE_CHECKING:
    from rocksdict import Rdict

USE = FolderUse(
    own=OWN,
    kind="an embedded outbox",
    lost="what was captured and not drained is lost",
    one_user="One process may open an outbox, once: drain it in the process of the service that writes to it.",
)
REOPEN_SECONDS = 1.0
"""The shortest time between two attempts to open the folder again after an error."""
FIRST = 1
"""The first sequence number."""


class _Request:
    """A change that waits for its batch."""

    def __init__(self, change: Callable[[OutboxBatch], Any], *, sync: bool) -> None:
        self.change = change
        self.sync = sync
        self.done = False
        self.abandoned = False
        self.result: Any = None
        self.error: Exception | None = None


class OutboxDatabase:
    """See the module's docstring. All methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        try:
            from rocksdict import WriteOptions
        except ModuleNotFoundError:
            raise ConfigError(
                "an embedded outbox needs rocksdict, which is not installed", remedy=install_remedy("rocksdb")
            ) from None
        self._path = path.resolve()
        self._synced, self._unsynced = WriteOptions(), WriteOptions()
        self._synced.sync = True
        self._lock = threading.RLock()
        self._waiting: deque[_Request] = deque()
        self._root: Rdict | None = None
        self._families: dict[str, Rdict] = {}
        self._closed = False
        self._failed: StoreFailed | None = None
        self._failed_at = 0.0
        self._low = FIRST
        """No entry has a smaller sequence number. Deleted entries slow a search from the beginning down."""
        self.state = OutboxState()
        self._unsettled = False
        """A write was interrupted: `state` may not be what is stored."""
        self.epochs = Epochs()
        self.identity = self._open()

    def change(self, change: Callable[[OutboxBatch], Any], *, sync: bool = True) -> Any:  # noqa: ANN401 - the change's result
        """Applies a change; returns when it is on disk. Without `sync`, a power cut may undo it, a crash may not."""
        request = _Request(change, sync=sync)
        self._waiting.append(request)  # atomic, as `popleft` is
        try:
            with self._lock:
                if not request.done:
                    self._write([self._waiting.popleft() for _ in range(len(self._waiting))])
        except BaseException:  # an interrupt
            request.abandoned = True
            raise
        if not request.done:
            raise StoreFailed(
                f"a write to the outbox {self._path} was interrupted",
                why="Another thread wrote it in its batch, and was interrupted. It may be on disk.",
                remedy="Write it again: it replaces itself.",
            )
        if request.error is not None:
            raise request.error
        return request.result

    def entries(self, after: int) -> Iterator[Entry]:
        """Yields entries with larger sequence numbers, in their order. Hold `reading` meanwhile."""
        from_start = after < self._low
        found = self._run(self._family(ENTRIES).iter)
        self._run(found.seek, sequence_key(max(after + 1, self._low)))
        while found.valid():
            entry = decode_entry(found.key(), found.value())
            if from_start:
                self._low, from_start = entry.sequence, False
            yield entry
            self._run(found.next)
        self._run(found.status)  # a damaged file ends the iteration, too
        if from_start:
            self._low = self.state.last + 1

    @property
    def reading(self) -> AbstractContextManager[bool]:
        """The lock to hold while entries are read."""
        return self._lock

    def sequences(self, key: bytes) -> list[int]:
        """Returns the sequence numbers of a key's stored entries, oldest first."""
        from rocksdict import ReadOptions

        prefix = key_prefix(key)
        options = ReadOptions()
        options.set_iterate_upper_bound(prefix + b"\xff" * 9)  # otherwise it would pass all deleted keys behind it
        found = self._run(self._family(KEYS).iter, options)
        self._run(found.seek, prefix)
        sequences = []
        while found.valid():
            sequences.append(sequence_of(found.key()))
            self._run(found.next)
        self._run(found.status)
        return sequences

    def has(self, key: bytes, sequence: int) -> bool:
        return self._run(self._family(KEYS).get, key_prefix(key) + sequence_key(sequence)) is not None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._close()

    def _open(self) -> str:
        root, families = open_folder(self._path, USE)
        self._root, self._families = root, families
        try:
            for name in (ENTRIES, KEYS):
                if name not in families:
                    families[name] = self._run(create_family, root, name)
            own = families[OWN]
            identity: bytes | None = self._run(own.get, IDENTITY)
            if identity is None:
                identity = uuid.uuid4().hex.encode()
                self._run(own.put, IDENTITY, identity, write_opt=self._synced)
            self._read_state()
            self._begin_epoch(own)
        except BaseException:
            self._close()
            raise
        self._failed = None
        return identity.decode()

    def _read_state(self) -> None:
        stored: bytes | None = self._run(self._family(OWN).get, STATE)
        found = OutboxState.decode(stored) if stored is not None else OutboxState()
        # The numbers of a batch that has failed are not given again.
        self.state = found._replace(last=max(found.last, self.state.last))
        self._unsettled = False

    def _begin_epoch(self, own: Rdict) -> None:
        from rocksdict import WriteBatch

        found: list[tuple[Any, Any]] = self._run(lambda: list(own.items(from_key=EPOCH)))
        known = Epochs.decode((key, value) for key, value in found if key.startswith(EPOCH))
        first = next(self.entries(0), None)
        begun = known.begun(self.state.last + 1, first.sequence if first is not None else self.state.last + 1)
        written = WriteBatch(raw_mode=True)
        handle = self._opened().get_column_family_handle(OWN)
        for key in known.encoded().keys() - begun.encoded().keys():
            written.delete(key, handle)
        for key, value in begun.encoded().items():
            written.put(key, value, handle)
        self._run(self._opened().write, written, self._synced)
        self.epochs = begun

    def _write(self, requests: list[_Request]) -> None:
        """Writes all requests in one batch. The lock is held."""
        try:
            self._require_open()
            if self._unsettled:
                self._read_state()
            from rocksdict import WriteBatch

            root = self._opened()
            handles = {name: root.get_column_family_handle(name) for name in (OWN, ENTRIES, KEYS)}
            batch = OutboxBatch(self, self.state, WriteBatch(raw_mode=True), handles)
            for request in requests:
                if not request.abandoned:
                    request.result = request.change(batch)
            sync = any(request.sync for request in requests)
            self._unsettled = True
            self.state = OutboxState(batch.state.last, self.state.entries)
            self._run(root.write, batch.end(), self._synced if sync else self._unsynced)
            self.state, self._unsettled = batch.state, False
        except Exception as error:  # noqa: BLE001 - every writer of the batch gets it
            error.__traceback__ = None  # its frames refer to the database, which could not be opened again
            for request in requests:
                request.error = error
        # Not after an interrupt: then nobody knows whether the batch was written.
        for request in requests:
            request.done = True

    def _require_open(self) -> None:
        """Opens the folder again after an error, such as a full disk: RocksDB itself would refuse all writes."""
        if self._failed is None:
            return
        if time.monotonic() - self._failed_at < REOPEN_SECONDS:
            raise self._failed
        self._failed_at = time.monotonic()
        self._close()
        self._low = FIRST
        self._open()

    def _close(self) -> None:
        failure: Exception | None = None
        opened = [*self._families.values(), *([self._root] if self._root is not None else [])]
        self._families, self._root = {}, None
        while opened:
            try:
                opened.pop(0).close()
            except Exception as error:  # noqa: BLE001 - it is closed without its last flush; the log has everything
                failure = error
        if failure is not None and self._failed is None:
            raise self._error(str(failure)) from None

    def _opened(self) -> Rdict:
        if self._root is None:
            if self._failed is not None and not self._closed:
                raise self._failed
            raise RuntimeError("the outbox is closed")
        return self._root

    def _family(self, name: str) -> Rdict:
        self._opened()
        return self._families[name]

    def _run(self, function: Callable[..., Any], *given: Any, **options: Any) -> Any:  # noqa: ANN401
        """Calls RocksDB. After an error, the folder is opened again before the next write."""
        try:
            return function(*given, **options)
        except Exception as error:  # noqa: BLE001 - the driver raises plain exceptions
            why = str(error)
        if self._failed is None:
            self._failed_at = time.monotonic()
        self._failed = failure = self._error(why)
        del function, given  # what refers to the database keeps it open
        raise failure

    def _error(self, why: str) -> StoreFailed:
        return StoreFailed(
            f"RocksDB cannot read or write the outbox {self._path}",
            why=why,
            remedy="Check the disk: is it full, or broken? The folder is opened again with the next write. If it is "
            "damaged, restore it; with an empty folder, what was captured and not drained is lost.",
        )
