"""The folder of topic specs, `topics/*.yaml`: one topic a file, rules tried in the order of the file names.

Two files may declare the same topic with different patterns, but not with different partitions, replication
or config: which of them were meant could only be guessed.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from tailrace.errors import ConfigError
from tailrace.routing.specs import TopicSpec, parse_spec

SUFFIXES = {".yaml", ".yml"}


def load_topics(folder: Path) -> list[TopicSpec]:
    """Every spec in `folder`, sorted by file name."""
    try:
        files = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise ConfigError(
            f"the topics folder {folder} cannot be read: {error.strerror}",
            remedy="Name an existing folder, or leave the setting out to route by template alone.",
        ) from None
    specs: list[TopicSpec] = []
    declared: dict[str, tuple[TopicSpec, Path]] = {}
    for file in files:
        if file.suffix not in SUFFIXES:
            raise ConfigError(
                f"{file} is not a topic spec",
                why="Everything in the topics folder is a rule; a file passed over could be one misspelt.",
                remedy=f"Rename it to {file.stem}.yaml, or move it elsewhere.",
            )
        spec = parse_spec(_read(file), str(file))
        first, where = declared.setdefault(spec.topic, (spec, file))
        if _shape(first) != _shape(spec):
            raise ConfigError(
                f"{where} and {file} declare the topic {spec.topic} differently",
                why="Partitions, replication and config belong to the topic: each has one value.",
                remedy="Make them equal, or keep one file and list all patterns in its `match`.",
            )
        specs.append(spec)
    return specs


def _shape(spec: TopicSpec) -> tuple[int, int, dict[str, str]]:
    return spec.partitions, spec.replication, spec.config


def _read(file: Path) -> object:
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        raise ConfigError(f"{where} is not YAML: {error.problem}", remedy=f"Correct {where}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise ConfigError(f"{file} is not YAML in UTF-8", remedy=f"Correct {file}.") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", remedy="Check its permissions.") from None
