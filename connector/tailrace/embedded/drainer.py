"""Drains an embedded outbox into a target, in a thread of the service: batches, retries, and a flush at the end.

The outbox is opened by one process, so the drainer runs in the process of the service. An entry is deleted after the
target has it: a crash in between writes it again, which a target must take as success.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tailrace import failpoints
from tailrace.backoff import Backoff
from tailrace.embedded.outbox import EmbeddedOutbox
from tailrace.embedded.records import Entry
from tailrace.histogram import Histogram

LOGGER = logging.getLogger("tailrace.embedded")
LATENCY_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class DrainedBatch(NamedTuple):
    """What a target has done: `refused` entries (with the reasons) cannot be written, whatever is tried."""

    written: int
    duplicates: int
    refused: dict[int, str]


class DrainTarget(Protocol):
    """Where entries go. Any exception means that the whole batch is written again later."""

    def open(self) -> None:
        """Connects, and creates what is missing. Called again after an error."""

    def write(self, entries: Sequence[Entry]) -> DrainedBatch:
        """Returns when all entries are durable, were durable before, or are refused."""

    def close(self) -> None: ...


@dataclass(slots=True)
class DrainStats:
    """Totals since the start, for metrics and health."""

    written: int = 0
    duplicates: int = 0
    batch_size: int = 0
    """The entries of the last batch."""
    errors: int = 0
    retries: int = 0
    refused: dict[int, str] = field(default_factory=dict)
    """Entries that the target refuses, with the reasons. They stay in the outbox, and are tried again after a start."""
    latency: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS))
    error: str = ""
    """The error that is being retried; empty if the last batch was written."""


class Drainer:
    """Use it as a context manager, or call `start` and `stop`."""

    def __init__(
        self,
        outbox: EmbeddedOutbox,
        target: DrainTarget,
        *,
        batch: int = 100,
        within: float = 1.0,
        backoff: Backoff = Backoff(jitter=0.0),  # noqa: B008 - immutable
        flush: float = 10.0,
    ) -> None:
        """A batch has up to `batch` entries, and an entry waits for at most `within` seconds for others.

        While the target is not available, it is tried again after 1 s, 2 s, 4 s … 60 s (`backoff`). `stop` waits for up
        to `flush` seconds until the outbox is empty.
        """
        self._outbox = outbox
        self._target = target
        self._batch = batch
        self._within = within
        self._backoff = backoff
        self._flush = flush
        self._stopping = threading.Event()
        self._full = threading.Event()
        self._is_open = False
        self._thread = threading.Thread(target=self._run, name="outbox-drainer", daemon=True)
        self.stats = DrainStats()
        self.on_batch: Callable[[float, DrainedBatch], None] = lambda _seconds, _result: None
        """Is called after each batch with its duration. It must return at once."""

    def start(self) -> None:
        """Begins with what an earlier process has left."""
        self._outbox.subscribe(self._notice)
        self._thread.start()

    def stop(self) -> bool:
        """Writes what is left, and ends; returns whether the outbox is empty, except for refused entries."""
        self._stopping.set()
        self._full.set()
        if self._thread.is_alive():
            self._thread.join()
            self._outbox.unsubscribe(self._notice)
        return not self._read(1)

    def __enter__(self) -> Drainer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def healthy(self) -> bool:
        """Whether the drainer runs, the last batch was written, and no entry is refused."""
        return self._thread.is_alive() and not self.stats.error and not self.stats.refused

    def drain_once(self) -> int:
        """Writes one batch and deletes it; returns how many entries were read. Raises what the target raises."""
        entries = self._read(self._batch)
        if entries:
            self._write(entries)
        return len(entries)

    def _run(self) -> None:
        try:
            failures = 0
            while not self._stopping.is_set():
                try:
                    while self.drain_once() == self._batch and not self._stopping.is_set():
                        failures = 0
                    failures, self.stats.error = 0, ""
                except Exception as error:  # noqa: BLE001 - a thread of the service must not end
                    failures += 1
                    self._failed(error)
                    self._stopping.wait(self._backoff.delay(failures))
                    self.stats.retries += 1
                else:
                    self._full.wait(self._within)
                    self._full.clear()
            self._drain_rest()
        finally:
            self._target.close()

    def _drain_rest(self) -> None:
        until = time.monotonic() + self._flush
        try:
            while time.monotonic() < until and self.drain_once():
                pass
        except Exception as error:  # noqa: BLE001 - the next start drains it
            self._failed(error)

    def _notice(self) -> None:
        if self._outbox.count >= self._batch:
            self._full.set()

    def _read(self, limit: int) -> list[Entry]:
        return self._outbox.read(limit, without=self.stats.refused)

    def _write(self, entries: list[Entry]) -> None:
        stats, began = self.stats, time.monotonic()
        if not self._is_open:
            self._target.open()
            self._is_open = True
        stats.batch_size = len(entries)
        result = self._target.write(entries)
        seconds = time.monotonic() - began
        stats.latency.observe(seconds)
        self.on_batch(seconds, result)
        stats.written += result.written
        stats.duplicates += result.duplicates
        failpoints.reached(failpoints.DRAIN_WRITTEN)
        for sequence, why in result.refused.items():
            stats.refused[sequence] = why
            LOGGER.error("entry %d cannot be written, and stays in the outbox: %s", sequence, why)
        self._outbox.remove(entry for entry in entries if entry.sequence not in result.refused)
        failpoints.reached(failpoints.DRAIN_REMOVED)

    def _failed(self, error: Exception) -> None:
        self.stats.errors += 1
        if not self.stats.error:
            LOGGER.warning("the outbox is not drained, and nothing is lost: %s", error)
        self.stats.error = str(error) or type(error).__name__
        self._is_open = False
