"""Remembers on the offsets topic which topics a pipeline may ever have written to.

Rules change, and what was published under earlier ones stays where it is. Every set of rules (the template and the
declared topics) that a pipeline was started with is stored under its own key, before anything is published with it, so
that a comparison of the outbox with Kafka reads those topics, too. The position history names topics as well, but
later, and only as long as its entries are kept.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import NamedTuple

from confluent_kafka import KafkaException

from tailrace.kafka.client import KafkaOptions, error_of, translate, write_record
from tailrace.positions.base import MALFORMED
from tailrace.state.offsets import read_keys

SUFFIX = "/topics/"
TIMEOUT = 30.0


class KnownTopics(NamedTuple):
    """`complete`: rules were stored from the pipeline's first start on, so no others were ever used."""

    topics: frozenset[str] = frozenset()
    templates: tuple[str, ...] = ()
    complete: bool = False


def remember(options: KafkaOptions, topics: Collection[str], template: str | None, existing: Collection[str]) -> None:
    """Stores the present rules unless they are stored. If that fails, nothing may be published.

    `existing` are the topics of the cluster: a pipeline that has a dead-letter topic has run before.
    """
    rules = {"topics": sorted(topics), "template": template}
    key = f"{options.pipeline}{SUFFIX}{sha256(json.dumps(rules).encode()).hexdigest()[:16]}".encode()
    found = read_keys(options, None, committed=False)
    if key in found:
        return
    first = options.pipeline.encode() not in found and options.dead_letter_topic not in existing
    try:
        write_record(options, options.offsets_topic, key, json.dumps({**rules, "first": first}).encode(), TIMEOUT)
    except KafkaException as error:
        raise translate(error_of(error), "writing the pipeline's topic rules", options.offsets_topic) from None


def recall(pipeline: str, found: Mapping[bytes, bytes]) -> KnownTopics:
    """The rules of a pipeline, from the keys of the offsets topic, without unreadable ones."""
    topics: set[str] = set()
    templates: list[str] = []
    complete = False
    for key, value in found.items():
        if not key.startswith(f"{pipeline}{SUFFIX}".encode()):
            continue
        try:
            rules = json.loads(value)
            topics.update(map(str, rules["topics"]))
            if rules["template"]:
                templates.append(str(rules["template"]))
            complete |= bool(rules["first"])
        except MALFORMED:
            continue
    return KnownTopics(frozenset(topics), tuple(templates), complete)
