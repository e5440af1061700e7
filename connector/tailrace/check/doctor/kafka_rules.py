"""Rules over the settings of brokers and topics. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.check.findings import advice, note, problem, settings, shell, warning
from tailrace.check.kafka_commands import alter_topic
from tailrace.check.result import CLOCK_SECONDS, CheckResult, Fix, human_seconds
from tailrace.check.versions import known_bugs, parsed
from tailrace.kafka.client import KafkaOptions

SHORT_EXPIRATION_MS = 24 * 3600 * 1000
"""A pipeline may be down for a day, or an instance suspended for that long."""
USUAL_EXPIRATION_MS = 7 * 24 * 3600 * 1000
LARGE_SEGMENT = 128 << 20
"""The last segment is never compacted: each start reads it."""
LATE_RATIO = 0.5


class InternalTopic(NamedTuple):
    """An internal topic of Tailrace: the settings that its content depends on, and what it holds."""

    holds: str
    needed: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic. `copies` are the fewest replicas of a partition; `values` are its settings, defaults included."""

    name: str
    copies: int = 1
    values: Mapping[str, str] = field(default_factory=dict)
    newest_ms: int | None = None
    """The time of the newest record, if the broker gave it."""
    declared: Mapping[str, str] = field(default_factory=dict)
    """Settings that the topic's spec declares, and the spec's file."""
    file: str = ""


@dataclass(frozen=True, slots=True)
class KafkaFacts:
    """A cluster as a pipeline uses it. `broker` is None if the settings of brokers may not be read."""

    library: str
    broker: Mapping[str, str] | None
    topics: tuple[TopicFacts, ...]
    internal: Mapping[str, InternalTopic]
    offsets_topic: str
    transaction_timeout_ms: int | None = None
    """None without transactions."""
    here_ms: int = 0
    brokers: int = 1


def check_kafka_facts(facts: KafkaFacts, options: KafkaOptions, file: str) -> list[CheckResult]:
    found = [*_versions(facts), *_brokers(facts, options, file)]
    for topic in facts.topics:
        found += [each for each in _topic(facts, topic, options, file) if each is not None]
    return found


def _versions(facts: KafkaFacts) -> list[CheckResult]:
    found = []
    for bug, fixed in known_bugs("librdkafka", parsed(facts.library)):
        fix = shell("pip install --upgrade 'confluent-kafka>=2.14.2'")
        found.append(warning(bug.code, f"librdkafka {facts.library} {bug.effect} ({bug.link}); fixed in {fixed}", fix))
    # Brokers before 4.0 name the version of their protocol; newer ones have no such setting.
    protocol = (facts.broker or {}).get("inter.broker.protocol.version", "")
    for bug, fixed in known_bugs("Kafka", parsed(protocol)):
        found.append(
            note(bug.code, f"Kafka {protocol} {bug.effect} ({bug.link})", advice(f"Upgrade the brokers to {fixed}."))
        )
    return found


def _brokers(facts: KafkaFacts, options: KafkaOptions, file: str) -> list[CheckResult]:
    if facts.broker is None:
        fix = advice("Grant DescribeConfigs on the cluster to the principal of the pipeline, or check them by hand.")
        what = "transaction.max.timeout.ms, transactional.id.expiration.ms and auto.create.topics.enable are unknown"
        return [note("kafka-settings-unread", what, fix)]
    found = []
    longest = _number(facts.broker, "transaction.max.timeout.ms")
    wanted = facts.transaction_timeout_ms
    if wanted is not None and longest is not None and wanted > longest:
        what = f"the pipeline asks for {wanted} ms, and transaction.max.timeout.ms is {longest}"
        fix = settings(file, {"kafka": {"settings": {"transaction.timeout.ms": longest}}})
        found.append(problem("transaction-timeout", what, fix))
    expiration = _number(facts.broker, "transactional.id.expiration.ms")
    if wanted is not None and expiration is not None and expiration < SHORT_EXPIRATION_MS:
        what = f"transactional.id.expiration.ms is {human_seconds(expiration / 1000)}"
        line = f"transactional.id.expiration.ms={USUAL_EXPIRATION_MS}"
        found.append(
            warning("transactional-id-expiration", what, advice(f"Set {line} in server.properties, then restart."))
        )
    if facts.broker.get("log.cleaner.enable") == "false":
        fix = advice("Set log.cleaner.enable=true in server.properties, then restart the brokers.")
        found.append(warning("offsets-topic-uncompacted", "log.cleaner.enable is false: no topic is compacted", fix))
    if facts.broker.get("auto.create.topics.enable") == "true":
        fix = advice("Set auto.create.topics.enable=false in server.properties, then restart the brokers.")
        found.append(note("auto-create", "auto.create.topics.enable is true", fix))
    return found


