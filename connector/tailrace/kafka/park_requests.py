"""A person's side of parked keys: asking for the letter in front to be redriven or discarded, and hearing of it.

The pipeline carries it out, for only it can keep the order; if it is not running, at its next start.
"""

from __future__ import annotations

import time

from confluent_kafka import KafkaException, Producer

from tailrace.errors import KafkaUnavailable
from tailrace.kafka.client import MAX_MESSAGE_BYTES, KafkaOptions, admin_config, error_of, translate
from tailrace.kafka.letter_box import LetterBox
from tailrace.kafka.parked import Board, Request, request_record, state_topic

SEND_TIMEOUT = 20.0


def ask(options: KafkaOptions, request: Request) -> None:
    """Writes the request down; returns when Kafka has it."""
    record = request_record(options, request, time.time_ns() // 1_000_000)
    failed: list[object] = []
    try:
        bounds = {"message.timeout.ms": int(SEND_TIMEOUT * 1000), "message.max.bytes": MAX_MESSAGE_BYTES}
        producer = Producer({**admin_config(options), **bounds})
        producer.produce(
            record.topic,
            record.value,
            record.key,
            on_delivery=lambda error, _: failed.append(error) if error is not None else None,
        )
        left = producer.flush(SEND_TIMEOUT)
    except KafkaException as error:
        raise translate(error_of(error), "writing a request down", record.topic) from None
    if left or failed:
        raise KafkaUnavailable(
            f"Kafka did not take the request for letter {request.letter}",
            why=str(failed[0]) if failed else f"No answer within {SEND_TIMEOUT:.0f} s.",
            remedy="Try again.",
        )


def board(options: KafkaOptions, *, final: bool = False) -> Board:
    """What is parked, asked for and answered now. `final`: also what an open transaction still hides."""
    box = LetterBox(options)
    topic = state_topic(options)
    found = Board()
    for message in box.scan(topic, box.spans_of(topic, final=final)):
        found.read(message.key(), message.value())
    return found
