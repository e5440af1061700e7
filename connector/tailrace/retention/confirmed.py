"""Deletes the rows of any store after their confirmation and a delay: a consumer that is ready to use.

    store = PostgresConfirmedStore("postgresql://localhost/mirror", "public.transactions", "tx_hash")
    ConfirmedRetention(KafkaOptions("localhost:9092", "mirror"), "l1.confirmed", store, delay=86_400).run(stop)

Everything it knows is in the store: offsets and schedule survive a restart. Nothing is deleted by age.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tailrace import failpoints
from tailrace.errors import Unavailable
from tailrace.kafka.client import KafkaOptions
from tailrace.retention.confirmations import (
    ConfirmationFormat,
    ConfirmationSchedule,
    ConfirmationsRead,
    read_confirmations,
)

DAY = 86_400.0


class DeletedBatch(NamedTuple):
    """`unknown` confirmations have no row (yet); `forgotten` ones had none for too long."""

    deleted: int
    unknown: int
    forgotten: int


class ConfirmedStore(ConfirmationSchedule, Protocol):
    """A store of rows, with the schedule of their confirmations in the same database."""

    def due(self, confirmed_ms: int, now_ms: int, limit: int) -> list[str]:
        """Returns ids confirmed at or before `confirmed_ms` that are not postponed beyond `now_ms`, oldest first."""

    def delete(self, ids: Sequence[str], *, retry_ms: int, forget_ms: int) -> DeletedBatch:
        """Deletes these rows and their confirmations in one transaction.

        A confirmation without a row is postponed to `retry_ms`, or deleted if it is from before `forget_ms`.
        """


@dataclass(slots=True)
class Sweep:
    """The result of one sweep."""

    confirmations: ConfirmationsRead
    deleted: int = 0
    unknown: int = 0
    forgotten: int = 0


class ConfirmedRetention:
    """Reads a topic of confirmations, and deletes confirmed rows after `delay` seconds, in small batches."""

    def __init__(
        self,
        kafka: KafkaOptions,
        topic: str,
        store: ConfirmedStore,
        *,
        form: ConfirmationFormat = ConfirmationFormat(),  # noqa: B008 - immutable
        delay: float = DAY,
        tick: float = 300.0,
        batch_rows: int = 1000,
        keep_unknown: float = 7 * DAY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._kafka = kafka
        self._topic = topic
        self._store = store
        self._form = form
        self._delay = delay
        self._tick = tick
        self._batch_rows = batch_rows
        self._keep_unknown = keep_unknown
        self._clock = clock

    def sweep(self) -> Sweep:
        """Reads new confirmations and deletes everything that is due now."""
        result = Sweep(read_confirmations(self._kafka, self._topic, self._form, self._store))
        now_ms = round(self._clock() * 1000)
        due_ms = now_ms - round(self._delay * 1000)
        while ids := self._store.due(due_ms, now_ms, self._batch_rows):
            batch = self._store.delete(
                ids,
                retry_ms=now_ms + max(1, round(self._tick * 1000)),
                forget_ms=due_ms - round(self._keep_unknown * 1000),
            )
            result.deleted += batch.deleted
            result.unknown += batch.unknown
            result.forgotten += batch.forgotten
            failpoints.reached(failpoints.RETENTION_COMMITTED)
        return result

    def run(
        self,
        wait: Callable[[float], bool],
        on_sweep: Callable[[Sweep], None] = lambda _: None,
        on_error: Callable[[Unavailable], None] = lambda _: None,
    ) -> None:
        """Sweeps with every tick until `wait(seconds)` returns True: the `wait` of a `threading.Event` does.

        A server that is not available is asked again with the next tick; other errors are raised.
        """
        while True:
            try:
                on_sweep(self.sweep())
            except Unavailable as error:
                on_error(error)
            if wait(self._tick):
                return
