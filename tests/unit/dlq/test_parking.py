"""Limits of parked keys: a warning before the limit, an error at the limit."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import pytest

from tailrace.dlq.parked_keys import FIRST, ParkedKey
from tailrace.dlq.parking import HOUR_MS, KEY_BYTES, Parking, ParkingLimits, require_kept
from tailrace.errors import ParkingFull, ParkingUnfit
from tailrace.event import OutboxEvent, Record
from tailrace.kafka.client import KafkaOptions

LETTER = Record("letters", b"{}", b"k", [], 0)
no_admin: Any = None


def event(key: bytes | None) -> OutboxEvent:
    return OutboxEvent("e", "T", "order", key, b"{}", None, "0/1:0", 0, [])


def parking(warnings: list[str], **bounds: float) -> Parking:
    made = Parking(KafkaOptions("localhost:1", "shop"), no_admin, ParkingLimits(**bounds), warn=warnings.append)  # type: ignore[arg-type]
    made._releasing.bound = 7  # the end of the waiting topic, without a broker
    return made


def test_a_key_is_parked_behind_its_dead_letter_from_the_end_of_the_waiting_topic() -> None:
    subject = parking([])
    letter, state = subject.park(event(b"a"), LETTER)
    assert (FIRST, "first") in letter.headers
    assert state.topic == "shop.parking"
    assert subject.keys[("order", b"a")] == ParkedKey(subject.keys[("order", b"a")].since_ms, "0/1:0", 7, event="e")


def test_an_event_without_a_key_or_of_a_parked_key_parks_nothing() -> None:
    subject = parking([])
    assert subject.park(event(None), LETTER) == [LETTER]
    subject.park(event(b"a"), LETTER)
    before = dict(subject.keys)
    assert subject.park(event(b"a"), LETTER) == [LETTER]
    assert subject.keys == before


def test_there_is_one_warning_before_there_are_too_many_keys() -> None:
    warnings: list[str] = []
    subject = parking(warnings, keys=5)
    for number in range(5):
        subject.park(event(str(number).encode()), LETTER)
    assert ["park_keys" in warning for warning in warnings] == [True]
    with pytest.raises(ParkingFull, match="5 keys are parked"):
        subject.park(event(b"one more"), LETTER)


def test_parked_keys_are_limited_in_bytes() -> None:
    subject = parking([])
    large = KEY_BYTES // 8
    for number in range(7):
        subject.park(event(str(number).encode() * large), LETTER)
    with pytest.raises(ParkingFull, match="67,108,864 bytes together"):
        subject.park(event(b"8" * large), LETTER)
    subject._releasing.note(("order", b"0" * large), None)
    subject._releasing.note(("order", b"1" * large), ParkedKey(0, "0/1:0", releasing=True))
    subject.park(event(b"8" * large), LETTER)
    with pytest.raises(ParkingFull, match="7 parked keys"):
        subject.park(event(b"9" * large), LETTER)


@pytest.mark.parametrize(("hours", "warned", "full"), [(7.9, 0, False), (8.1, 1, False), (10.1, 0, True)])
def test_there_is_one_warning_before_a_key_is_parked_for_too_long(hours: float, warned: int, full: bool) -> None:
    warnings: list[str] = []
    subject = parking(warnings, age_hours=10)
    since = time.time_ns() // 1_000_000 - int(hours * HOUR_MS)
    subject.keys[("order", b"a")] = ParkedKey(since, "0/1:0")
    if full:
        with pytest.raises(ParkingFull, match="10 hours"):
            subject.due()
    else:
        assert not subject.due()
        assert not subject.due()
    assert len(warnings) == warned


def test_a_release_comes_before_the_check_of_the_age() -> None:
    subject = parking([], age_hours=1)
    subject._releasing.note(("order", b"a"), ParkedKey(0, "0/1:0", releasing=True))
    assert subject.due()


@pytest.mark.parametrize(("kept", "hours", "passes"), [("-1", 168, True), ("3600000", 1, True), ("3599999", 1, False)])
def test_dead_letters_must_be_kept_as_long_as_keys_may_be_parked(kept: str, hours: float, passes: bool) -> None:
    with nullcontext() if passes else pytest.raises(ParkingUnfit, match="park_hours"):
        require_kept(KafkaOptions("localhost:1", "shop"), {"retention.ms": kept}, ParkingLimits(age_hours=hours))
