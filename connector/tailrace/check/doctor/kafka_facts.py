"""Collects what the rules need to know of a cluster: settings of brokers and topics, and the rights of the client."""

from __future__ import annotations

import re
import time
from collections.abc import Collection

from tailrace.check.doctor.access_rules import READ_BACK, WRITTEN, AccessFacts
from tailrace.check.doctor.kafka_rules import InternalTopic, KafkaFacts, TopicFacts
from tailrace.check.kafka import KafkaChecks
from tailrace.dlq.parked_keys import state_topic, waiting_topic
from tailrace.dlq.resolutions import resolutions_topic
from tailrace.kafka.client import KafkaOptions, producer_config
from tailrace.kafka.inspection import (
    broker_settings,
    client_rights,
    library_version,
    newest_times,
    topic_settings,
    transactional_acls,
)
from tailrace.kafka.tail import topic_matcher
from tailrace.routing.specs import TopicSpec
from tailrace.state.position_history import history_topic
from tailrace.state.sequences import sequences_topic
from tailrace.worker.options import own_topics

MOST_TOPICS = 200


def internal_topics(options: KafkaOptions) -> dict[str, InternalTopic]:
    """Offsets and dead letters have their own checks, and need nothing here."""
    compact = {"cleanup.policy": "compact"}
    kept = {"retention.ms": "-1", "retention.bytes": "-1"}
    return {
        options.offsets_topic: InternalTopic("stored positions", {}),
        options.dead_letter_topic: InternalTopic("dead letters", {}),
        history_topic(options): InternalTopic("the position history", {"cleanup.policy": "compact,delete"}),
        sequences_topic(options): InternalTopic("sequence numbers", compact),
        resolutions_topic(options): InternalTopic("resolutions of dead letters", compact),
        state_topic(options): InternalTopic("parked keys", compact),
        waiting_topic(options): InternalTopic("events that wait behind parked keys", kept),
    }


def read_kafka_facts(
    checks: KafkaChecks, options: KafkaOptions, specs: list[TopicSpec], topics: Collection[str]
) -> KafkaFacts:
    """`topics` are the existing topics of the pipeline."""
    cluster, admin = checks.cluster, checks.admin
    wanted = sorted(topics)[:MOST_TOPICS]
    settings, declared = topic_settings(admin, wanted), {spec.topic: spec for spec in specs}
    stamped = {
        topic: cluster.topics[topic]
        for topic, found in settings.items()
        if found.get("message.timestamp.type") == "LogAppendTime"
    }
    newest = newest_times(admin, stamped)
    config = producer_config(options)
    return KafkaFacts(
        library=library_version(),
        broker=broker_settings(admin),
        topics=tuple(
            TopicFacts(
                topic,
                cluster.copies.get(topic, 1),
                found,
                newest.get(topic),
                declared[topic].config if topic in declared else {},
                declared[topic].origin.file if topic in declared else "",
            )
            for topic, found in sorted(settings.items())
        ),
        internal=internal_topics(options),
        offsets_topic=options.offsets_topic,
        transaction_timeout_ms=int(config["transaction.timeout.ms"]) if options.exactly_once else None,
        here_ms=time.time_ns() // 1_000_000,
        brokers=cluster.brokers,
    )


def read_access(
    checks: KafkaChecks,
    options: KafkaOptions,
    topics: Collection[str],
    missing: Collection[str],
    *,
    creates: bool,
    authorized: bool,
) -> AccessFacts:
    own = own_topics(options)
    return AccessFacts(
        rights=client_rights(checks.admin, sorted(topics)[:MOST_TOPICS]),
        needed={topic: READ_BACK if topic in own else WRITTEN for topic in topics},
        missing_topics=tuple(sorted(missing)),
        creates=creates,
        principal=_principal(options),
        acls=transactional_acls(checks.admin, options.pipeline) if options.exactly_once else None,
        authorized=authorized,
    )


def _principal(options: KafkaOptions) -> str | None:
    """The name by which the brokers know the client; None if only they know it, as with certificates and tokens."""
    settings = options.settings
    protocol = str(settings.get("security.protocol", "plaintext")).lower()
    if protocol == "plaintext":
        return "User:ANONYMOUS"
    name = settings.get("sasl.username")
    return f"User:{name}" if protocol.startswith("sasl") and name else None


def topics_of(
    checks: KafkaChecks, options: KafkaOptions, declared: Collection[str], routed: Collection[str], template: str | None
) -> tuple[set[str], set[str]]:
    """Returns the pipeline's topics that exist, and the declared ones that do not.

    `routed` are topics of sampled events. A template without any fixed part would match the topics of all others.
    """
    own = own_topics(options)
    existing = set(checks.cluster.topics)
    fixed = re.sub(r"\{\w+\}|[._-]", "", template or "")
    matches = topic_matcher({*declared, *routed}, template if fixed else None, set(own))
    found = {topic for topic in existing if matches(topic)} | (own & existing)
    needed = {*declared, options.offsets_topic, options.dead_letter_topic}
    return found, needed - existing
