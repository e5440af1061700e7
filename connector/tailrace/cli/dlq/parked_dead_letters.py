"""Asks the pipeline to redrive or discard the dead letters of parked keys, because only it can keep the order."""

from __future__ import annotations

import threading
import time

from tailrace.cli.dlq.results import ResolutionReport
from tailrace.dlq import requests
from tailrace.dlq.dead_letter import DeadLetter
from tailrace.dlq.parked_keys import FIRST, ParkingRequest, ParkingState
from tailrace.dlq.redrive import RedriveItem
from tailrace.kafka.client import KafkaOptions

ANSWER_SECONDS = 30.0
"""A running pipeline reads requests twice a second. The wait goes on as long as it makes progress."""
LOOK_SECONDS = 0.5
STILL = (
    "A pipeline reads schemas and rules when it starts. If they were fixed, restart it, then redrive again. Until then "
    "the key stays parked."
)


class ParkedDeadLetterRequests:
    """Collects and sends requests for the dead letters of parked keys."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._positions = {state.place for state in requests.parking_state(options, final=True).keys.values()}
        self._letters: list[DeadLetter] = []
        self._requests: list[ParkingRequest] = []

    def __contains__(self, letter: DeadLetter) -> bool:
        return FIRST in letter.details and letter.position in self._positions

    def add(self, letter: DeadLetter, item: RedriveItem) -> None:
        """Adds a request; it contains the payload only if that was changed."""
        resolution = item.resolution
        self._requests.append(
            ParkingRequest(
                letter.id,
                "discard" if resolution.action == "discarded" else "redrive",
                letter.position,
                resolution.by,
                resolution.why,
                None if item.letter is letter else item.letter.value,
            )
        )
        self._letters.append(letter)

    def send(self, outcome: ResolutionReport) -> None:
        """Sends all requests at once, waits for the answers of the pipeline, and reports them."""
        if not self._requests:
            return
        requests.ask(self._options, self._requests)
        deadline, pause = time.monotonic() + ANSWER_SECONDS, threading.Event()
        waiting = self._letters
        while waiting and time.monotonic() < deadline:
            parking_state = requests.parking_state(self._options, final=True)
            left = [letter for letter in waiting if not self._report(letter, parking_state, outcome)]
            if len(left) < len(waiting):
                deadline = time.monotonic() + ANSWER_SECONDS  # it makes progress
            waiting = left
            if waiting:
                pause.wait(LOOK_SECONDS)
        for letter in waiting:
            outcome.report(letter, "requested", ": the pipeline does it when it runs")

    def _report(self, letter: DeadLetter, parking_state: ParkingState, outcome: ResolutionReport) -> bool:
        """Reports the result of a request; False if it is not known yet."""
        if letter.id in parking_state.requests:
            return False
        state = parking_state.keys.get((letter.details.get("tailrace.aggregate", ""), letter.key or b""))
        if letter.id in parking_state.answers:
            outcome.failed(letter, letter.reason, parking_state.answers[letter.id], STILL)
        elif state is None:
            outcome.report(letter, "released", ", with all events that waited behind it")
        elif state.releasing:
            return False
        else:
            outcome.report(letter, "released", "; an event that waited behind it is the first of the key now")
        return True