def _topic(facts: KafkaFacts, topic: TopicFacts, options: KafkaOptions, file: str) -> list[CheckResult | None]:
    internal = facts.internal.get(topic.name)
    return [
        _unclean(topic, options, file),
        _in_sync(topic, options, file),
        _compacted(topic, options, file) if internal is None else _needed(topic, internal, options),
        _long(facts, topic, options),
        _clock(facts, topic),
    ]


def _unclean(topic: TopicFacts, options: KafkaOptions, file: str) -> CheckResult | None:
    name = "unclean.leader.election.enable"
    if topic.values.get(name) != "true":
        return None
    return warning("unclean-election", f"{topic.name}: {name} is true", *_set(topic, options, name, "false", file))


def _in_sync(topic: TopicFacts, options: KafkaOptions, file: str) -> CheckResult | None:
    name = "min.insync.replicas"
    least = _number(topic.values, name)
    if least is None:
        return None
    what = f"{topic.name}: {name} is {least}, and there are {topic.copies} replicas"
    if least > topic.copies:
        fixes = _set(topic, options, name, str(max(1, topic.copies - 1)), file)
        return problem("min-insync-high", f"{what}: nothing can be published", *fixes)
    if least == topic.copies > 1:
        fixes = _set(topic, options, name, str(topic.copies - 1), file)
        return warning("min-insync-high", f"{what}: no broker may be down", *fixes)
    if least == 1 and topic.copies > 2:
        return warning("min-insync-low", what, *_set(topic, options, name, "2", file))
    return None


def _compacted(topic: TopicFacts, options: KafkaOptions, file: str) -> CheckResult | None:
    if "compact" not in topic.values.get("cleanup.policy", ""):
        return None
    what = f"{topic.name}: cleanup.policy is {topic.values['cleanup.policy']}"
    fixes = _set(topic, options, "cleanup.policy", "delete", file)
    if "cleanup.policy" in topic.declared:
        return note("event-topic-compacted", f"{what}, as its spec declares", *fixes)
    return warning("event-topic-compacted", what, *fixes)


def _needed(topic: TopicFacts, internal: InternalTopic, options: KafkaOptions) -> CheckResult | None:
    wrong = {
        name: value
        for name, value in internal.needed.items()
        if name in topic.values and set(topic.values[name].split(",")) != set(value.split(","))
    }
    if not wrong:
        return None
    shown = ", ".join(f"{name}={topic.values[name]}" for name in wrong)
    fix = shell(alter_topic(options, topic.name, wrong))
    return problem("internal-topic-settings", f"{topic.name} holds {internal.holds}, but has {shown}", fix)


def _long(facts: KafkaFacts, topic: TopicFacts, options: KafkaOptions) -> CheckResult | None:
    if topic.name != facts.offsets_topic:
        return None
    segment, ratio = _number(topic.values, "segment.bytes"), topic.values.get("min.cleanable.dirty.ratio", "0")
    if (segment is None or segment <= LARGE_SEGMENT) and float(ratio) <= LATE_RATIO:
        return None
    shown = f"segment.bytes={segment}, min.cleanable.dirty.ratio={ratio}"
    fix = shell(alter_topic(options, topic.name, {"segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1"}))
    return warning("offsets-topic-uncompacted", f"{topic.name} is compacted late: {shown}", fix)


def _clock(facts: KafkaFacts, topic: TopicFacts) -> CheckResult | None:
    """A record that the broker stamped in the future shows that its clock is ahead; by how much at least."""
    if topic.values.get("message.timestamp.type") != "LogAppendTime" or topic.newest_ms is None:
        return None
    ahead = (topic.newest_ms - facts.here_ms) / 1000
    if ahead < CLOCK_SECONDS:
        return None
    what = f"the newest record of {topic.name} was written {human_seconds(ahead)} in the future, by the broker's clock"
    return warning("kafka-clock", what, advice("Synchronise the clocks of brokers, database and connector (NTP)."))


def _set(topic: TopicFacts, options: KafkaOptions, name: str, value: str, file: str) -> list[Fix]:
    """Sets a setting where it comes from: in the topic's spec, if that declares it."""
    if name in topic.declared and topic.file:
        apply = shell(shlex.join(["tailrace", "topics", "apply", file, "--yes"]))
        return [settings(topic.file, {"config": {name: value}}), apply]
    return [shell(alter_topic(options, topic.name, {name: value}))]


def _number(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name, "")
    return int(text) if text.lstrip("-").isdigit() else None
