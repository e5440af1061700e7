"""The claim of an instance on a pipeline: the last one on the offsets topic says who runs it.

Kafka's fencing makes sure that only one instance publishes, but not which: an older one that merely tries again, for
lack of its database perhaps, would fence the one that took over from it. So an instance claims the pipeline once, at
its first start, before it fences anyone. Whoever is fenced or tries again asks whose claim is the last: the owner goes
on, everyone else ends. However the steps of two instances fall together, one of them is left.

A claim is written once and never taken back: that its instance has left, or lives, stands under another key, so that
nothing an instance writes later can erase the claim of one that came after it.
"""

from __future__ import annotations

import os
import socket
import threading
import time

from confluent_kafka import KafkaException, Producer

from tailrace.errors import Fenced, KafkaUnavailable, TailraceError
from tailrace.kafka.client import KafkaOptions, admin_config
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
"""It is said on the way out, where nobody wants to wait."""
HEARTBEAT_TIMEOUT_MS = 2000
"""A sign that is not delivered by then is replaced by the next ones."""
LEASE_SECONDS = 3.0
"""Without transactions: an instance publishes only if it was seen to be the owner this recently. Less than the silence
after which another one takes over, so that it has stopped by then."""
LEAVE_SECONDS = 1.0


class Ownership:
    """The claim of one instance, which its `instance` id tells from every other."""

    def __init__(self, options: KafkaOptions, instance: str) -> None:
        self._options = options
        self._instance = instance
        self._heartbeat: _Heartbeat | None = None
        self._watch: OwnerWatch | None = None
        self.taken = False
        self.is_last = False
        """Whether no other claim has been made since, as far as it was looked for."""

    def take(self, watch: OwnerWatch | None = None) -> None:
        """Takes the pipeline over, and gives signs of life from now on.

        With `watch`, which must have looked before, another claim is noticed within seconds; see `require_held`.
        """
        owner = Owner(self._instance, socket.gethostname(), os.getpid(), time.time_ns() // 1_000_000, this_process())
        if not self._write(ownership_key(self._options), ownership_value(owner), TAKE_TIMEOUT):
            raise KafkaUnavailable(
                f"Kafka did not take this instance's claim of the pipeline within {TAKE_TIMEOUT:.0f} s",
                remedy="Tailrace tries again by itself.",
            )
        self.taken = self.is_last = True
        self._watch = watch
        if watch is not None:
            before = watch.claims
            watch.look()
            if watch.claims > before + 1:
                # Another instance found the pipeline free at the same moment: by then it knows whose claim is the last.
                time.sleep(LEASE_SECONDS)
        self.start_heartbeat()

    def start_heartbeat(self) -> None:
        """Gives a sign of life now and every second until `stop_heartbeat`."""
        if self._heartbeat is None:
            self._heartbeat = _Heartbeat(self._options, self._instance, self._watch)

    def stop_heartbeat(self) -> None:
        """No more signs: an instance that waits for its database, say, leaves the pipeline to one that can run it."""
        if self._heartbeat is not None:
            self._heartbeat.close()
            self._heartbeat = None

    def require_held(self, patience: float) -> None:
        """Raises Fenced if another instance has claimed the pipeline, as far as that was looked for.

        With `patience`, waits that long until it was looked for just now; KafkaUnavailable if it could not be.
        """
        if self._watch is None:
            return
        if self._heartbeat is not None:
            self._heartbeat.require_held(patience)
        elif patience and self.lost():
            raise _taken()

    def lost(self) -> bool:
        """Whether another instance has claimed the pipeline since. Raises KafkaUnavailable if that cannot be told.

        One that has left again is no hindrance, but then `is_last` is False.
        """
        # Follows uncommitted records: a transaction that hangs is what the next start is to end, and must not keep it
        # from that.
        last = OwnerWatch(self._options)
        try:
            last.look()
        finally:
            last.close()
        self.is_last = last.owner is not None and last.owner.instance == self._instance
        return last.owner is not None and not self.is_last and not last.is_released

    def withdraw(self) -> None:
        """The claim does not count any more: another one was made since."""
        self.stop_heartbeat()
        self.taken = False

    def release(self) -> None:
        """Leaves the pipeline to whoever still tries to run it; of no consequence if Kafka does not hear it."""
        self.stop_heartbeat()
        if self.taken:
            self._write(heartbeat_key(self._options), heartbeat_value(self._instance, released=True), RELEASE_TIMEOUT)

    def _write(self, key: bytes, value: bytes, timeout: float) -> bool:
        failed: list[object] = []
        try:
            producer = Producer({**admin_config(self._options), "message.timeout.ms": int(timeout * 1000)})
            producer.produce(
                self._options.offsets_topic,
                value,
                key,
                on_delivery=lambda error, _: failed.append(error) if error is not None else None,
            )
            return producer.flush(timeout) == 0 and not failed
        except (KafkaException, BufferError):
            return False


def _taken() -> Fenced:
    return Fenced(
        "another instance of this pipeline has claimed it",
        why="It was started, or this one was taken for gone: it gave no sign of life for some seconds.",
        remedy="If another instance runs, all is well: it goes on. Otherwise start this one again.",
    )


class _Heartbeat:
    """A thread that gives signs of life and, with a watch, looks for claims of others."""

    def __init__(self, options: KafkaOptions, instance: str, watch: OwnerWatch | None) -> None:
        self._options = options
        self._instance = instance
        self._watch = watch
        self._leaving = threading.Event()
        self._looked = threading.Condition()
        self._held_at = float("-inf")
        self._taken = False
        self._thread = threading.Thread(target=self._run, name="claim", daemon=True)
        self._thread.start()

    def require_held(self, patience: float) -> None:
        with self._looked:
            known = self._looked.wait_for(self._is_known, patience)
        if self._taken:
            raise _taken()
        if patience and not known:
            raise KafkaUnavailable(
                f"whether this instance still owns the pipeline could not be read within {patience:.0f} s",
                why="Kafka is away, or too slow.",
                remedy="Tailrace tries again by itself.",
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
                pass  # the next one is due in a moment
            self._look()
            self._leaving.wait(HEARTBEAT_SECONDS)

    def _look(self) -> None:
        if self._watch is None:
            return
        began = time.monotonic()
        try:
            self._watch.look()
        except TailraceError:
            return  # then it is not known any more, after a while
        with self._looked:
            self._taken = self._watch.owner is None or self._watch.owner.instance != self._instance
            self._held_at = began
            self._looked.notify_all()
