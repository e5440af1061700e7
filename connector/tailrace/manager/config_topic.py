"""Configurations on the config topic: their records, and the files from which processes and commands read them.

A record's value is `{"config": {"source.postgres": "…", …}}`: a flat map of strings, as in Kafka Connect's REST API.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tailrace.config.allowed import Allowed
from tailrace.config.connector import pipeline_tree
from tailrace.config.load import load_pipeline
from tailrace.errors import ConfigError, TailraceError
from tailrace.manager.folder import FoundPipeline

_is_name = re.compile(r"[a-z0-9_-]{1,48}").fullmatch
_FOLDERS = (("schemas", "folder"), ("topics", "folder"), ("rules", "folder"))
"""Settings that are paths relative to the pipeline's file."""
_RELATIVE_FILE = re.compile(r"(?<!\$)\$\{file:(?!/)")


def config_record(config: Mapping[str, str]) -> bytes:
    """Returns the value of a record for this configuration."""
    return json.dumps({"config": dict(config)}, ensure_ascii=False, sort_keys=True).encode()


def parse_record(key: bytes | None, value: bytes) -> tuple[str, dict[str, str]]:
    """Returns name and configuration of a record; raises ConfigError if something else wrote it."""
    shown = repr((key or b"")[:60].decode("utf-8", "replace"))
    name = (key or b"").decode("utf-8", "replace")
    if not _is_name(name):
        raise _garbage(shown, "the key is not a name of a pipeline")
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        raise _garbage(shown, "the value is not JSON") from None
    config = found.get("config") if isinstance(found, dict) else None
    if not isinstance(config, dict) or not all(isinstance(text, str) for text in config.values()):
        raise _garbage(shown, "the value is not an object with a map of texts under `config`")
    return name, config


def _garbage(key: str, why: str) -> ConfigError:
    return ConfigError(
        f"the record with the key {key} on the config topic is not a configuration",
        why=f"Something else wrote it: {why}.",
        remedy="Write a tombstone under that key. Other pipelines are not affected.",
    )


def found_in_topic(
    name: str, config: Mapping[str, str], folder: Path, base: Path, bootstrap: str, allowed: Allowed | None = None
) -> FoundPipeline:
    """Writes the file of a configuration into `folder`, and validates it. Relative paths are relative to `base`.

    A configuration that uses more than is `allowed` has an error, and its references are not resolved.
    """
    file = folder / f"{name}.yaml"
    try:
        tree = absolute_paths(pipeline_tree(name, config, bootstrap, folder=base, allowed=allowed), base)
        write_private(file, yaml.safe_dump(tree, allow_unicode=True, sort_keys=False))
        return FoundPipeline(name, file, dict(config), load_pipeline(file))
    except TailraceError as error:
        return FoundPipeline(name, file, dict(config), None, error)


def absolute_paths(tree: dict[str, Any], base: Path) -> dict[str, Any]:
    """Returns the settings with paths that do not depend on where their file is."""

    def changed(value: object, place: tuple[str, ...]) -> object:
        if isinstance(value, dict):
            return {key: changed(inner, (*place, str(key))) for key, inner in value.items()}
        if isinstance(value, list):
            return [changed(inner, place) for inner in value]
        if not isinstance(value, str):
            return value
        if place in _FOLDERS and "${" not in value:
            return str(base / value)
        return _RELATIVE_FILE.sub(lambda _: "${file:" + f"{base}/", value)

    schemas = tree.get("schemas")
    if isinstance(schemas, dict) and "folder" not in schemas and "registry" not in schemas:
        tree = {**tree, "schemas": {**schemas, "folder": "schemas"}}
    return {key: changed(value, (key,)) for key, value in tree.items()}


def write_private(file: Path, text: str) -> None:
    """Replaces a file in one step; only this user can read it."""
    new = file.with_suffix(".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as out:  # noqa: PTH123 - a descriptor
        out.write(text)
    new.replace(file)
