"""A pipeline's topics: where its records are, whatever its rules say today, and which other pipelines are beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.tail import ClusterObserver, topic_matcher
from tailrace.positions.base import Position, from_stored, is_same_outbox
from tailrace.state import known_topics, offsets, position_history
from tailrace.state.known_topics import KnownTopics
from tailrace.state.position_history import PositionEntry

_is_pipeline = re.compile(r"[a-z0-9_-]+").fullmatch
"""As names of pipelines are; those of replays, and of what stands beside a position, have other signs, too."""


@dataclass(frozen=True, slots=True)
class KnownPipelines:
    """What Kafka knows of a pipeline's topics, and of the other pipelines that store their positions beside it.

    `others`: the topics that other pipelines have written to, by the pipeline's name, as their histories tell; `rules`:
    those of other pipelines.
    """

    stored: Position | None = None
    entries: list[PositionEntry] = field(default_factory=list)
    remembered: KnownTopics = field(default_factory=KnownTopics)
    positions: Mapping[str, Position] = field(default_factory=dict)
    others: Mapping[str, frozenset[str]] = field(default_factory=dict)
    rules: Mapping[str, KnownTopics] = field(default_factory=dict)

    @property
    def noted(self) -> set[str]:
        """Topics that the pipeline's own history names."""
        return {topic for entry in self.entries for topic in entry.offsets}

    @property
    def of_others(self) -> set[str]:
        """Topics that other pipelines have written to."""
        return set().union(*self.others.values())

    @property
    def is_complete(self) -> bool:
        """Whether earlier rules are known; without them, records under another template cannot be found."""
        return self.stored is None or self.remembered.complete or bool(self.entries)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known: offsets topic and history are lost, or it has never run. Rules that are remembered
        all the same are those of starts that were refused since."""
        return self.stored is None and not self.entries

    def matcher(self, topics: Collection[str], template: str | None, never: set[str]) -> Callable[[str], bool]:
        """Whether a topic is one of `topics`, or of those written or declared before, or made from any template."""
        named = {*topics, *self.noted, *self.remembered.topics} - never
        matchers = [topic_matcher(named, each, never) for each in {template, *self.remembered.templates}]
        return lambda topic: any(matches(topic) for matches in matchers)

    def elsewhere(self, mine: Position | None) -> set[str]:
        """Pipelines that certainly read another outbox than the one of the position `mine`."""
        if mine is None:
            return set()
        return {name for name, its in self.positions.items() if not is_same_outbox(mine, its)}

    def shared_with(self, name: str, declared: Collection[str], template: str | None) -> list[str]:
        """Topics, or a template, by which this pipeline and another one publish the same events to the same topics."""
        rules = self.rules.get(name, KnownTopics())
        topics = {*declared, *self.noted} & {*rules.topics, *self.others.get(name, ())}
        return [*sorted(topics), *([template] if template in rules.templates and not topics else [])]


def read_known(options: KafkaOptions) -> KnownPipelines:
    """All of it, up to now. Reads the offsets topic and the position history."""
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
        except (ValueError, KeyError, TypeError):
            continue  # a newer version's: nothing is known of it
    return positions
