"""Requests to redrive or discard the dead letters of parked keys, as the command line writes and reads them.

The pipeline carries them out, because only it can keep the order; if it is not running, at its next start.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import KafkaException, Producer

from tailrace.dlq.dead_letter import FIRST, DeadLetter
from tailrace.dlq.parked_keys import (
    Entity,
    GiveUpRequest,
    ParkingRequest,
    ParkingState,
    entity_of,
    request_record,
    state_topic,
    waiting_event,
    waiting_topic,
)
from tailrace.dlq.reader import DeadLetterReader
from tailrace.errors import KafkaUnavailable
from tailrace.kafka.client import MAX_MESSAGE_BYTES, KafkaOptions, admin_config, error_of, require_token, translate
from tailrace.kafka.reader import read_topic

SEND_TIMEOUT = 20.0
AT_ONCE = 10_000
"""Requests that are sent before their delivery is awaited."""


def ask(options: KafkaOptions, requests: Sequence[ParkingRequest | GiveUpRequest]) -> None:
    """Writes the requests; returns when Kafka has stored them."""
    require_token(options)
    failed: list[object] = []
    topic = state_topic(options)
    try:
        bounds = {"message.timeout.ms": int(SEND_TIMEOUT * 1000), "message.max.bytes": MAX_MESSAGE_BYTES}
        producer = Producer({**admin_config(options), **bounds})
        left = 0
        for number, request in enumerate(requests, 1):
            record = request_record(options, request, time.time_ns() // 1_000_000)
            producer.produce(
                record.topic,
                record.value,
                record.key,
                on_delivery=lambda error, _: failed.append(error) if error is not None else None,
            )
            if number % AT_ONCE == 0 or number == len(requests):
                left = producer.flush(SEND_TIMEOUT)
            if left or failed:
                break
    except KafkaException as error:
        raise translate(error_of(error), "writing a request", topic) from None
    if left or failed:
        raise KafkaUnavailable(
            f"Kafka did not store all requests, such as that at {request.position}",
            why=str(failed[0]) if failed else f"No answer within {SEND_TIMEOUT:.0f} s.",
            remedy="Run it again. No request is carried out twice.",
        )


def parking_state(options: KafkaOptions, *, final: bool = False) -> ParkingState:
    """Reads the parked keys, requests and answers. `final` waits for open transactions."""
    found = ParkingState()
    for message in read_topic(options, state_topic(options), include_open=final):
        found.read(message.key(), message.value())
    return found


def waiting_counts(options: KafkaOptions, found: ParkingState) -> Counter[Entity]:
    """How many events wait behind each parked key."""
    counts = Counter[Entity]()
    if not found.keys:
        return counts
    with closing(read_topic(options, waiting_topic(options))) as messages:
        for message in messages:
            headers: Any = message.headers()
            entity = entity_of(waiting_event(headers, message.value() or b""))
            state = None if entity is None else found.keys.get(entity)
            if entity is not None and state is not None and (message.offset() or 0) >= state.released:
                counts[entity] += 1
    return counts


def first_letters(options: KafkaOptions, found: ParkingState) -> dict[Entity, DeadLetter | None]:
    """The dead letter of each parked key that is not being released; None where it is gone."""
    positions = {state.place: entity for entity, state in found.keys.items() if not state.releasing}
    letters: dict[Entity, DeadLetter | None] = dict.fromkeys(positions.values())
    if positions:
        reader = DeadLetterReader(options)
        with closing(reader.dead_letters(reader.ranges(include_open=True))) as there:
            for letter in there:
                if FIRST in letter.details and letter.position in positions:
                    letters[positions[letter.position]] = letter
    return letters
