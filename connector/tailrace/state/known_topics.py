"""Which topics a pipeline may ever have written to: its rules, remembered beside its position on the offsets topic.

Rules change, and what was published under earlier ones stays where it is. Every set of rules (the template and the
declared topics) that a pipeline was started with is kept under a key of its own, written before anything is published
with it; so whoever compares the outbox with Kafka looks there, too. The position history names topics as well, but
later, and not for longer than it is kept.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import NamedTuple

from confluent_kafka import KafkaException, Producer

from tailrace.errors import KafkaUnavailable
from tailrace.kafka.client import KafkaOptions, admin_config, error_of, translate
from tailrace.state.offsets import read_keys

SUFFIX = "/topics/"
TIMEOUT = 30.0


class KnownTopics(NamedTuple):
    """`complete`: the first rules were remembered at the pipeline's first start, so no others were ever used."""

    topics: frozenset[str] = frozenset()
    templates: tuple[str, ...] = ()
    complete: bool = False


def remember(options: KafkaOptions, topics: Collection[str], template: str | None, existing: Collection[str]) -> None:
    """Writes today's rules unless they are there. KafkaUnavailable if that fails: nothing may be published then.

    `existing` are the topics of the cluster: a pipeline that has a dead-letter topic has run before, also if nothing
    else tells it.
    """
    told = {"topics": sorted(topics), "template": template}
    key = f"{options.pipeline}{SUFFIX}{sha256(json.dumps(told).encode()).hexdigest()[:16]}".encode()
    found = read_keys(options, None, committed=False)
    if key in found:
        return
    first = options.pipeline.encode() not in found and options.dead_letter_topic not in existing
    failed: list[KafkaException] = []
    try:
        producer = Producer({**admin_config(options), "message.timeout.ms": int(TIMEOUT * 1000)})
        producer.produce(
            options.offsets_topic,
            json.dumps({**told, "first": first}).encode(),
            key,
            on_delivery=lambda error, _: failed.append(KafkaException(error)) if error is not None else None,
        )
        left = producer.flush(TIMEOUT)
    except (KafkaException, BufferError) as error:
        raise KafkaUnavailable(f"writing the pipeline's topic rules: {error}", remedy="It is tried again.") from None
    if failed:
        raise translate(error_of(failed[0]), "writing the pipeline's topic rules", options.offsets_topic)
    if left:
        raise KafkaUnavailable("writing the pipeline's topic rules: no answer", remedy="It is tried again.")


def recall(pipeline: str, found: Mapping[bytes, bytes]) -> KnownTopics:
    """The rules of a pipeline, from the keys of the offsets topic; what is not readable is not among them."""
    topics: set[str] = set()
    templates: list[str] = []
    complete = False
    for key, value in found.items():
        if not key.startswith(f"{pipeline}{SUFFIX}".encode()):
            continue
        try:
            told = json.loads(value)
            topics.update(map(str, told["topics"]))
            if told["template"]:
                templates.append(str(told["template"]))
            complete |= bool(told["first"])
        except (ValueError, KeyError, TypeError):
            continue
    return KnownTopics(frozenset(topics), tuple(templates), complete)
