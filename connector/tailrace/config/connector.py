"""The configuration of a connector of Kafka Connect's REST API, as settings of a pipeline.

It is a flat map: `name`, `connector.class`, keys that every connector of Connect has, and settings of the pipeline.
With one of Debezium's classes it may also have the keys of Debezium (`debezium.py`). A key that has no effect here is
ignored with a note; one whose effect would be missed is a problem that names the key and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace.config import debezium, debezium_keys
from tailrace.config.allowed import Allowed
from tailrace.config.flat import FlatConfig, flatten, nest
from tailrace.config.framework_keys import framework_settings
from tailrace.config.load import validate_settings
from tailrace.config.model import PipelineSettings
from tailrace.config.secrets import mask, remembered_briefly
from tailrace.config.translation import KeyProblem, Translation
from tailrace.errors import ConfigError

POSTGRES, MONGO = "tailrace.PostgresOutbox", "tailrace.MongoOutbox"
KINDS = {
    POSTGRES: "postgres",
    MONGO: "mongo",
    debezium_keys.POSTGRES: "postgres",
    debezium_keys.MONGO: "mongo",
}
"""The classes that `connector.class` may name, and the database of each."""
SHORT_NAMES = {name.rpartition(".")[2].removesuffix("Connector"): name for name in KINDS}
"""Connect also accepts a class by its simple name, with or without `Connector`."""

ADDRESSES = {
    "postgres": "postgresql://tailrace:${env:DB_PASSWORD}@localhost:5432/shop",
    "mongo": "mongodb://tailrace:${env:DB_PASSWORD}@localhost:27017/?replicaSet=rs0",
}
CODE_SETTINGS = (
    "plugin.library.paths",
    "ssl.engine.location",
    "ssl.engine.id",
    "ssl.providers",
    "sasl.kerberos.kinit.cmd",
)
"""Settings of librdkafka that load a library or run a program. Whoever can send a configuration could choose it."""
_is_name = re.compile(r"[a-z0-9_-]{1,48}").fullmatch


@dataclass(frozen=True, slots=True)
class CheckedConnector:
    """A validated configuration: `settings` is None if there are problems."""

    settings: PipelineSettings | None
    problems: list[KeyProblem]
    notes: dict[str, str] = field(default_factory=dict)


def class_name(given: str) -> str | None:
    """Returns the full name of a class of Tailrace; None if it is unknown."""
    if given in KINDS:
        return given
    return SHORT_NAMES.get(given) or SHORT_NAMES.get(given.removesuffix("Connector"))


def translate(name: str, config: FlatConfig, bootstrap: str = "") -> Translation:
    """Converts a connector's configuration to nested settings. `bootstrap` are the brokers if it names none."""
    found = Translation()
    given = {key: text for key, text in config.items() if text is not None}
    _check_name(name, given, found)
    known = class_name(given.pop("connector.class", ""))
    if known is None:
        found.refuse(
            "connector.class",
            "is missing" if "connector.class" not in config else "is not a class of this worker",
            f"write one of {', '.join(KINDS)}",
        )
    own = framework_settings(given, found)
    if known in (debezium_keys.POSTGRES, debezium_keys.MONGO):
        own = debezium.settings(known, own, found)
    tree, problems = nest(own)
    found.problems += [KeyProblem(".".join(p.place), p.what, p.remedy) for p in problems]
    if bootstrap and isinstance(tree.setdefault("kafka", {}), dict):
        tree["kafka"].setdefault("bootstrap", bootstrap)
    kind = KINDS.get(known or "", "")
    other = {"postgres": "mongo", "mongo": "postgres"}.get(kind)
    if other and other in tree.get("source", {}):
        found.refuse(f"source.{other}", f"is not a setting of {known}", f"remove it, or use source.{kind}")
    if kind and kind not in tree.get("source", {}) and known in (POSTGRES, MONGO):
        found.refuse(f"source.{kind}", "is missing", f"write it like `{ADDRESSES[kind]}`")
    _refuse_code(tree, found)
    found.tree = {"pipeline": name, **{key: value for key, value in tree.items() if key != "pipeline"}}
    return found


