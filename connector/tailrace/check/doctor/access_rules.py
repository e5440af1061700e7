"""Rules over the rights of the Kafka client. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailrace.check.findings import advice, note, problem, shell, warning
from tailrace.check.kafka_commands import allow
from tailrace.check.result import CheckResult, Fix
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.inspection import AclEntry, ClientRights

WRITTEN = ("WRITE", "DESCRIBE")
READ_BACK = ("READ", "WRITE", "DESCRIBE")
"""Internal topics are also read."""
ON_TRANSACTIONS = ("WRITE", "DESCRIBE")


@dataclass(frozen=True, slots=True)
class AccessFacts:
    """The rights of the client. `principal` is None if it cannot be known here, as with client certificates.

    `acls` are the rules for the transactional id; None if they cannot be read.
    """

    rights: ClientRights
    needed: Mapping[str, tuple[str, ...]]
    """The operations that the pipeline needs on each existing topic."""
    missing_topics: tuple[str, ...] = ()
    """Topics that would have to be created."""
    creates: bool = True
    principal: str | None = None
    acls: Sequence[AclEntry] | None = None
    authorized: bool = True
    """Whether the brokers have an authorizer that could refuse anything."""


def check_access(facts: AccessFacts, options: KafkaOptions) -> list[CheckResult]:
    found: list[CheckResult] = []
    who = facts.principal or "User:NAME"
    for topic, needed in sorted(facts.needed.items()):
        has = facts.rights.topics.get(topic)
        # Without Describe a topic seems not to exist.
        lacking = [each for each in needed if has is not None and each not in has]
        if lacking:
            what = f"{who} may not {' and '.join(each.lower() for each in lacking)} {topic}"
            found.append(problem("topic-access", what, _grant(facts, options, lacking, "--topic", topic)))
    cluster = facts.rights.cluster
    if facts.creates and facts.missing_topics and cluster is not None and "CREATE" not in cluster:
        named = ", ".join(facts.missing_topics[:3])
        what = f"{who} has no Create on the cluster; missing topics: {named}"
        # An ACL for names with a prefix would do as well, and is not seen here.
        found.append(warning("create-access", what, _grant(facts, options, ["CREATE"], "--cluster", "")))
    return found + _transactions(facts, options)


def _transactions(facts: AccessFacts, options: KafkaOptions) -> list[CheckResult]:
    if not options.exactly_once or not facts.authorized:
        return []
    name = options.pipeline
    if facts.acls is None or facts.principal is None:
        what = f"whether {facts.principal or 'the principal'} may use the transactional id {name} cannot be read"
        return [note("access-unread", what, _grant(facts, options, list(ON_TRANSACTIONS), "--transactional-id", name))]
    lacking = [each for each in ON_TRANSACTIONS if not _is_allowed(facts.acls, facts.principal, each)]
    denied = any(not each.allows and each.principal in (facts.principal, "User:*") for each in facts.acls)
    # Without any rule, brokers may allow everything (allow.everyone.if.no.acl.found), or be used by a superuser.
    if not facts.acls or (not lacking and not denied):
        return []
    what = f"{facts.principal} may not {' and '.join(each.lower() for each in lacking)} the transactional id {name}"
    if denied:
        what = f"a rule denies {facts.principal} the transactional id {name}"
        fix: Fix = advice("Remove the rule: `kafka-acls --list --transactional-id` shows it.")
    else:
        fix = _grant(facts, options, lacking, "--transactional-id", name)
    return [problem("transactional-id-access", what, fix)]


def _is_allowed(acls: Sequence[AclEntry], principal: str, operation: str) -> bool:
    # The right to write includes the right to describe.
    enough = {operation, "ALL"} | ({"WRITE"} if operation == "DESCRIBE" else set())
    return any(each.allows and each.principal in (principal, "User:*") and each.operation in enough for each in acls)


def _grant(facts: AccessFacts, options: KafkaOptions, operations: list[str], resource: str, name: str) -> Fix:
    granted = [each.replace("_", " ").title().replace(" ", "") for each in operations]
    command = allow(options, facts.principal or "User:NAME", granted, resource, name)
    if facts.principal is None:
        return advice(f"With the principal of the client instead of User:NAME: {command}")
    return shell(command)
