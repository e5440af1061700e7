"""Reads the configuration of a Debezium connector from a file, in any form that people have it in.

That is: a flat JSON object; `{"name": …, "config": {…}}` as it is sent to Kafka Connect or comes from it; or a
properties file of a standalone worker. Converters that the connector leaves to its worker come from the worker's
properties file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tailrace.config.connector import class_name
from tailrace.config.debezium_keys import MONGO, POSTGRES
from tailrace.errors import ConfigError

CONVERTERS = ("key.converter", "value.converter", "header.converter")
_NOT_A_NAME = re.compile(r"[^a-z0-9_-]+")
NAME_LENGTH = 48


@dataclass(frozen=True, slots=True)
class ConnectorConfig:
    """`name` is the connector's, as it stands in the offsets topic. `keys` are its options without the name.

    `left_out` are options that the user has decided about, and that are not translated.
    """

    name: str
    keys: dict[str, str]
    left_out: dict[str, str] = field(default_factory=dict)
    bootstrap: str = ""
    offsets_topic: str = ""
    """Of the worker that runs the connector, if its properties file is given."""

    @property
    def is_mongo(self) -> bool:
        return class_name(self.keys.get("connector.class", "")) == MONGO

    @property
    def prefix(self) -> str:
        """The logical name of the server, which is in the key of an offset."""
        for key in ("topic.prefix", "database.server.name", "mongodb.name"):
            if text := self.keys.get(key, "").strip():
                return text
        return ""

    @property
    def pipeline(self) -> str:
        """A name for the pipeline: the connector's, in the letters that a pipeline's name may have."""
        return _NOT_A_NAME.sub("-", self.name.lower()).strip("-")[:NAME_LENGTH] or "outbox"


def read_config(file: Path, *, worker: Path | None = None, leave_out: Iterable[str] = ()) -> ConnectorConfig:
    """Reads a connector's file; raises ConfigError if it has no configuration of Debezium's outbox connectors."""
    found = parse_config(_text(file), str(file), default_name=file.stem)
    if class_name(found.keys.get("connector.class", "")) not in (POSTGRES, MONGO):
        raise ConfigError(
            f"{file} is not a configuration of Debezium for Postgres or MongoDB",
            why=f"Its connector.class is {found.keys.get('connector.class') or 'missing'}.",
            remedy=f"Give the configuration of a connector with class {POSTGRES} or {MONGO}.",
        )
    if worker is not None:
        found = with_worker(found, _properties(_text(worker), str(worker)))
    return without(found, leave_out)


def parse_config(text: str, file: str, *, default_name: str) -> ConnectorConfig:
    """Parses the content of a connector's file."""
    if text.lstrip()[:1] != "{":
        keys = _properties(text, file)
        return ConnectorConfig(keys.pop("name", default_name), keys)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}", remedy="Correct it.") from None
    inner: Any = found.get("config", found)
    if not isinstance(inner, dict):
        raise ConfigError(f"the `config` in {file} is not an object", remedy="Give the connector's configuration.")
    keys = {str(key): _plain(value, str(key), file) for key, value in inner.items() if value is not None}
    name = keys.pop("name", "") or str(found.get("name", "") if inner is not found else "") or default_name
    return ConnectorConfig(name, keys)


def with_worker(config: ConnectorConfig, worker: dict[str, str]) -> ConnectorConfig:
    """Adds what the connector takes from its worker: converters with their options, brokers, offsets topic."""
    inherited = {
        key: text
        for key, text in worker.items()
        for name in CONVERTERS
        # The options of a worker's converter belong to it alone.
        if (key == name or key.startswith(f"{name}.")) and name not in config.keys
    }
    return replace(
        config,
        keys={**inherited, **config.keys},
        bootstrap=worker.get("bootstrap.servers", ""),
        offsets_topic=worker.get("offset.storage.topic", ""),
    )


def without(config: ConnectorConfig, keys: Iterable[str]) -> ConnectorConfig:
    """Removes options that the user leaves out. The type of a transformation stands for all of it."""
    left, rest = {}, dict(config.keys)
    for key in keys:
        if key not in rest:
            raise ConfigError(
                f"--leave-out {key}: the configuration has no such option", remedy="Write the option's full name."
            )
        left[key] = rest.pop(key)
        match = re.fullmatch(r"transforms\.([^.]+)\.type", key)
        if match is not None:
            names = [each.strip() for each in rest.get("transforms", "").split(",")]
            rest["transforms"] = ",".join(each for each in names if each != match[1])
            for inner in [each for each in rest if each.startswith(f"transforms.{match[1]}.")]:
                left[inner] = rest.pop(inner)
    return replace(config, keys=rest, left_out=left)


def _plain(value: object, key: str, file: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"{key} in {file} is not a text", remedy="Options of a connector are texts.")


def _properties(text: str, file: str) -> dict[str, str]:
    keys: dict[str, str] = {}
    for line in text.replace("\\\n", "").splitlines():
        bare = line.strip()
        if not bare or bare[0] in "#!":
            continue
        key, equals, value = bare.partition("=")
        if not equals:
            raise ConfigError(f"{file} is neither JSON nor a properties file", remedy="Write options as key=value.")
        keys[key.strip()] = value.strip()
    return keys


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", remedy="Correct the path.") from None
