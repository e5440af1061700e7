"""A live `read_committed` consumer of a service's topics, and the latency of the events it received.

The latency of an event is the time from its commit in the database to its arrival at the consumer. A restart lasts from
the kill until the arrival of the first event committed after the connector was back. Events that overlap a restart
measure the restart, not the connector: they are counted separately and only enter `longest_ms`.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tailrace.testkit.demo.process import Downtime
from tailrace.testkit.topic_reader import header

RECENT = 12
POLL_SECONDS = 0.1


class Delivery(NamedTuple):
    committed_ms: int
    received_ms: float

    @property
    def millis(self) -> float:
        return self.received_ms - self.committed_ms


class ReceivedEvent(NamedTuple):
    """One event as the display shows it."""

    position: str
    key: str
    type: str
    text: str
    dead_letter: bool
    millis: float
    """From commit to arrival."""
    received_ms: float


class DemoConsumer:
    """Runs as a thread; `deliveries`, `ids` and `dead_letters` only grow, `recent` holds the last events."""

    def __init__(
        self, bootstrap: str, topic: str, dead_letters: str, describe: Callable[[Mapping[str, Any]], str]
    ) -> None:
        """`describe` describes a payload in a few words."""
        self.deliveries: list[Delivery] = []
        self.ids: set[str] = set()
        self.dead_letters = 0
        self.recent: deque[ReceivedEvent] = deque(maxlen=RECENT)
        self.error: BaseException | None = None
        self._dead_letter_topic = dead_letters
        self._topics = [topic, dead_letters]
        self._describe = describe
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "tailrace-demo",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, name="demo-consumer", daemon=True)

    def start(self) -> None:
        """Starts reading; the topics must exist."""
        cluster = self._consumer.list_topics(timeout=10).topics
        self._consumer.assign([TopicPartition(t, p, 0) for t in self._topics for p in cluster[t].partitions])
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                message = self._consumer.poll(POLL_SECONDS)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    self._take(message, time.time() * 1000)
                elif error.fatal() or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise KafkaException(error)
        except BaseException as error:  # noqa: BLE001 - raised by the scenario
            self.error = error
        finally:
            self._consumer.close()

    def _take(self, message: Message, now_ms: float) -> None:
        committed_ms = message.timestamp()[1]
        dead_letter = message.topic() == self._dead_letter_topic
        self.dead_letters += dead_letter
        self.ids.add(header(message, "id"))
        self.deliveries.append(Delivery(committed_ms, now_ms))
        self.recent.append(
            ReceivedEvent(
                f"{message.topic()}/{message.partition()}@{message.offset()}",
                (message.key() or b"").decode(),
                header(message, "type"),
                header(message, "tailrace.reason").replace("_", " ") if dead_letter else self._text(message),
                dead_letter,
                now_ms - committed_ms,
                now_ms,
            )
        )

    def _text(self, message: Message) -> str:
        return self._describe(json.loads(message.value() or b"{}"))


@dataclass(frozen=True, slots=True)
class Latency:
    steady_events: int
    restart_events: int
    p50_ms: float
    p99_ms: float
    longest_ms: float


def measure(deliveries: Sequence[Delivery], downtimes: Iterable[Downtime]) -> Latency:
    """Measures the latency; `p50_ms` and `p99_ms` are of the events outside restarts, 0 if there are none."""
    restarts = [(downtime.killed_ms, _over_ms(deliveries, downtime)) for downtime in downtimes]
    steady = [
        delivery.millis
        for delivery in deliveries
        if all(delivery.received_ms < begin or delivery.committed_ms > end for begin, end in restarts)
    ]
    return Latency(
        steady_events=len(steady),
        restart_events=len(deliveries) - len(steady),
        p50_ms=percentile(steady, 0.50),
        p99_ms=percentile(steady, 0.99),
        longest_ms=max((delivery.millis for delivery in deliveries), default=0.0),
    )


def percentile(values: Iterable[float], share: float) -> float:
    """Returns the smallest value that at least `share` of all values do not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _over_ms(deliveries: Iterable[Delivery], downtime: Downtime) -> float:
    return min((each.received_ms for each in deliveries if each.committed_ms >= downtime.running_ms), default=math.inf)
