"""The folder of topic specs, `topics/*.yaml`: one stream a file, and rules that do not contradict each other.

Two files may declare the same topic with different rules, but not with different partitions, replication or config:
which of them were meant could only be guessed. Nor may two rules of one priority match the same event.
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
    """Every spec in `folder`, sorted by file name. `view` is the pipeline whose rules are to be compared exactly;
    without one only those contradictions are found that every pipeline would run into.
    """
    try:
        files = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise ConfigError(
            f"the topics folder {folder} cannot be read: {error.strerror}",
            remedy="Name an existing folder, or leave the setting out to route by template alone.",
        ) from None
    specs: list[TopicSpec] = []
    declared: dict[str, TopicSpec] = {}
    for file in files:
        if file.suffix not in SUFFIXES:
            raise ConfigError(
                f"{file} is not a topic spec",
                why="Everything in the topics folder is a rule; a file passed over could be one misspelt.",
                remedy=f"Rename it to {file.stem}.yaml, or move it elsewhere.",
            )
        document = read_document(file, TOPIC_FILE)
        spec = parse_spec(document.data, SpecOrigin(str(file), document.lines))
        first = declared.setdefault(spec.topic, spec)
        if first.shape != spec.shape:
            raise ConfigError(
                f"{spec.origin.at('topic')}: {first.origin.at('topic')} declares the topic {spec.topic} differently",
                why="Partitions, replication and config belong to the topic: each has one value.",
                remedy="Make them equal, or keep one file and list all patterns in its `match`.",
            )
        specs.append(spec)
    check_rules(specs, view)
    return specs
