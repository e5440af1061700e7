"""Makes the file of a pipeline from a connector's configuration, with a comment at each setting about its origin.

The translation is that of the worker's REST API (`config/connector.py`). Here are only the differences of an import:
Debezium's own defaults for slot and publication, because they are taken over, and nothing is created.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from tailrace.config.connector import translate
from tailrace.config.load import validate_settings
from tailrace.config.secrets import REFERENCE, mask
from tailrace.config.translation import KeyProblem
from tailrace.debezium_import.connector_config import ConnectorConfig
from tailrace.debezium_import.differences import find_differences, find_problems

WIDTH = 116
_DEFAULT_SLOT, _DEFAULT_PUBLICATION = "debezium", "dbz_publication"
_SECRET = re.compile(r"password|connection\.string|user\.info|jaas|secret|\.key$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ImportedPipeline:
    """A translated connector. With `problems` there is nothing to run."""

    name: str
    text: str
    problems: list[KeyProblem]
    notes: dict[str, str]
    """Options without an effect, and why."""
    differences: list[str]
    statements: list[str] = field(default_factory=list)
    """SQL that must be run before the takeover, while Debezium runs."""
    secrets: list[str] = field(default_factory=list)
    """Options with a literal secret, which is in the file."""


def import_config(
    config: ConnectorConfig, folder: Path, environ: Mapping[str, str], *, name: str = "", bootstrap: str = ""
) -> ImportedPipeline:
    """Translates a connector; every problem names the option that was given. `folder` is that of the file."""
    name = name or config.pipeline
    config, statements, notes = _with_defaults(config, name)
    found = translate(name, config.keys, bootstrap or config.bootstrap)
    if isinstance(found.tree.get("source"), dict) and not config.is_mongo:
        found.tree["source"]["create"] = False
    problems = [*found.problems, *find_problems(config)]
    known = {problem.key for problem in problems}
    _, invalid = validate_settings(found.tree, folder, environ)
    for each in invalid:
        place = ".".join(each.place)
        key = found.origins.get(place, place)
        if key in ("kafka", "kafka.bootstrap"):
            problems.append(
                KeyProblem("kafka.bootstrap", "is not known", "add --bootstrap with the brokers, or --connect-worker")
            )
        elif key not in known and not any(one.startswith(f"{key}.") for one in known):
            problems.append(KeyProblem(key, mask(each.what), mask(each.remedy)))
    notes = {**found.notes, **notes}
    notes.update(dict.fromkeys(config.left_out, "left out as asked (--leave-out)"))
    differences = find_differences(config)
    text = render(name, found.tree, found.origins, notes, differences)
    secrets = sorted(key for key, given in config.keys.items() if _SECRET.search(key) and _is_literal(given))
    return ImportedPipeline(name, text, problems, notes, differences, statements, secrets)


def _with_defaults(config: ConnectorConfig, name: str) -> tuple[ConnectorConfig, list[str], dict[str, str]]:
    """Writes out what Debezium assumes; returns also the statements for a slot that cannot be taken over."""
    if config.is_mongo:
        return config, [], {}
    keys, own = dict(config.keys), f"tailrace_{name.replace('-', '_')}"
    decoder = keys.pop("plugin.name", "decoderbufs").strip().lower()
    if decoder == "pgoutput":
        keys.setdefault("slot.name", _DEFAULT_SLOT)
        keys.setdefault("publication.name", _DEFAULT_PUBLICATION)
        return replace(config, keys={**keys, "plugin.name": "pgoutput"}), [], {}
    keys.pop("slot.name", None)
    keys.pop("publication.name", None)
    keys |= {"plugin.name": "pgoutput", "slot.name": own, "publication.name": own}
    table = keys.get("table.include.list", "public.outbox").replace("\\", "")
    statements = [
        f"CREATE PUBLICATION {own} FOR TABLE {table} WITH (publish = 'insert', publish_via_partition_root = true);",
        f"SELECT pg_create_logical_replication_slot('{own}', 'pgoutput');",
    ]
    why = (
        f"the slot of {decoder} cannot be taken over: create a publication and a slot while Debezium runs, wait until "
        "it has published a newer event, then take over. Drop Debezium's slot afterwards"
    )
    return replace(config, keys=keys), statements, {"plugin.name": why}


def _is_literal(text: str) -> bool:
    rest = REFERENCE.sub("", text)
    return bool(rest) and ("://" not in rest or re.search(r"://[^/@]*:[^/@]+@", rest) is not None)


def render(
    name: str,
    tree: Mapping[str, Any],
    origins: Mapping[str, str],
    notes: Mapping[str, str],
    differences: list[str],
) -> str:
    """Returns the file's text: settings with their origins, then what was not translated."""
    lines = [
        f"# Pipeline {name}, translated from a Debezium connector by `tailrace import debezium`.",
        "# Do not start it before it has taken over: `tailrace import debezium … --take-over` stores where Debezium",
        "# has stopped. Without that, existing events would be published again, or the start is refused.",
        f"pipeline: {name}",
    ]
    for section, value in tree.items():
        if section == "pipeline":
            continue
        if not isinstance(value, Mapping):
            lines += ["", _line(section, value, _origin(section, origins), "")]
            continue
        lines += ["", f"{section}:"]
        lines += [_line(key, inner, _origin(f"{section}.{key}", origins), "  ") for key, inner in value.items()]
    lines += ["", "# Different from Debezium:"]
    lines += [line for sentence in differences for line in _comment(sentence)]
    if notes:
        lines += ["", "# Options without an effect here:"]
        lines += [line for key in sorted(notes) for line in _comment(f"{key}: {notes[key]}")]
    return "\n".join(lines) + "\n"


def _line(key: str, value: object, origin: str, indent: str) -> str:
    shown = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False)
    return f"{indent}{key}: {shown.removesuffix('...' + chr(10)).strip()}{f'  # {origin}' if origin else ''}"


def _origin(setting: str, origins: Mapping[str, str]) -> str:
    return ", ".join(dict.fromkeys(key for each, key in origins.items() if f"{each}.".startswith(f"{setting}.")))


def _comment(text: str) -> list[str]:
    lines, line = [], "# -"
    for word in text.split():
        if len(line) + len(word) + 1 > WIDTH:
            lines.append(line)
            line = "#  "
        line += f" {word}"
    return [*lines, line]
