"""Writes the state of a pipeline to the offsets topic, so that `tailrace status` can read it from anywhere.

The state of a pipeline is that of the instance that runs it. An instance that waits for another one, or fails while
another one runs, reports that under a separate key.

A short-lived plain producer writes it, never the transactional one: a report must neither fence a healthy instance nor
wait for one. Nothing depends on it; progress is the stored position.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

from confluent_kafka import KafkaException

from tailrace import __version__
from tailrace.errors import TailraceError
from tailrace.kafka.client import KafkaOptions, write_record
from tailrace.positions.base import MALFORMED
from tailrace.state.offsets import STATUS_SUFFIX

STANDBY_SUFFIX = "/standby"
ANNOUNCE_TIMEOUT = 2.0
"""A state is not worth a longer wait."""


def status_key(pipeline: str) -> bytes:
    return (pipeline + STATUS_SUFFIX).encode()


def standby_key(pipeline: str) -> bytes:
    return (pipeline + STANDBY_SUFFIX).encode()


def announce(options: KafkaOptions, state: str, error: TailraceError | None = None, *, standby: bool = False) -> bool:
    """Writes `state` to the offsets topic; returns whether it was stored.

    `standby`: another instance runs the pipeline.
    """
    report: dict[str, Any] = {
        "state": state,
        "at_ms": time.time_ns() // 1_000_000,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": __version__,
    }
    if error is not None:
        report["error"] = {"code": error.code, "what": error.what, "why": error.why, "remedy": error.remedy}
    key = standby_key(options.pipeline) if standby else status_key(options.pipeline)
    return _write(options, key, json.dumps(report).encode())


def parse_failure(value: bytes | None) -> str:
    """Returns the code of the error if the announced state is FAILED; otherwise an empty text."""
    try:
        found = json.loads(value or b"{}")
        return str(found["error"]["code"]) if found["state"] == "FAILED" else ""
    except MALFORMED:
        return ""


def withdraw_standby(options: KafkaOptions) -> bool:
    """Removes the state of a waiting instance."""
    return _write(options, standby_key(options.pipeline), None)


def _write(options: KafkaOptions, key: bytes, value: bytes | None) -> bool:
    try:
        write_record(options, options.offsets_topic, key, value, ANNOUNCE_TIMEOUT)
    except KafkaException:
        return False
    return True
