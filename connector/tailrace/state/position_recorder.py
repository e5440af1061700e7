"""Writes the position history of a running pipeline: a thread that records its position every few seconds.

It must never disturb the pipeline. It has its own producer, which takes part in no transaction. A failure is logged
once, and retried with the next entry.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tailrace.errors import KafkaUnavailable, TailraceError
from tailrace.kafka.client import KafkaOptions, admin_config, error_of, translate
from tailrace.kafka.topics import end_offsets, partition_counts
from tailrace.positions.base import Position
from tailrace.state import position_history
from tailrace.state.position_history import Offsets, PositionEntry

EVERY_SECONDS = 5.0
"""How often an entry is written while the position moves; entries of one minute replace each other."""
PATIENCE = 5.0
"""For Kafka's answers; a later answer belongs to the next entry."""
LEAVE_SECONDS = 1.0


class PositionRecorder:
    """One for each start of a pipeline; `close` ends it without waiting for Kafka."""

    def __init__(
        self,
        options: KafkaOptions,
        admin: AdminClient,
        *,
        stored: Callable[[], Position | None],
        topics: Callable[[], Collection[str]],
        passed: Callable[[Position], str],
        warn: Callable[[TailraceError], None],
    ) -> None:
        """`passed` returns the snapshot that lies wholly before a position; "" if none is known."""
        self._options = options
        self._admin = admin
        self._stored = stored
        self._topics = topics
        self._passed = passed
        self._warn = warn
        self._recorded: Position | None = None
        self._warned = False
        self._ready = False
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="position-history", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._leaving.set()
        if self._thread.is_alive():
            self._thread.join(LEAVE_SECONDS)

    def _run(self) -> None:
        while not self._leaving.is_set():
            try:
                self._record()
                self._warned = False
            except TailraceError as error:
                if not self._warned:
                    self._warn(error)
                self._warned = True
            self._leaving.wait(EVERY_SECONDS)

    def _record(self) -> None:
        # Read the position first: what is committed up to it then lies before the ends.
        position = self._stored()
        if position is None or position is self._recorded:
            return
        try:
            if not self._ready:
                position_history.ensure(self._options, self._admin)
                self._producer = Producer(
                    {**admin_config(self._options), "message.timeout.ms": 5000, "queue.buffering.max.kbytes": 1024}
                )
                self._ready = True
            entry = PositionEntry(position, time.time_ns() // 1_000_000, self._ends(), self._passed(position))
            self._write(entry)
        except KafkaException as error:
            topic = position_history.history_topic(self._options)
            raise translate(error_of(error), "writing the position history", topic) from None
        except (TimeoutError, BufferError):
            raise KafkaUnavailable(
                "writing the position history: no answer", remedy="Tailrace retries by itself."
            ) from None
        self._recorded = position

    def _ends(self) -> Offsets:
        counts = partition_counts(self._admin, timeout=PATIENCE)
        partitions = [(topic, number) for topic in sorted(self._topics()) for number in range(counts.get(topic, 0))]
        ends: Offsets = {}
        for (topic, number), end in end_offsets(self._admin, partitions, timeout=PATIENCE).items():
            ends.setdefault(topic, {})[number] = end
        return ends

    def _write(self, entry: PositionEntry) -> None:
        failed: list[KafkaException] = []
        self._producer.produce(
            position_history.history_topic(self._options),
            json.dumps(entry.to_json()).encode(),
            position_history.key(self._options, entry),
            timestamp=entry.sampled_ms,
            on_delivery=lambda error, _: failed.append(KafkaException(error)) if error is not None else None,
        )
        self._producer.flush(PATIENCE)
        if failed:
            raise failed[0]
