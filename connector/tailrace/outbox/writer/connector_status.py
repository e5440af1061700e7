"""The state of the pipeline, read over HTTP from the worker that runs it: `Outbox(worker=…)`.

The standard library's client is imported with the first request. A worker that does not answer is an answer as well:
what the database shows does not depend on it.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tailrace.errors import ConfigError
from tailrace.outbox.writer.pressure import Pressure
from tailrace.outbox.writer.requests import Call, Steps
from tailrace.outbox.writer.worker_connection import authorization, open_connection

if TYPE_CHECKING:
    from urllib.parse import SplitResult

FRESH_SECONDS = 1.0
"""A worker's own knowledge is up to a second old."""
TIMEOUT_SECONDS = 0.5
PATIENCE = 10
"""A slow answer is used for this many times as long as it took, so that services do not spend their time on it."""
MOST_BYTES = 1_000_000
READING = frozenset({"RUNNING", "WAITING"})
"""States in which the pipeline is read: by this worker, or by another instance for which this one waits."""
OBSERVED = frozenset({"RUNNING", "RETRYING"})
"""States in which the process of the pipeline measures its lag."""
STILL = frozenset({"PAUSED", "STOPPED"})


@dataclass(frozen=True, slots=True)
class ConnectorStatus:
    """What a worker says about a pipeline. `running` and `state` are None if that is not known."""

    running: bool | None
    state: str | None
    sentence: str
    remedy: str | None = None
    lag: dict[str, Any] = field(default_factory=dict)

    def added_to(self, pressure: Pressure) -> Pressure:
        """Returns the pressure with this status. What the database shows itself is kept."""
        return Pressure(
            self.running if pressure.running is None else pressure.running,
            _number(self.lag.get("bytes")) if pressure.lag_bytes is None else pressure.lag_bytes,
            _seconds(self.lag.get("seconds")) if pressure.lag_seconds is None else pressure.lag_seconds,
            _number(self.lag.get("events")) if pressure.pending_events is None else pressure.pending_events,
            f"{pressure.explanation}; {self.sentence}",
            self.state,
            self.remedy,
        )


class StatusReader:
    """Asks a worker for one pipeline, at most once a second. Shared by threads: at worst, two ask at once."""

    def __init__(self, worker: str, pipeline: str | None) -> None:
        from urllib.parse import quote

        self._address = _require_address(worker)
        if not pipeline:
            raise ConfigError(
                f"worker={worker!r} has no effect without a pipeline",
                why="A worker runs several pipelines, and is asked for one of them.",
                remedy="Give Outbox(pipeline=…) its name.",
            )
        self._pipeline = pipeline
        self._base = f"{self._address.scheme}://{self._address.netloc}{self._address.path.rstrip('/')}"
        self._path = f"{self._address.path.rstrip('/')}/api/v1/pipelines/{quote(pipeline, safe='')}"
        self._last: ConnectorStatus | None = None
        self._until = 0.0

    def steps(self) -> Steps[ConnectorStatus]:
        last = self._last
        if last is None or time.monotonic() >= self._until:
            last = yield Call(self.read)
        return last

    def read(self) -> ConnectorStatus:
        """Asks the worker. Blocks for about half a second at most."""
        from http.client import HTTPException

        began = time.monotonic()
        try:
            found = self._status(*self._get())
        except ConfigError as error:
            found = self._silent(error.what)
        except (OSError, HTTPException, ValueError) as error:
            found = self._silent(getattr(error, "strerror", None) or str(error) or type(error).__name__)
        now = time.monotonic()
        self._until = now + max(FRESH_SECONDS, PATIENCE * (now - began))
        self._last = found
        return found

    def _get(self) -> tuple[int, Any]:
        """Returns the status of the answer and its JSON."""
        headers = {"Accept": "application/json", "Connection": "close", **authorization(self._address)}
        # Host and port are valid: the address was checked.
        connection = open_connection(self._address, self._address.port, TIMEOUT_SECONDS)
        try:
            connection.request("GET", self._path, headers=headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read(MOST_BYTES))
        finally:
            connection.close()

    def _status(self, code: int, answer: object) -> ConnectorStatus:
        if not isinstance(answer, dict) or (code == 200 and not isinstance(answer.get("state"), str)):
            return self._silent(f"its answer is not that of a worker, HTTP {code}")
        if code != 200:
            said = f"the worker at {self._base} says: {answer.get('what') or f'HTTP {code}'}"
            return ConnectorStatus(None, None, said, _text(answer.get("remedy")))
        state, error = answer["state"], answer.get("error")
        is_read = state in READING
        sentence = f"the pipeline {self._pipeline} is {state}"
        if state == "WAITING":
            sentence += ": another instance runs it"
        remedy = None
        if isinstance(error, dict) and not is_read:
            sentence += f": {error.get('what')}"
            remedy = _text(error.get("remedy"))
        if state in STILL:
            remedy = f"Resume it: POST {self._base}/api/v1/pipelines/{self._pipeline}/resume"
        lag = answer.get("lag") if state in OBSERVED else None
        return ConnectorStatus(is_read, state, sentence, remedy, lag if isinstance(lag, dict) else {})

    def _silent(self, reason: str) -> ConnectorStatus:
        sentence = f"the worker at {self._base} does not answer ({reason}), so the state of the pipeline is not known"
        return ConnectorStatus(None, None, sentence, "Start the worker, or correct Outbox(worker=…).")


def _require_address(worker: str) -> SplitResult:
    from urllib.parse import urlsplit

    try:
        found = urlsplit(worker)
        valid = found.scheme in ("http", "https") and found.hostname and found.port != 0 and "@" not in found.netloc
    except ValueError:  # a port that is no number, or half an IPv6 address
        valid = False
    if not valid or found.query or found.fragment:
        raise ConfigError(
            "Outbox(worker=…) is not the address of a worker",  # not shown: it may contain a password
            why="It is the HTTP address of `tailrace worker` or `tailrace run --http`, without a user.",
            remedy='Write it like worker="http://127.0.0.1:8083".',
        )
    return found


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _number(value: object) -> int | None:
    return round(value) if isinstance(value, int | float) else None
