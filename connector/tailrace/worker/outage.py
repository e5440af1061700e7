"""Waits between two attempts, and ends the wait early when an unavailable server answers again.

Delays grow during an outage, so without this the last delay would be waited out after the server is back. A cheap probe
runs every few seconds in its own thread, because a request to stop must not wait for a server. Only a server that did
not answer before and answers now ends the wait: a server that answers all the time fails for another reason, and
attempts must not become a tight loop.
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
"""The time between two probes."""
SETTLE_SECONDS = 1.0
"""An attempt begins at a random moment within this time: many pipelines may wait for one server."""
CONNECT_SECONDS = 2.0
STOP_SECONDS = 0.1
"""How often the wait checks for an answer or a request to stop."""


class ServerProbe(NamedTuple):
    """A test whether a server answers. Each call asks again, and must be bounded in time."""

    server: str
    answers: Callable[[], bool]


def listens(url: str) -> bool:
    """Whether something accepts connections at the host and port of an address."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


class ServerOutage:
    """Remembers during an outage which servers did not answer the last probe."""

    def __init__(self, say: Callable[[str, str], None] = lambda *_: None, *, every: float = PROBE_SECONDS) -> None:
        """`say` is called with an event and the server, from any thread."""
        self._say = say
        self._every = every
        self._unavailable: set[str] = set()

    def end(self) -> None:
        """Forgets the outage: the pipeline runs again."""
        self._unavailable.clear()

    def wait(self, seconds: float, stopped: threading.Event, probe: ServerProbe | None) -> bool:
        """Waits that long, or until stopped. Returns True if the server answered and the wait ended early."""
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

    def _ask(self, probe: ServerProbe, back: threading.Event, over: threading.Event) -> None:
        while not over.is_set():
            answers = probe.answers()
            if over.is_set():
                return
            if not answers and probe.server not in self._unavailable:
                self._unavailable.add(probe.server)
                self._say("no answer", probe.server)
            elif answers and probe.server in self._unavailable:
                self._unavailable.discard(probe.server)
                self._say("answers again", probe.server)
                back.set()
                return
            over.wait(self._every)
