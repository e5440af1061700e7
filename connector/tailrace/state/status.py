"""A pipeline's announced state, beside its position on the offsets topic, for `tailrace status` from anywhere.

An instance that waits for another one, or fails beside it, announces that under a key of its own: the state of the
pipeline is that of the instance that runs it.

Written by a short-lived plain producer, never by the transactional one: an announcement must neither fence a healthy
instance nor wait for one. It is news, not truth; the truth about progress is the stored position.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

from confluent_kafka import KafkaException, Producer

from tailrace import __version__
from tailrace.errors import TailraceError
from tailrace.kafka.client import KafkaOptions, admin_config
from tailrace.state.offsets import STATUS_SUFFIX

STANDBY_SUFFIX = "/standby"
ANNOUNCE_TIMEOUT = 2.0
"""A state is not worth waiting for Kafka any longer."""


def status_key(pipeline: str) -> bytes:
    return (pipeline + STATUS_SUFFIX).encode()


def standby_key(pipeline: str) -> bytes:
    return (pipeline + STANDBY_SUFFIX).encode()


def announce(options: KafkaOptions, state: str, error: TailraceError | None = None, *, standby: bool = False) -> bool:
    """Writes `state` to the offsets topic; returns whether it was stored.

    `standby`: another instance runs the pipeline.
    """
    news: dict[str, Any] = {
        "state": state,
        "at_ms": time.time_ns() // 1_000_000,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": __version__,
    }
    if error is not None:
        news["error"] = {"code": error.code, "what": error.what, "why": error.why, "remedy": error.remedy}
    key = standby_key(options.pipeline) if standby else status_key(options.pipeline)
    return _write(options, key, json.dumps(news).encode())


def withdraw_standby(options: KafkaOptions) -> bool:
    """Nobody waits any more."""
    return _write(options, standby_key(options.pipeline), None)


def _write(options: KafkaOptions, key: bytes, value: bytes | None) -> bool:
    try:
        producer = Producer({**admin_config(options), "message.timeout.ms": int(ANNOUNCE_TIMEOUT * 1000)})
        producer.produce(options.offsets_topic, value, key)
        return producer.flush(ANNOUNCE_TIMEOUT) == 0
    except (KafkaException, BufferError):
        return False
