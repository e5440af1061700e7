"""A pipeline's announced state, beside its position on the offsets topic, for `tailrace status` from anywhere.

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
from tailrace.kafka.offsets import STATUS_SUFFIX

ANNOUNCE_TIMEOUT = 2.0
"""A state is not worth waiting for Kafka any longer."""


def status_key(pipeline: str) -> bytes:
    return (pipeline + STATUS_SUFFIX).encode()


def announce(options: KafkaOptions, state: str, error: TailraceError | None = None) -> bool:
    """Tells the offsets topic about `state`; returns whether it was heard."""
    news: dict[str, Any] = {
        "state": state,
        "at_ms": time.time_ns() // 1_000_000,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": __version__,
    }
    if error is not None:
        news["error"] = {"code": error.code, "what": error.what, "why": error.why, "remedy": error.remedy}
    try:
        producer = Producer({**admin_config(options), "message.timeout.ms": int(ANNOUNCE_TIMEOUT * 1000)})
        producer.produce(options.offsets_topic, json.dumps(news).encode(), status_key(options.pipeline))
        return producer.flush(ANNOUNCE_TIMEOUT) == 0
    except (KafkaException, BufferError):
        return False
