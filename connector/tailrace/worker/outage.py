"""The wait between two attempts, cut short when the server that was away answers again.

Delays grow with an outage, so that nobody is disturbed by attempts that must fail; the last of them would be waited
out after the server's return. So a cheap question is asked every few seconds, in a thread of its own: a request to stop
must not wait for a server that is silent. Only a server that was silent before and answers now ends a wait early. One
that answers all the time fails for another reason, and attempts must not become a tight loop.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from random import random
from typing import NamedTuple
from urllib.parse import urlsplit

PROBE_SECONDS = 2.0
"""How often the question is asked."""
SETTLE_SECONDS = 1.0
"""An attempt begins at a random moment within this time of the answer: many pipelines may wait for one server."""
ASK_SECONDS = 2.0
STOP_SECONDS = 0.1
"""How soon an answer or a request to stop is noticed."""


class Probe(NamedTuple):
    """A question to one server: whether it answers, asked anew by each call, which must be bounded in time."""

    server: str
    answers: Callable[[], bool]


def listens(url: str) -> bool:
    """Whether something accepts connections at the host and port of an address."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), ASK_SECONDS).close()
    except OSError:
        return False
    return True


class ServerOutage:
    """Remembers, over the waits of one outage, which servers were silent when they were last asked."""

    def __init__(self, say: Callable[[str, str], None] = lambda *_: None, *, every: float = PROBE_SECONDS) -> None:
        """`say` is given what happens, and of which server, from any thread."""
        self._say = say
        self._every = every
        self._silent: set[str] = set()

    def end(self) -> None:
        """The pipeline runs again."""
        self._silent.clear()

    def wait(self, seconds: float, stopped: threading.Event, probe: Probe | None) -> bool:
        """Waits that long, or until stopped. True if it was cut short because the server is back."""
        if probe is None:
            stopped.wait(seconds)
            return False
        back, over = threading.Event(), threading.Event()
        threading.Thread(target=self._ask, args=(probe, back, over), name="probe", daemon=True).start()
        deadline = time.monotonic() + seconds
        while not (back.is_set() or stopped.is_set()) and (left := deadline - time.monotonic()) > 0:
            stopped.wait(min(STOP_SECONDS, left))
        over.set()
        if back.is_set():
            settle = SETTLE_SECONDS * random()  # noqa: S311 - spread, not secrecy
            stopped.wait(min(settle, max(0.0, deadline - time.monotonic())))
        return back.is_set()

    def _ask(self, probe: Probe, back: threading.Event, over: threading.Event) -> None:
        while not over.is_set():
            answers = probe.answers()
            if over.is_set():
                return
            if not answers and probe.server not in self._silent:
                self._silent.add(probe.server)
                self._say("no answer", probe.server)
            elif answers and probe.server in self._silent:
                self._silent.discard(probe.server)
                self._say("answers again", probe.server)
                back.set()
                return
            over.wait(self._every)
