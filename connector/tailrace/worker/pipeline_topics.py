"""Reads from Kafka which topics a pipeline has written to, also under earlier rules, and which others share them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.tail import ClusterObserver, topic_matcher
from tailrace.positions.base import MALFORMED, Position, from_stored, is_same_outbox
from tailrace.state import known_topics, offsets, position_history
from tailrace.state.known_topics import KnownTopics
from tailrace.state.position_history import PositionEntry

_is_pipeline = re.compile(r"[a-z0-9_-]+").fullmatch
"""Matches names of pipelines; keys of replays and of other entries contain further characters."""


@dataclass(frozen=True, slots=True)
class KnownPipelines:
    """The stored facts about a pipeline's topics, and about other pipelines with the same offsets topic.

    `others` maps other pipelines to the topics they have written to, from their position histories; `rules` maps them
    to their routing rules.
    """

    stored: Position | None = None
    entries: list[PositionEntry] = field(default_factory=list)
    remembered: KnownTopics = field(default_factory=KnownTopics)
    positions: Mapping[str, Position] = field(default_factory=dict)
    others: Mapping[str, frozenset[str]] = field(default_factory=dict)
    rules: Mapping[str, KnownTopics] = field(default_factory=dict)

    @property
    def noted(self) -> set[str]:
        """The topics in the pipeline's position history."""
        return {topic for entry in self.entries for topic in entry.offsets}

    @property
    def of_others(self) -> set[str]:
        """The topics that other pipelines have written to."""
        return set().union(*self.others.values())

    @property
    def is_complete(self) -> bool:
        """Whether earlier rules are known; without them, topics of an earlier template cannot be found."""
        return self.stored is None or self.remembered.complete or bool(self.entries)

    @property
    def is_empty(self) -> bool:
        """Whether the pipeline has never run, or its offsets topic and history are lost. Stored rules do not count:
        refused starts store them as well."""
        return self.stored is None and not self.entries

    def matcher(self, topics: Collection[str], template: str | None, never: set[str]) -> Callable[[str], bool]:
        """Returns a test whether a topic is, or ever was, one of this pipeline, by name or by template."""
        named = {*topics, *self.noted, *self.remembered.topics} - never
        matchers = [topic_matcher(named, each, never) for each in {template, *self.remembered.templates}]
        return lambda topic: any(matches(topic) for matches in matchers)

    def elsewhere(self, mine: Position | None) -> set[str]:
        """Returns the pipelines that certainly read another outbox than that of the position `mine`."""
        if mine is None:
            return set()
        return {name for name, its in self.positions.items() if not is_same_outbox(mine, its)}

    def shared_with(self, name: str, declared: Collection[str], template: str | None) -> list[str]:
        """Returns the topics, or the template, to which this pipeline and another one both publish."""
        rules = self.rules.get(name, KnownTopics())
        topics = {*declared, *self.noted} & {*rules.topics, *self.others.get(name, ())}
        return [*sorted(topics), *([template] if template in rules.templates and not topics else [])]


def read_known(options: KafkaOptions) -> KnownPipelines:
    """Reads the offsets topic and the position history to their present ends."""
    existing = ClusterObserver(options).look().topics
    found = offsets.read_keys(options, None) if options.offsets_topic in existing else {}
    entries, others = position_history.read_all(options)
    positions = {name: position for name, position in _positions(found).items() if name != options.pipeline}
    stored = found.get(options.pipeline.encode())
    return KnownPipelines(
        None if stored is None else offsets.parse(options, stored),
        entries,
        known_topics.recall(options.pipeline, found),
        positions,
        others,
        {name: known_topics.recall(name, found) for name in positions},
    )


def _positions(found: Mapping[bytes, bytes]) -> dict[str, Position]:
    positions: dict[str, Position] = {}
    for key, value in found.items():
        name = key.decode(errors="replace")
        if not _is_pipeline(name):
            continue
        try:
            positions[name] = from_stored(json.loads(value))
        except MALFORMED:
            continue  # written by a newer version
    return positions
