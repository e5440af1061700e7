"""Letters that others wait behind: the pipeline itself redrives and discards them, for it alone keeps the order."""

from __future__ import annotations

import threading
import time

from tailrace.cli.dlq.results import Outcome
from tailrace.dlq import requests
from tailrace.dlq.dead_letter import DeadLetter
from tailrace.dlq.parked_keys import FIRST, ParkingState, Request
from tailrace.dlq.redrive import RedriveItem
from tailrace.kafka.client import KafkaOptions

ANSWER_SECONDS = 30.0
"""A pipeline that runs looks for requests twice a second; it is waited for as long as it gets on."""
LOOK_SECONDS = 0.5
STILL = (
    "A pipeline reads schemas and rules when it starts: restart it if they were mended, then redrive again. Until then "
    "the letter stays in front of its key."
)


class Fronts:
    """The letters in front of parked keys, and what was asked about them."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._places = {state.place for state in requests.board(options, final=True).keys.values()}
        self._asked: list[DeadLetter] = []
        self._requests: list[Request] = []

    def __contains__(self, letter: DeadLetter) -> bool:
        return FIRST in letter.details and letter.position in self._places

    def ask(self, letter: DeadLetter, posting: RedriveItem) -> None:
        """Notes what is to be asked for; the payload only if it is another than the letter's own."""
        mark = posting.mark
        self._requests.append(
            Request(
                letter.id,
                "discard" if mark.action == "discarded" else "redrive",
                letter.position,
                mark.by,
                mark.why,
                None if posting.letter is letter else posting.letter.value,
            )
        )
        self._asked.append(letter)

    def tell(self, outcome: Outcome) -> None:
        """Asks for all of it at once, waits for the pipeline's answers, and reports them."""
        if not self._requests:
            return
        requests.ask(self._options, self._requests)
        deadline, pause = time.monotonic() + ANSWER_SECONDS, threading.Event()
        waiting = self._asked
        while waiting and time.monotonic() < deadline:
            board = requests.board(self._options, final=True)
            left = [letter for letter in waiting if not self._told(letter, board, outcome)]
            if len(left) < len(waiting):
                deadline = time.monotonic() + ANSWER_SECONDS  # it is at work
            waiting = left
            if waiting:
                pause.wait(LOOK_SECONDS)
        for letter in waiting:
            outcome.tell(letter, "requested", ": the pipeline does it when it runs")

    def _told(self, letter: DeadLetter, board: ParkingState, outcome: Outcome) -> bool:
        """Reports what became of a request; False if that is not known yet."""
        if letter.id in board.requests:
            return False
        state = board.keys.get((letter.details.get("tailrace.aggregate", ""), letter.key or b""))
        if letter.id in board.answers:
            outcome.failed(letter, letter.reason, board.answers[letter.id], STILL)
        elif state is None:
            outcome.tell(letter, "released", ", and all that waited behind it")
        elif state.releasing:
            return False
        else:
            outcome.tell(letter, "released", "; one that waited behind it is in front of the key now")
        return True
