"""Who runs a pipeline: the instance whose claim stands last on the offsets topic.

Kafka's fencing makes sure that only one instance publishes, but not which: an older one that merely tries again, for
lack of its database perhaps, would fence the one that took over from it. So an instance claims the pipeline once, at
its first start, before it fences anyone. Whoever is fenced or tries again asks whose claim is the last: the owner goes
on, everyone else ends. However the steps of two instances fall together, one of them is left.
"""

from __future__ import annotations

from confluent_kafka import KafkaException, Producer

from tailrace.errors import KafkaUnavailable, TailraceError
from tailrace.kafka.client import KafkaOptions, admin_config
from tailrace.kafka.offsets import read_keys

SUFFIX = "/claim"
FREE = b"-"
"""Nobody's. Not a tombstone: that somebody was here stays known (`traces.py`)."""
CLAIM_TIMEOUT = 10.0
RELEASE_TIMEOUT = 2.0
"""It is said on the way out, where nobody wants to wait."""
READ_TIMEOUT = 10.0


class Claim:
    """The claim of one instance, which its `instance` id tells from every other."""

    def __init__(self, options: KafkaOptions, instance: str) -> None:
        self._options = options
        self._key = (options.pipeline + SUFFIX).encode()
        self._instance = instance.encode()
        self.made = False

    def make(self) -> None:
        if not self._write(self._instance, CLAIM_TIMEOUT):
            raise KafkaUnavailable(
                f"Kafka did not take this instance's claim of the pipeline within {CLAIM_TIMEOUT:.0f} s",
                remedy="Tailrace tries again by itself.",
            )
        self.made = True

    def lost(self) -> bool:
        """Whether another instance has claimed the pipeline since. Raises KafkaUnavailable if that cannot be told."""
        # Uncommitted: a transaction that hangs is what the next start is to end, and must not keep it from that.
        last = read_keys(self._options, {self._key}, timeout=READ_TIMEOUT, committed=False).get(self._key)
        return last not in (None, FREE, self._instance)

    def release(self) -> None:
        """Leaves the pipeline to whoever still tries to run it; of no consequence if Kafka does not hear it."""
        try:
            if self.made and not self.lost():
                self._write(FREE, RELEASE_TIMEOUT)
        except TailraceError:
            pass

    def _write(self, value: bytes, timeout: float) -> bool:
        failed: list[object] = []
        try:
            producer = Producer({**admin_config(self._options), "message.timeout.ms": int(timeout * 1000)})
            producer.produce(
                self._options.offsets_topic,
                value,
                self._key,
                on_delivery=lambda error, _: failed.append(error) if error is not None else None,
            )
            return producer.flush(timeout) == 0 and not failed
        except (KafkaException, BufferError):
            return False
