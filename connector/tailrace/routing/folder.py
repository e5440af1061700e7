"""Reads the folder of topic specs, `topics/*.yaml`, and refuses specs that contradict each other.

Two files may declare the same topic with different rules, but not with different partitions, replication or config. Two
rules with the same priority must not match the same event.
"""

from __future__ import annotations

from pathlib import Path

from tailrace.errors import ConfigError
from tailrace.routing.conflicts import check_rules
from tailrace.routing.parsing import parse_spec
from tailrace.routing.specs import SpecOrigin, TopicSpec
from tailrace.routing.view import View
from tailrace.yaml_document import ExpectedContent, read_document

SUFFIXES = {".yaml", ".yml"}
TOPIC_FILE = ExpectedContent(
    name="a topic spec",
    setting="topic: shop.orders",
    if_absent="Name an existing file.",
    if_empty="Write at least `topic: <name>` into it, or remove it.",
    if_other="Write fields such as `topic: shop.orders` and `match: {aggregate: order}`.",
)


def load_topics(folder: Path, view: View | None = None) -> list[TopicSpec]:
    """Returns all specs, sorted by file name.

    `view` is the pipeline for which rules are compared; without one, only conflicts of every pipeline are found.
    """
    try:
        files = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise ConfigError(
            f"the topics folder {folder} cannot be read: {error.strerror}",
            remedy="Name an existing folder, or remove the setting to route by template only.",
        ) from None
    specs: list[TopicSpec] = []
    declared: dict[str, TopicSpec] = {}
    for file in files:
        if file.suffix not in SUFFIXES:
            raise ConfigError(
                f"{file} is not a topic spec",
                why="Other files are not ignored, because one of them could be a misspelt rule.",
                remedy=f"Rename it to {file.stem}.yaml, or move it elsewhere.",
            )
        document = read_document(file, TOPIC_FILE)
        spec = parse_spec(document.data, SpecOrigin(str(file), document.lines))
        first = declared.setdefault(spec.topic, spec)
        if first.shape != spec.shape:
            raise ConfigError(
                f"{spec.origin.at('topic')}: {first.origin.at('topic')} declares the topic {spec.topic} differently",
                why="Partitions, replication and config belong to the topic and have one value.",
                remedy="Make them equal, or keep one file and list all patterns in its `match`.",
            )
        specs.append(spec)
    check_rules(specs, view)
    return specs
