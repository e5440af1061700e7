"""Follows on the offsets topic which instance runs a pipeline and whether it is alive, without trusting any clock.

An instance writes an ownership record once and a heartbeat every second. Another instance that waits for its end
follows the topic: a heartbeat that arrives shows that it is alive; none for a while, that it is not. The timestamp of a
heartbeat does not matter, because clocks differ.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import TopicFollower
from tailrace.positions.base import MALFORMED, Position
from tailrace.state import offsets
from tailrace.state.process_identity import has_ended
from tailrace.state.status import parse_failure, status_key
from tailrace.state.target_state import parse_target, target_key

OWNER_SUFFIX = "/claim"
HEARTBEAT_SUFFIX = "/alive"
HEARTBEAT_SECONDS = 1.0
"""How often an instance that runs a pipeline writes a heartbeat."""
SILENT_SECONDS = 5.0
"""An instance without a heartbeat for this long counts as gone."""
LOOK_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Owner:
    """The instance of an ownership record; `process` identifies it for others on the same machine."""

    instance: str
    host: str = ""
    pid: int = 0
    since_ms: int = 0
    process: str = ""

    def __str__(self) -> str:
        if not self.host:
            return "an instance of an older version"
        at = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(self.since_ms / 1000))
        return f"process {self.pid} on {self.host}, since {at}"


def ownership_key(options: KafkaOptions) -> bytes:
    return (options.pipeline + OWNER_SUFFIX).encode()


def heartbeat_key(options: KafkaOptions) -> bytes:
    return (options.pipeline + HEARTBEAT_SUFFIX).encode()


def ownership_value(owner: Owner) -> bytes:
    return json.dumps(asdict(owner)).encode()


def heartbeat_value(instance: str, *, released: bool = False) -> bytes:
    """`released`: the instance has given the pipeline up."""
    return json.dumps({"instance": instance, "released": released}).encode()


def parse_owner(value: bytes | None) -> Owner | None:
    """Returns None if no instance owns the pipeline. An unknown format still names an instance."""
    if not value or value == b"-":
        return None
    found = _object(value)
    try:
        return Owner(
            str(found["instance"]), str(found["host"]), int(found["pid"]), int(found["since_ms"]), str(found["process"])
        )
    except MALFORMED:
        return Owner(value.decode("utf-8", "replace"))


def is_released(owner: Owner, heartbeat: bytes | None) -> bool:
    """Whether this heartbeat says that the owner has left."""
    found = _object(heartbeat or b"")
    return found.get("instance") == owner.instance and found.get("released") is True


def _object(value: bytes) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except MALFORMED:
        return {}
    return found if isinstance(found, dict) else {}


class OwnerWatch:
    """Follows who owns a pipeline."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._follower = TopicFollower(options, options.offsets_topic, "offsets")
        self._position: bytes | None = None
        self._heartbeat: bytes | None = None
        self._turn = threading.Lock()
        self._looked = False
        self._heard_at = time.monotonic()
        self._heard = False
        self.owner: Owner | None = None
        self.claims = 0
        """How many ownership records were read so far."""
        self.target: str | None = None
        """The stored target state: RUNNING, PAUSED or STOPPED; None if there is none."""
        self.failure = ""
        """The code of the error, if the last announced state is FAILED."""

    def look(self) -> None:
        """Reads what was written since the last call. Raises KafkaUnavailable if that cannot be read."""
        with self._turn:
            first, heard, self._looked = not self._looked, False, False
            for message in self._follower.read(LOOK_TIMEOUT):
                heard = self._note(message.key(), message.value()) or heard
            self._looked = True
            # The age of heartbeats in the first read is not known, nor what was missed while Kafka was unavailable.
            self._heard = not first and (heard or self._heard)
            if first or heard:
                self._heard_at = time.monotonic()

    def _note(self, key: bytes | None, value: bytes | None) -> bool:
        """Whether this record is from the owner."""
        if key == ownership_key(self._options):
            self.owner = parse_owner(value)
            self.claims += 1
            return True
        if key == heartbeat_key(self._options):
            # An instance that was replaced and does not know it yet may still write heartbeats: ignore them.
            ours = self.owner is not None and _object(value or b"").get("instance") == self.owner.instance
            self._heartbeat = value if ours else self._heartbeat
            return ours
        if key == self._options.pipeline.encode():
            self._position = value
        elif key == target_key(self._options.pipeline):
            self.target = parse_target(value)
        elif key == status_key(self._options.pipeline):
            self.failure = parse_failure(value)
        return False

    @property
    def stored(self) -> Position | None:
        """The stored position. Its transaction may still be open: good enough to check a source, not to start at."""
        return None if self._position is None else offsets.parse(self._options, self._position)

    @property
    def is_released(self) -> bool:
        """Whether the owner has given the pipeline up."""
        return self.owner is not None and is_released(self.owner, self._heartbeat)

    @property
    def is_free(self) -> bool:
        """Whether it is certain that no instance runs the pipeline: no owner, or the owner has left or ended."""
        return self.owner is None or self.is_released or has_ended(self.owner.process)

    @property
    def silent_for(self) -> float:
        """Seconds since the owner's last record, at most since the first read."""
        return time.monotonic() - self._heard_at

    @property
    def in_use(self) -> bool:
        """Whether an instance runs the pipeline, or may: its last heartbeat is not old enough yet."""
        return not self.is_free and self.silent_for < SILENT_SECONDS

    @property
    def is_live(self) -> bool:
        """Whether an instance is known to run the pipeline: a heartbeat came while it was followed."""
        return self.in_use and self._heard

    def close(self) -> None:
        self._follower.close()
