"""The waiting topic of a pipeline, read from the front to the end by a consumer that stays open between turns."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tailrace.dlq.parked_keys import waiting_topic
from tailrace.dlq.reader import AT_ONCE, MISSING, PASSING, QUEUE_KBYTES, SILENCE_SECONDS
from tailrace.errors import KafkaUnavailable
from tailrace.kafka.client import KafkaOptions, consumer_config, error_of, translate, unusable

ASK_TIMEOUT = 15.0
POLL_SECONDS = 0.05


class WaitingEvents:
    """Reads committed records of the waiting topic. Belongs to one thread."""

    def __init__(self, options: KafkaOptions, admin: AdminClient) -> None:
        self._options = options
        self._admin = admin
        self._topic = waiting_topic(options)
        self._consumer: Consumer | None = None
        self._silent = 0.0
        self.position = 0
        """Everything below has been read."""

    def end(self) -> int:
        """Where the topic ends. Open transactions count: Kafka may answer a commit before readers see its records."""
        latest: Any = OffsetSpec  # untyped in the driver
        try:
            asked = {TopicPartition(self._topic, 0): latest.latest()}
            (answer,) = self._admin.list_offsets(asked, request_timeout=ASK_TIMEOUT).values()
            return int(answer.result(ASK_TIMEOUT).offset)
        except KafkaException as error:
            why = error_of(error)
            if why.code() in MISSING:
                raise KafkaUnavailable(
                    f"a broker does not know {self._topic}, which is there",
                    why="It has just come up, or the topic has just been created.",
                    remedy="Tailrace tries again by itself.",
                ) from None
            raise translate(why, f"asking for the end of {self._topic}", self._topic) from None

    def seek(self, offset: int) -> None:
        """Goes on reading from `offset`."""
        try:
            if self._consumer is None:
                group = f"tailrace-waiting-{self._options.pipeline}"
                bounds = {"queued.max.messages.kbytes": QUEUE_KBYTES}
                self._consumer = Consumer({**consumer_config(self._options, group), **bounds})
            self._consumer.assign([TopicPartition(self._topic, 0, offset)])
        except KafkaException as error:
            raise unusable(error) from None
        self.position = offset
        self._silent = 0.0

    def read(self) -> list[Message]:
        """The next records; none if none came for a moment. KafkaUnavailable if none came for long."""
        found: list[Message] = []
        before, began = self.position, time.monotonic()
        for message in self._consumer.consume(num_messages=AT_ONCE, timeout=POLL_SECONDS) if self._consumer else ():
            error: Any = message.error()
            offset = int(message.offset() or 0)
            if error is None:
                found.append(message)
                self.position = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self.position = max(self.position, offset)  # it counts control records, which no message shows
            elif error.code() not in PASSING:
                raise translate(error, f"reading {self._topic}", self._topic)
        # Only the time spent here is Kafka's.
        self._silent = 0.0 if self.position > before else self._silent + time.monotonic() - began
        if self._silent > SILENCE_SECONDS:
            raise KafkaUnavailable(
                f"the end of {self._topic} could not be read within {SILENCE_SECONDS:.0f} s",
                why="A hanging transaction holds it back, or Kafka is too slow.",
                remedy="Tailrace tries again by itself; `kafka-transactions find-hanging` names the culprit.",
            )
        return found

    def pause(self) -> None:
        """Fetches nothing until the next `seek`."""
        if self._consumer is not None:
            self._consumer.unassign()

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
