"""The consumer: reads the topics as any `read_committed` reader would, live, and notes when each event arrived."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tailrace.testkit.demo.latency import Delivery
from tailrace.testkit.topic_reader import header

RECENT = 12
POLL_SECONDS = 0.1


class ReceivedEvent(NamedTuple):
    """One event as it is shown."""

    place: str
    key: str
    type: str
    text: str
    letter: bool
    millis: float
    """From commit to here."""
    received_ms: float


class DemoConsumer:
    """Runs as a thread; `journeys`, `ids`, `letters` and `recent` only ever grow (`recent` scrolls)."""

    def __init__(self, bootstrap: str, topic: str, letters: str, tell: Callable[[Mapping[str, Any]], str]) -> None:
        """`tell` puts a payload in a few words."""
        self.journeys: list[Delivery] = []
        self.ids: set[str] = set()
        self.letters = 0
        self.recent: deque[ReceivedEvent] = deque(maxlen=RECENT)
        self.error: BaseException | None = None
        self._letter_topic = letters
        self._topics = [topic, letters]
        self._tell = tell
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
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        """The topics must be there."""
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
        except BaseException as error:  # noqa: BLE001 - shown by whoever looks at the play
            self.error = error
        finally:
            self._consumer.close()

    def _take(self, message: Message, now_ms: float) -> None:
        committed_ms = message.timestamp()[1]
        letter = message.topic() == self._letter_topic
        self.letters += letter
        self.ids.add(header(message, "id"))
        self.journeys.append(Delivery(committed_ms, now_ms))
        self.recent.append(
            ReceivedEvent(
                f"{message.topic()}/{message.partition()}@{message.offset()}",
                (message.key() or b"").decode(),
                header(message, "type"),
                header(message, "tailrace.reason").replace("_", " ") if letter else self._text(message),
                letter,
                now_ms - committed_ms,
                now_ms,
            )
        )

    def _text(self, message: Message) -> str:
        return self._tell(json.loads(message.value() or b"{}"))
