"""Ownership of a pipeline: the instance of the last ownership record on the offsets topic runs it.

Kafka's fencing makes sure that only one instance publishes, but not which: an older one that merely retries, perhaps
because its database was unavailable, would fence the one that took over from it. So an instance takes ownership once,
at its first start, before it fences anyone. An instance that is fenced or retries reads who is the last owner: the
owner continues, all others end. In any order of these steps of two instances, exactly one continues.

An ownership record is written once and never removed. That its instance has left, or is alive, is stored under another
key, so that nothing an instance writes later can erase the record of its successor.
"""

from __future__ import annotations

import os
import socket
import threading
import time

from confluent_kafka import KafkaException, Producer

from tailrace.errors import Fenced, KafkaUnavailable, TailraceError
from tailrace.kafka.client import KafkaOptions, admin_config, write_record
from tailrace.state.owner_watch import (
    HEARTBEAT_SECONDS,
    Owner,
    OwnerWatch,
    heartbeat_key,
    heartbeat_value,
    ownership_key,
    ownership_value,
)
from tailrace.state.process_identity import this_process

TAKE_TIMEOUT = 10.0
RELEASE_TIMEOUT = 2.0
"""Short, because it delays the end of the process."""
HEARTBEAT_TIMEOUT_MS = 2000
"""A heartbeat that is not delivered by then is replaced by the next ones."""
LEASE_SECONDS = 3.0
"""Without transactions an instance publishes only if it was confirmed to be the owner this recently. Less than
SILENT_SECONDS, so that it has stopped when another one takes over."""
LEAVE_SECONDS = 1.0


class Ownership:
    """The ownership of one instance, which its `instance` id identifies."""

    def __init__(self, options: KafkaOptions, instance: str) -> None:
        self._options = options
        self._instance = instance
        self._heartbeat: _Heartbeat | None = None
        self._watch: OwnerWatch | None = None
        self.taken = False
        self.is_last = False
        """Whether no other instance has taken ownership since, as far as it was checked."""

    def take(self, watch: OwnerWatch | None = None) -> None:
        """Takes over the pipeline, and writes heartbeats from now on.

        With `watch`, which must have been read before, another owner is noticed within seconds; see `require_held`.
        """
        owner = Owner(self._instance, socket.gethostname(), os.getpid(), time.time_ns() // 1_000_000, this_process())
        if not self._write(ownership_key(self._options), ownership_value(owner), TAKE_TIMEOUT):
            raise KafkaUnavailable(
                f"Kafka did not store the ownership of the pipeline within {TAKE_TIMEOUT:.0f} s",
                remedy="Tailrace retries by itself.",
            )
        self.taken = self.is_last = True
        self._watch = watch
        if watch is not None:
            before = watch.claims
            watch.look()
            if watch.claims > before + 1:
                # Another instance found the pipeline free at the same moment: by then it knows who is the last owner.
                time.sleep(LEASE_SECONDS)
        self.start_heartbeat()

    def start_heartbeat(self) -> None:
        """Writes a heartbeat now and every second until `stop_heartbeat`."""
        if self._heartbeat is None:
            self._heartbeat = _Heartbeat(self._options, self._instance, self._watch)

    def stop_heartbeat(self) -> None:
        """Writes no more heartbeats, so that an instance that waits for its database leaves the pipeline to another."""
        if self._heartbeat is not None:
            self._heartbeat.close()
            self._heartbeat = None

    def require_held(self, patience: float) -> None:
        """Raises Fenced if another instance has taken ownership, as far as that was checked.

        With `patience`, waits that many seconds for a recent check; KafkaUnavailable if there is none.
        """
        if self._watch is None:
            return
        if self._heartbeat is not None:
            self._heartbeat.require_held(patience)
        elif patience and self.lost():
            raise _taken()

    def lost(self) -> bool:
        """Whether another instance has taken ownership since. Raises KafkaUnavailable if that cannot be read.

        One that has left again does not count, but then `is_last` is False.
        """
        # Reads uncommitted records: the next start ends a hanging transaction, so that must not block this check.
        last = OwnerWatch(self._options)
        try:
            last.look()
        finally:
            last.close()
        self.is_last = last.owner is not None and last.owner.instance == self._instance
        return last.owner is not None and not self.is_last and not last.is_released

    def withdraw(self) -> None:
        """Drops the ownership, because another instance took it since."""
        self.stop_heartbeat()
        self.taken = False

    def release(self) -> None:
        """Gives the pipeline up for other instances; it does no harm if that cannot be written."""
        self.stop_heartbeat()
        if self.taken:
            self._write(heartbeat_key(self._options), heartbeat_value(self._instance, released=True), RELEASE_TIMEOUT)

    def _write(self, key: bytes, value: bytes, timeout: float) -> bool:
        try:
            write_record(self._options, self._options.offsets_topic, key, value, timeout)
        except KafkaException:
            return False
        return True


def _taken() -> Fenced:
    return Fenced(
        "another instance has taken over this pipeline",
        why="It was started, or this one counted as gone because it wrote no heartbeat for some seconds.",
        remedy="If another instance runs, nothing needs to be done. Otherwise start this one again.",
    )


class _Heartbeat:
    """A thread that writes heartbeats and, with a watch, checks for other owners."""

    def __init__(self, options: KafkaOptions, instance: str, watch: OwnerWatch | None) -> None:
        self._options = options
        self._instance = instance
        self._watch = watch
        self._leaving = threading.Event()
        self._looked = threading.Condition()
        self._held_at = float("-inf")
        self._taken = False
        self._thread = threading.Thread(target=self._run, name="ownership", daemon=True)
        self._thread.start()

    def require_held(self, patience: float) -> None:
        with self._looked:
            known = self._looked.wait_for(self._is_known, patience)
        if self._taken:
            raise _taken()
        if patience and not known:
            raise KafkaUnavailable(
                f"whether this instance still owns the pipeline could not be read within {patience:.0f} s",
                why="Kafka is unavailable or too slow.",
                remedy="Tailrace retries by itself.",
            )

    def _is_known(self) -> bool:
        return self._taken or time.monotonic() - self._held_at < LEASE_SECONDS

    def close(self) -> None:
        self._leaving.set()
        self._thread.join(LEAVE_SECONDS)

    def _run(self) -> None:
        producer: Producer | None = None
        key, value = heartbeat_key(self._options), heartbeat_value(self._instance)
        while not self._leaving.is_set():
            try:
                if producer is None:
                    config = {"message.timeout.ms": HEARTBEAT_TIMEOUT_MS, "queue.buffering.max.kbytes": 1024}
                    producer = Producer({**admin_config(self._options), **config})
                producer.produce(self._options.offsets_topic, value, key)
                producer.poll(0)
            except (KafkaException, BufferError):
                pass  # the next one follows in a moment
            self._look()
            self._leaving.wait(HEARTBEAT_SECONDS)

    def _look(self) -> None:
        if self._watch is None:
            return
        began = time.monotonic()
        try:
            self._watch.look()
        except TailraceError:
            return  # the last check becomes too old
        with self._looked:
            self._taken = self._watch.owner is None or self._watch.owner.instance != self._instance
            self._held_at = began
            self._looked.notify_all()
