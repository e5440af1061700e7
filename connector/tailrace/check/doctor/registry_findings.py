"""Asks a schema registry about compatibility levels and the schemas of keys, and turns the answers into findings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tailrace.check.findings import problem, shell, warning
from tailrace.check.result import CheckResult
from tailrace.config.schemas import RegistrySettings
from tailrace.worker.schemas import KEY_SUFFIX

MOST_SUBJECTS = 50


@dataclass(frozen=True, slots=True)
class RegistryFacts:
    """The global level, the levels of subjects, and how many versions each subject has."""

    url: str
    level: str
    levels: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    listed: frozenset[str] = frozenset()
    """The subjects that the registry names."""
    needs_login: bool = False


def read_registry(settings: RegistrySettings, subjects: Iterable[str]) -> RegistryFacts:
    """Reads the levels and versions of at most MOST_SUBJECTS subjects. Raises RegistryUnavailable."""
    from tailrace.worker.registry import registry_client

    with registry_client(settings) as client:
        level, listed = client.compatibility(), frozenset(client.subjects())
        wanted = sorted(set(subjects))[:MOST_SUBJECTS]
        versions = {subject: len(client.numbers(subject)) for subject in wanted}
        levels = {subject: client.compatibility(subject) for subject in wanted if versions[subject]}
    return RegistryFacts(settings.url, level, levels, versions, listed, bool(settings.client_settings()))


def check_registry(facts: RegistryFacts, key_topics: Iterable[str], file: str) -> list[CheckResult]:
    """`key_topics` are the topics that need a schema for keys."""
    found: list[CheckResult] = []
    if facts.level == "NONE":
        fix = shell(_put(facts, "config", {"compatibility": "BACKWARD"}))
        found.append(warning("registry-compatibility", f"the compatibility level of {facts.url} is NONE", fix))
    for subject, level in sorted(facts.levels.items()):
        if level == "NONE" and facts.level != "NONE":
            fix = shell(_put(facts, f"config/{subject}", {"compatibility": "BACKWARD"}))
            found.append(warning("registry-compatibility", f"the compatibility level of {subject} is NONE", fix))
    keys = {topic + KEY_SUFFIX for topic in key_topics}
    for subject in sorted(keys):
        if facts.versions.get(subject) == 0:
            content = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "string"}
            schema = {"schema": json.dumps(content), "schemaType": "JSON"}
            fix = shell(_put(facts, f"subjects/{subject}/versions", schema, method="POST"))
            found.append(problem("registry-key-schema", f"there is no schema {subject}, which format.key needs", fix))
    for subject in sorted(facts.listed - keys):
        if facts.versions.get(subject) == 0:
            fix = shell(shlex.join(["tailrace", "schemas", "register", file]))
            found.append(warning("registry-subject-empty", f"the subject {subject} has no version", fix))
    return found


def _put(facts: RegistryFacts, path: str, body: Mapping[str, str], *, method: str = "PUT") -> str:
    # The credentials are asked for, so that they are in no finding and in no history of a shell.
    login = ["--user", "USER"] if facts.needs_login else []
    words = ["curl", "-sS", "--fail-with-body", *login, "-X", method, "-H"]
    kind = "Content-Type: application/vnd.schemaregistry.v1+json"
    return shlex.join([*words, kind, "-d", json.dumps(body), f"{facts.url}/{path}"])
