"""Commands of Kafka's own tools that fix a finding, quoted for a shell. Pure.

They never contain credentials: for a cluster with a login or TLS they name a file, which the user writes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from tailrace.kafka.client import KafkaOptions

CLIENT_FILE = "client.properties"


def tool(options: KafkaOptions, name: str, *words: str) -> str:
    """A call of one of Kafka's tools; Apache's packages call it NAME.sh."""
    protocol = str(options.settings.get("security.protocol", "plaintext")).lower()
    login = [] if protocol == "plaintext" else ["--command-config", CLIENT_FILE]
    return shlex.join([name, "--bootstrap-server", options.bootstrap, *login, *words])


def alter_topic(options: KafkaOptions, topic: str, settings: Mapping[str, str | None]) -> str:
    """Sets settings of a topic; None removes a setting, so that the broker's default applies."""
    words = ["--alter", "--entity-type", "topics", "--entity-name", topic]
    added = [f"{name}={_listed(value)}" for name, value in settings.items() if value is not None]
    removed = [name for name, value in settings.items() if value is None]
    words += ["--add-config", ",".join(added)] if added else []
    words += ["--delete-config", ",".join(removed)] if removed else []
    return tool(options, "kafka-configs", *words)


def allow(options: KafkaOptions, principal: str, operations: list[str], resource: str, name: str = "") -> str:
    """Grants operations on a resource; `resource` is the option of kafka-acls, such as --topic."""
    granted = [word for each in operations for word in ("--operation", each)]
    named = [resource, name] if name else [resource]
    return tool(options, "kafka-acls", "--add", "--allow-principal", principal, *granted, *named)


def _listed(value: str) -> str:
    return f"[{value}]" if "," in value else value