def check_connector(
    name: str,
    config: FlatConfig,
    folder: Path,
    environ: Mapping[str, str],
    bootstrap: str = "",
    allowed: Allowed | None = None,
) -> CheckedConnector:
    """Validates a connector's configuration; every problem names the key that was given.

    Its secrets are masked in the problems, and forgotten: the settings are not for a connection to a server. `allowed`
    is None for a configuration of the operator, which may use everything.
    """
    with remembered_briefly():
        found = translate(name, config, bootstrap)
        if _refuse_not_allowed(found, folder, allowed):
            return CheckedConnector(None, found.problems, found.notes)  # nothing is resolved
        settings, invalid = validate_settings(found.tree, folder, environ)
        problems = list(found.problems)
        known = {problem.key for problem in problems}
        for problem in invalid:
            place = ".".join(problem.place)
            key = found.origins.get(place, "name" if place == "pipeline" else place)
            if key not in known and not any(each.startswith(f"{key}.") for each in known):
                problems.append(KeyProblem(key, mask(problem.what), mask(problem.remedy)))
    return CheckedConnector(None if problems else settings, problems, found.notes)


def pipeline_tree(
    name: str, config: FlatConfig, bootstrap: str = "", *, folder: Path = Path(), allowed: Allowed | None = None
) -> dict[str, Any]:
    """Returns the nested settings, as a pipeline's file has them; raises ConfigError if a key cannot be translated.

    `allowed` is as for `check_connector`; relative paths are relative to `folder`.
    """
    found = translate(name, config, bootstrap)
    _refuse_not_allowed(found, folder, allowed)
    if found.problems:
        raise connector_error(name, found.problems)
    return found.tree


def connector_error(name: str, problems: list[KeyProblem]) -> ConfigError:
    """Combines all problems of a configuration into one error."""
    if len(problems) == 1:
        return ConfigError(f"{problems[0].key} {problems[0].what}", remedy=problems[0].remedy_sentence)
    listed = "".join(f"\n    {p.key} {p.what}\n      remedy: {p.remedy_sentence}" for p in problems)
    return ConfigError(
        f"the configuration of {name} has {len(problems)} problems", why=listed, remedy="Correct all of them."
    )


def file_config(tree: Mapping[str, Any]) -> dict[str, str]:
    """Returns the configuration of a pipeline from a file, as Connect's REST API shows it."""
    source = tree.get("source")
    is_mongo = isinstance(source, Mapping) and "mongo" in source and "postgres" not in source
    shown = flatten(tree)
    name = shown.pop("pipeline", "")
    return {"name": name, "connector.class": MONGO if is_mongo else POSTGRES, "tasks.max": "1", **shown}


def _check_name(name: str, given: dict[str, str], found: Translation) -> None:
    for key in ("name", "pipeline"):
        inside = given.pop(key, name)
        if inside != name:
            found.refuse(key, f"is not the name of the connector, {name!r}", "remove it, or make both the same")
    if not _is_name(name):
        found.refuse("name", "is not a name of a pipeline", "use a-z, 0-9, _ and -, at most 48 characters")


def _refuse_not_allowed(found: Translation, folder: Path, allowed: Allowed | None) -> bool:
    """Refuses what a configuration may not use of the worker's machine; returns whether there is any."""
    refused = [] if allowed is None else list(allowed.problems(found.tree, folder))
    for each in refused:
        place = ".".join(each.place)
        found.refuse(found.origins.get(place, place), each.what, each.remedy)
    return bool(refused)


def _refuse_code(tree: Mapping[str, Any], found: Translation) -> None:
    """Refuses settings with which a client could run code of its own on the worker. Files may have them."""
    kafka, rules = tree.get("kafka"), tree.get("rules")
    settings = kafka.get("settings") if isinstance(kafka, dict) else None
    for name in settings if isinstance(settings, dict) else ():
        if name.lower() in CODE_SETTINGS:
            key = found.origins.get(f"kafka.settings.{name}", f"kafka.settings.{name}")
            remedy = "remove it, or configure this pipeline with a file in the worker's folder"
            found.refuse(key, "loads a library or runs a program on the worker's machine", remedy)
    folder = rules.get("folder") if isinstance(rules, dict) else None
    if isinstance(folder, str) and (Path(folder).is_absolute() or ".." in Path(folder).parts or "${" in folder):
        remedy = "write a path relative to the worker's folder, or install the rules as a package"
        found.refuse("rules.folder", "is not inside the worker's folder, and its modules would be run", remedy)
    retention = tree.get("retention")
    if isinstance(retention, dict) and retention.get("consumers"):
        remedy = "remove it, or configure this pipeline with a file in the worker's folder"
        found.refuse("retention.consumers", "names modules, which would be run on the worker's machine", remedy)
