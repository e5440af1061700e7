"""Checks whether a replay may publish to its topics, when a plan is made and again when it is applied.

In between, a topic may become compacted, a key may be parked, or another program may write to the shadow topic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from tailrace.dlq import requests
from tailrace.errors import ConfigError
from tailrace.kafka.reader import read_topic
from tailrace.kafka.tail import ClusterObserver
from tailrace.kafka.topic_manager import TopicManager
from tailrace.kafka.topics import topic_states
from tailrace.state.offsets import Admin
from tailrace.state.rewind_marker import HEADER
from tailrace.worker.wiring import Wiring

if TYPE_CHECKING:
    from tailrace.projections.faust.app import ProjectionApp


class UncompactedTopics(TopicManager):
    """Refuses compacted topics at the first write, because rules may have changed since the plan was made."""

    def require(self, topics: list[str], alive: Callable[[], None] = lambda: None) -> None:
        new = [topic for topic in topics if topic not in self.known]
        super().require(topics, alive)
        if new:
            require_uncompacted(self._admin, new)


def require_uncompacted(admin: Admin, topics: Iterable[str]) -> None:
    """Refuses compacted topics, where an old event must not become the last record of its key."""
    states = topic_states(admin, topics)
    compacted = [topic for topic, state in states.items() if "compact" in state.config.get("cleanup.policy", "")]
    if compacted:
        raise ConfigError(
            f"{', '.join(sorted(compacted))}: compacted, so an old event would become the last of its key",
            why="Compaction keeps the last record of a key and would delete the newer one.",
            remedy="Replay in place (--in-place), which ends with the newest event; or into a shadow (--shadow "
            ".shadow); or exclude the topic with --topic. Nothing was changed.",
        )


def require_new(wiring: Wiring, shadows: Iterable[str]) -> None:
    """Refuses shadow topics that exist already."""
    there = ClusterObserver(wiring.kafka).look().topics
    taken = [topic for topic in shadows if topic in there]
    if taken:
        raise _taken(taken)


def require_own(wiring: Wiring, shadows: Iterable[str], id_: str) -> None:
    """Refuses shadow topics with records that are not from the plan `id_`; an earlier `apply` may have created
    them.
    """
    there = ClusterObserver(wiring.kafka).look().topics
    for topic in shadows:
        if topic not in there:
            continue
        with closing(read_topic(wiring.kafka, topic)) as messages:
            for message in messages:
                headers: Any = message.headers() or []
                if (HEADER, id_.encode()) not in headers:
                    raise _taken([topic])


def require_order(wiring: Wiring) -> None:
    """Refuses parked keys, because replayed events would overtake the waiting ones."""
    keys = requests.parking_state(wiring.kafka).keys
    if keys:
        raise ConfigError(
            f"{len(keys)} keys are parked",
            why="Their events wait behind a dead letter; replayed events would overtake them.",
            remedy="Redrive or discard the first event of each (`tailrace dlq parked`), or replay into a shadow "
            "(--shadow .shadow). Nothing was changed.",
        )


def _taken(topics: list[str]) -> ConfigError:
    return ConfigError(
        f"the topic {', '.join(topics)} exists already",
        why="A shadow topic must hold the records of one replay only.",
        remedy="Use another suffix, or delete the topic if it is an old shadow. Nothing was changed.",
    )


SKIPS = "skips them (on_replay is `skip`)"
REBUILDS = "skips them until it is rebuilt (on_replay is `rebuild`)"
COVERED = "covered: it skips what it has applied"
BEHIND = "events older than its markers are dead-lettered, not applied"


async def horizons(app: ProjectionApp, topics: Collection[str], first_ms: int | None) -> list[dict[str, Any]]:
    """Checks each projection of the app that reads one of `topics`."""
    found: list[dict[str, Any]] = []
    for projection in app.projections:
        reads = sorted(set(projection.topics) & set(topics))
        if not reads:
            continue
        await projection.store.open(projection.name)
        try:
            horizon = await projection.store.horizon()
        finally:
            await projection.store.close()
        is_behind = first_ms is not None and first_ms < horizon
        passes = {"skip": SKIPS, "rebuild": REBUILDS}.get(projection.spec.settings.on_replay)
        found.append(
            {
                "projection": projection.name,
                "topics": reads,
                "horizon_ms": horizon or None,
                "covered": passes is not None or not is_behind,
                "verdict": passes or (BEHIND if is_behind else COVERED),
            }
        )
    return found
