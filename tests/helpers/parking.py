"""A shop whose pipeline parks keys, and helpers to inspect and resolve its parked keys."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Message

from helpers.shop import Shop
from tailrace.config.load import load_pipeline
from tailrace.dlq import requests as park_requests
from tailrace.dlq.dead_letter import DeadLetterId
from tailrace.dlq.parked_keys import ParkingRequest, ParkingState
from tailrace.kafka.client import KafkaOptions
from tailrace.testkit.stack import StackError, wait_until
from tailrace.testkit.topic_reader import header, read_all
from tailrace.worker.options import kafka_options

BAD = json.dumps({"order": "x"})


def good(revision: int) -> str:
    return json.dumps({"order": "o", "revision": revision, "amount": 1.5, "currency": "EUR"})


@pytest.fixture
def parking(shop: Shop) -> Shop:
    shop.configure(on_invalid="park")
    return shop


def options(shop: Shop) -> KafkaOptions:
    return kafka_options(load_pipeline(shop.file))


def parking_state(shop: Shop, *, final: bool = True) -> ParkingState:
    """`final` waits for open transactions: that of a killed connector ends after a minute or at the next start."""
    return park_requests.parking_state(options(shop), final=final)


def letters(shop: Shop) -> list[Message]:
    return read_all(shop.kafka.bootstrap, [shop.letters])


def name_of(message: Message) -> DeadLetterId:
    return DeadLetterId(int(message.partition() or 0), int(message.offset() or 0))


def first_letters(shop: Shop, *, final: bool = True) -> list[Message]:
    """Returns the dead letters that events wait behind now."""
    positions = {state.place for state in parking_state(shop, final=final).keys.values()}
    return [message for message in letters(shop) if header(message, "tailrace.position") in positions]


def ask(shop: Shop, letters: Message | list[Message], action: str, payload: str | None = None) -> None:
    requests = [
        ParkingRequest(
            name_of(message),
            "discard" if action == "discard" else "redrive",
            header(message, "tailrace.position"),
            "ann@host",
            "a test",
            None if payload is None else payload.encode(),
        )
        for message in (letters if isinstance(letters, list) else [letters])
    ]
    park_requests.ask(options(shop), requests)


def ids(shop: Shop, key: str) -> list[str]:
    """Returns the ids of the published events of a key, in order."""
    return [seen.id for seen in shop.published() if seen.key == key]


def arrived(shop: Shop, *events: str) -> None:
    try:
        wait_until(lambda: set(events) <= {seen.id for seen in shop.published()}, 60)
    except StackError:
        pytest.fail(f"not all events arrived; {parking_state(shop).answers}, {shop.connectors[-1].log}")


def parked(shop: Shop, count: int = 1) -> None:
    wait_until(
        lambda: len(parking_state(shop).keys) == count, 60, what=f"{count} parked keys, not {parking_state(shop).keys}"
    )
