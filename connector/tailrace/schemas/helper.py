"""Checking with a helper: a process beside this one takes over part of a backlog's payloads.

Of events with many fields, checking is most of what a pipeline does, and one Python process uses one core. So the
payloads of a large chunk are cut into blocks: the helper gets them from the front, two at a time, this process takes
them from the back, and somewhere in between they meet. Whoever is quicker does more.

The helper only ever says yes. A payload that it does not accept is checked here as well, and here alone it is decided
and told what is wrong. A helper that dies, hangs or cannot be started is done without: nothing depends on it but speed.
It is started by the first chunk that is worth it, so a pipeline of small events, or of few, never has one.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from tailrace.errors import Rejected
from tailrace.event import OutboxEvent
from tailrace.schemas.checking import UNREAD, Checker, Verdict
from tailrace.schemas.contracts import Contract, Written
from tailrace.schemas.helper_process import ANSWERED, ASKED, DEFINITION, answers, question

MANY = 300
"""Events in a chunk that is worth a helper: a backlog, not the traffic of a quiet day."""
LARGE = 400
"""Bytes of a payload of it: to check smaller ones takes little more than to send them."""
BLOCK = 64
BLOCK_BYTES = 48_000
"""Two blocks and their answers lie in the buffers of a socket: neither side waits for the other to read."""
AHEAD = 2
CONTRACTS = 1000
"""How many the helper is told; the events of further ones are checked here."""
PATIENCE = 5.0
"""Seconds for an answer that takes milliseconds."""

Job = tuple[int, OutboxEvent, Contract]
"""Which event of the chunk, the event, and what it is held to."""


class HelperLost(Exception):
    """It has ended, or answers no more."""


class Helper:
    """The process, as the pipeline's thread sees it."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._poll = select.poll()
        self._ready = self._lost = False
        self._numbers: dict[Contract, int] = {}

    def ready(self) -> bool:
        """Whether it can help; if there is none yet, one is started, for the next time."""
        if self._lost:
            return False
        try:
            if self._channel is None:
                self._start()
            elif not self._ready and self._poll.poll(0):
                self._receive()
                self._ready = True
        except (OSError, HelperLost) as error:
            self.lose(error)
        return self._ready

    def ask(self, jobs: Sequence[Job]) -> None:
        """Sends payloads on their way; raises HelperLost."""
        held_to = [2 * self._numbers[contract] + event.keys_unique for _, event, contract in jobs]
        self._send(question([event.payload or b"" for _, event, _ in jobs], held_to))

    def answered(self, *, wait: bool) -> list[bytes | None] | None:
        """The next answer; None if there is none yet. Raises HelperLost."""
        return self._receive() if wait or self._poll.poll(0) else None

    def knows(self, contract: Contract) -> bool:
        """Whether it may be asked about a contract."""
        if contract not in self._numbers:
            if len(self._numbers) >= CONTRACTS:
                return False
            try:
                definition = orjson.dumps(contract.definition())
            except TypeError:
                return False  # a number in it is too large
            self._numbers[contract] = number = len(self._numbers)
            self._send(ASKED.pack(DEFINITION, number, len(definition)) + definition)
        return True

    def lose(self, why: Exception) -> None:
        """Goes on without it, for good."""
        self._warn(f"the process that helps to check is gone, checking goes on without it: {why!r}")
        self._lost, self._ready = True, False
        self.close()

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(PATIENCE)
        self._poll.register(self._channel, select.POLLIN)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tailrace.schemas.helper_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for this process; the other ends when the channel does
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            )

    def _send(self, data: bytes) -> None:
        assert self._channel is not None  # noqa: S101 - only one that is ready is asked
        try:
            self._channel.sendall(data)
        except OSError as error:
            raise HelperLost(error) from None

    def _receive(self) -> list[bytes | None]:
        count, size = ANSWERED.unpack(self._exactly(ANSWERED.size))
        return answers(count, self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        assert self._channel is not None  # noqa: S101 - only one that is ready is asked
        data = bytearray()
        while len(data) < size:
            try:
                part = self._channel.recv(size - len(data))
            except OSError as error:
                raise HelperLost(error) from None
            if not part:
                raise HelperLost("it has ended")
            data += part
        return bytes(data)


class HelpedChecker:
    """Checks many events at once: the verdict on each is the one that `checker` gives."""

    def __init__(self, checker: Checker, helper: Helper) -> None:
        self._checker = checker
        self._helper = helper

    def ready(self) -> bool:
        return self._helper.ready()

    def check_all(self, events: list[tuple[OutboxEvent, str]]) -> list[Verdict]:
        return check_all(self._checker, events, self._helper)


def check_all(checker: Checker, events: list[tuple[OutboxEvent, str]], helper: Helper) -> list[Verdict]:
    """The verdict on each event and its topic."""
    verdicts: list[Verdict] = [UNREAD] * len(events)
    jobs: list[Job] = []
    for index, (event, topic) in enumerate(events):
        try:
            contract = checker.contract_of(event, topic)
        except Rejected as rejected:
            verdicts[index] = rejected
        else:
            if contract is not None:
                jobs.append((index, event, contract))

    def here(part: Sequence[Job]) -> None:
        for index, event, contract in part:
            try:
                verdicts[index] = checker.judge(event, contract)
            except Rejected as rejected:
                verdicts[index] = rejected

    def settle(part: Sequence[Job], found: list[bytes | None]) -> None:
        for job, answer in zip(part, found, strict=True):
            if answer is None:
                here([job])
            else:
                verdicts[job[0]] = (Written(answer), job[2])

    asked: deque[Sequence[Job]] = deque()
    blocks: deque[Sequence[Job]] = deque()
    try:
        shared: list[Job] = []
        own: list[Job] = []
        for job in jobs:
            sent = len(job[1].payload or b"") <= BLOCK_BYTES and helper.knows(job[2])
            (shared if sent else own).append(job)
        blocks.extend(_blocks(shared))
        while blocks or asked:
            while blocks and len(asked) < AHEAD:
                helper.ask(blocks[0])
                asked.append(blocks.popleft())
            if blocks:
                here(blocks.pop())
            while asked and (found := helper.answered(wait=not blocks)) is not None:
                settle(asked.popleft(), found)
        here(own)
    except HelperLost as error:
        helper.lose(error)
        here([job for job in jobs if verdicts[job[0]] is UNREAD])
    return verdicts


def _blocks(jobs: list[Job]) -> list[list[Job]]:
    """In order, none of them larger than the buffers allow."""
    blocks: list[list[Job]] = []
    room = size = 0
    for job in jobs:
        length = len(job[1].payload or b"")
        if not room or size < length:
            blocks.append([])
            room, size = BLOCK, BLOCK_BYTES
        blocks[-1].append(job)
        room, size = room - 1, size - length
    return blocks
