"""Facts about a pipeline's dead letters and the events that wait behind parked keys, for `tailrace verify`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from tailrace.dlq import requests
from tailrace.dlq.dead_letter import FIRST, DeadLetter, DeadLetterId
from tailrace.dlq.parked_keys import entity_of, waiting_event, waiting_topic
from tailrace.dlq.reader import DeadLetterReader
from tailrace.dlq.resolutions import PUBLISHED as PUBLISHED_ACTIONS
from tailrace.dlq.resolutions import Resolution, dead_letter_id_of, event_of, resolutions_topic
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import read_topic
from tailrace.verify.backend import Window
from tailrace.verify.findings import AGAIN, DEAD_LETTERS, DISCARDED, IS_ROW, OUTSIDE, REDRIVEN, UNKNOWN, WAITING
from tailrace.verify.fingerprints import RecordFingerprinter, of_payload
from tailrace.verify.spill import FactSink
from tailrace.verify.topic_scan import REPLAY


def row_name(digest: str) -> str:
    """Returns the name of a row that cannot be decoded and has no id: the hash that is in its dead letter as well."""
    return f"row {digest}"


class DeadLetterFacts:
    """Adds DEAD_LETTERS and WAITING facts to `facts`. `place` returns the number of a partition."""

    def __init__(
        self,
        kafka: KafkaOptions,
        fingerprinter: RecordFingerprinter,
        window: Window,
        facts: FactSink,
        place: Callable[[str, int], int],
    ) -> None:
        self._kafka = kafka
        self._fingerprinter = fingerprinter
        self._window = window
        self._facts = facts
        self._place = place
        self.keys_without_dead_letter: dict[str, str] = {}
        """The ids (if known), by position, of events that parked keys wait behind while their dead letter is gone."""
        self._given_up: set[str] = set()
        """Ids of events that were discarded without a dead letter."""

    def read_dead_letters(self) -> None:
        """Reads all dead letters with their resolutions; replaces the DEAD_LETTERS facts."""
        self._facts.clear(DEAD_LETTERS)
        reader = DeadLetterReader(self._kafka)
        # The ranges first, so that a resolution written later is seen.
        ranges = reader.ranges()
        resolutions = self._resolutions()
        for event in self._given_up:
            # Before the dead letters: if the event has one after all, that one counts.
            place = self._place(resolutions_topic(self._kafka), 0)
            self._facts.add(DEAD_LETTERS, event, (event, UNKNOWN, 0, DISCARDED | AGAIN | OUTSIDE, place, 0))
        with closing(reader.dead_letters(ranges, copies=True)) as letters:
            for letter in letters:
                if FIRST in letter.details:
                    self.keys_without_dead_letter.pop(letter.position, None)
                flags = _flags(letter, resolutions) | (0 if letter.committed_ms in self._window else OUTSIDE)
                flags |= AGAIN if REPLAY in letter.details else 0
                digest = letter.details.get("tailrace.payload.sha256", "")
                name = row_name(digest) if letter.event_id is None else letter.event_id
                payload = of_payload(None) if letter.is_row else self._payload(letter)
                place = self._place(self._kafka.dead_letter_topic, letter.id.partition)
                self._facts.add(DEAD_LETTERS, name, (name, *payload, flags, place, letter.id.offset))
        for event in filter(None, self.keys_without_dead_letter.values()):
            # It is still the first of its key: `recover` must not publish it behind the others.
            self._facts.add(WAITING, event, (event,))

    def read_waiting(self) -> None:
        """Reads the events that wait behind parked keys; replaces the WAITING facts."""
        self._facts.clear(WAITING)
        keys = requests.parking_state(self._kafka).keys
        # `read_dead_letters` removes those that have a dead letter.
        self.keys_without_dead_letter = {state.place: state.event for state in keys.values() if not state.releasing}
        if not keys:
            return
        with closing(read_topic(self._kafka, waiting_topic(self._kafka))) as messages:
            for message in messages:
                headers: Any = message.headers()
                event = waiting_event(headers, message.value() or b"")
                entity = entity_of(event)
                state = None if entity is None else keys.get(entity)
                if state is not None and (message.offset() or 0) >= state.released:
                    self._facts.add(WAITING, event.id, (event.id,))

    def _payload(self, letter: DeadLetter) -> tuple[int, int]:
        return self._fingerprinter.of_dead_letter(letter.kind, letter.value)

    def _resolutions(self) -> dict[DeadLetterId | str, Resolution]:
        """Returns resolutions by dead letter, and by the fingerprint of the dead letter and its copies."""
        found: dict[DeadLetterId | str, Resolution] = {}
        with closing(read_topic(self._kafka, resolutions_topic(self._kafka))) as messages:
            for message in messages:
                letter, value = dead_letter_id_of(message.key()), message.value()
                if letter is None:
                    if (event := event_of(message.key())) is not None:
                        self._given_up.add(event)
                    continue
                if value is None:
                    found.pop(letter, None)
                else:
                    mark = Resolution.parse(value)
                    short = Resolution(mark.action, position=mark.position)  # user and reason would fill the memory
                    found[letter] = short
                    if mark.fingerprint is not None:
                        found[mark.fingerprint] = short
        return found


def _flags(letter: DeadLetter, resolutions: Mapping[DeadLetterId | str, Resolution]) -> int:
    flags = IS_ROW if letter.is_row else 0
    mark = resolutions.get(letter.id)
    if mark is None or not mark.is_of(letter):
        mark = resolutions.get(letter.fingerprint or "")
    if mark is None:
        return flags
    # A resolution that cannot be parsed counts as well, but promises no record.
    return flags | (REDRIVEN if mark.action in PUBLISHED_ACTIONS else DISCARDED)
