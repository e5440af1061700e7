"""A service that writes business data and outbox events in one transaction, and records the outcome of each.

Each writer owns its keys, so the order in which it commits is the order per key that consumers must see. Some
transactions roll back and some payloads break their schema, all determined by a seed. Outcomes are recorded in memory
before and after each commit, for the oracle. Subclasses write to one database each.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from tailrace.testkit.oracle import WriteOutcome, WrittenEvent


@dataclass(frozen=True, slots=True)
class Mix:
    """The fractions of a workload, each between 0 and 1."""

    rollback: float = 0.1
    invalid: float = 0.02
    savepoint: float = 0.1
    """Only in databases with savepoints."""
    events_per_transaction: int = 3
    """The maximum: each transaction writes 1 to this many."""


class WorkloadEvent(NamedTuple):
    """An event to write: `seq` is the entity's new revision; a payload that is not `valid` breaks its schema."""

    id: str
    key: str
    seq: int
    valid: bool


class WorkloadWriter(ABC):
    """Commits transactions one after another on its own connection; call `transaction` or run it as a thread."""

    ENTITY: ClassVar[str]
    """The prefix of its keys."""

    def __init__(self, *, seed: int = 0, keys: int = 20, mix: Mix | None = None) -> None:
        self.written: list[WrittenEvent] = []
        self.error: BaseException | None = None
        self._random = random.Random(seed)  # noqa: S311 - a workload, not a secret
        self._mix = mix or Mix()
        self._keys = [f"{self.ENTITY}-{seed}-{number}" for number in range(keys)]
        self._seq = dict.fromkeys(self._keys, 0)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def transaction(self, events: int | None = None, *, rollback: bool | None = None) -> list[WrittenEvent]:
        """Runs one transaction; records and returns its events with their outcome."""
        count = events if events is not None else self._random.randint(1, self._mix.events_per_transaction)
        rolled_back = self._random.random() < self._mix.rollback if rollback is None else rollback
        entries: list[WrittenEvent] = []
        outcome = WriteOutcome.ROLLED_BACK
        try:
            self._begin()
            for _ in range(count):
                event = self._event(entries)
                self._write(event)
                entries.append(WrittenEvent(*event, WriteOutcome.UNKNOWN))
            if rolled_back:
                self._roll_back()
            else:
                # Until the commit returns, the outcome is unknown.
                outcome = WriteOutcome.UNKNOWN
                self._commit()
                outcome = WriteOutcome.COMMITTED
        except Exception as error:
            if not self._is_unavailable(error):
                raise
            self._abandon()
        finally:
            entries = [entry._replace(outcome=outcome) for entry in entries]
            if outcome is not WriteOutcome.ROLLED_BACK:
                for entry in entries:
                    self._seq[entry.key] = entry.seq
            self.written += entries
        return entries

    def start(self, *, rate: float, until: Callable[[], bool] = lambda: False) -> None:
        """Writes about `rate` transactions a second in a thread, until `stop` or `until`."""

        def run() -> None:
            due = time.monotonic()
            try:
                while not self._stop.is_set() and not until():
                    self.transaction()
                    due += 1 / rate
                    self._stop.wait(max(0.0, due - time.monotonic()))
            except BaseException as error:  # noqa: BLE001 - raised by `stop`
                self.error = error
            finally:
                self._disconnect()

        self._thread = threading.Thread(target=run, name="writer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and raises what went wrong in it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._disconnect()
        if self.error is not None:
            raise self.error

    def _event(self, before: list[WrittenEvent]) -> WorkloadEvent:
        key = self._random.choice(self._keys)
        seq = max([self._seq[key], *(entry.seq for entry in before if entry.key == key)]) + 1
        valid = self._random.random() >= self._mix.invalid
        return WorkloadEvent(str(uuid.UUID(int=self._random.getrandbits(128), version=4)), key, seq, valid)

    @abstractmethod
    def _begin(self) -> None:
        """Begins a transaction; connects first if necessary."""

    @abstractmethod
    def _write(self, event: WorkloadEvent) -> None:
        """Writes the entity in its new revision, and its event."""

    @abstractmethod
    def _commit(self) -> None:
        """Commits; returns when the server has confirmed it."""

    @abstractmethod
    def _roll_back(self) -> None: ...

    @abstractmethod
    def _is_unavailable(self, error: Exception) -> bool:
        """Returns whether the error means that the server is unavailable, which a service must tolerate."""

    @abstractmethod
    def _abandon(self) -> None:
        """Prepares for the next transaction after such an error."""

    @abstractmethod
    def _disconnect(self) -> None: ...
