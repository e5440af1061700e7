"""May a replay publish to these topics? Checked when a plan is made, and again when it is applied.

Between the two anything may change: a topic becomes compacted, a key is parked, somebody else writes to the shadow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from tailrace.dlq import requests
from tailrace.errors import ConfigError
from tailrace.kafka.reader import read_topic
from tailrace.kafka.tail import ClusterObserver
from tailrace.kafka.topics import TopicManager, topic_states
from tailrace.state.offsets import Admin
from tailrace.state.rewind_marker import HEADER
from tailrace.worker.wiring import Wiring

if TYPE_CHECKING:
    from tailrace.projections.faust.app import ProjectionApp


class UncompactedTopics(TopicManager):
    """Refuses compacted topics when they are first written to: rules may have changed since the plan was made."""

    def require(self, topics: list[str]) -> None:
        new = [topic for topic in topics if topic not in self.known]
        super().require(topics)
        if new:
            require_uncompacted(self._admin, new)


def require_uncompacted(admin: Admin, topics: Iterable[str]) -> None:
    """On such a topic the last record of a key is the one that is kept: it must not be an old one."""
    states = topic_states(admin, topics)
    compacted = [topic for topic, state in states.items() if "compact" in state.config.get("cleanup.policy", "")]
    if compacted:
        raise ConfigError(
            f"{', '.join(sorted(compacted))}: compacted, and an old event would become the last of its key",
            why="Compaction keeps the last record of a key, and would delete the newer one.",
            remedy="Replay in place (--in-place), which ends with the newest; or into a shadow (--shadow .shadow); or "
            "leave the topic out with --topic. Nothing was changed.",
        )


def require_new(wiring: Wiring, shadows: Iterable[str]) -> None:
    """Refuses shadow topics that exist: they are another replay's, or somebody's own."""
    there = ClusterObserver(wiring.kafka).look().topics
    taken = [topic for topic in shadows if topic in there]
    if taken:
        raise _taken(taken)


def require_own(wiring: Wiring, shadows: Iterable[str], id_: str) -> None:
    """Refuses shadow topics with records of anything but the plan `id_`, which an earlier `apply` may have begun."""
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
    """Refuses keys whose events wait: what is published again would overtake them."""
    keys = requests.board(wiring.kafka).keys
    if keys:
        raise ConfigError(
            f"{len(keys)} keys are parked",
            why="Their events wait behind one that was dead-lettered; those that are published again would not.",
            remedy="Redrive or discard what is in front of each (`tailrace dlq parked`), or replay into a shadow "
            "(--shadow .shadow). Nothing was changed.",
        )


def _taken(topics: list[str]) -> ConfigError:
    return ConfigError(
        f"the topic {', '.join(topics)} exists already",
        why="A shadow is to hold what one replay publishes, and nothing else.",
        remedy="Take another suffix, or delete the topic if it is an old shadow. Nothing was changed.",
    )


SKIPS = "passes them over (on_replay is `skip`)"
REBUILDS = "passes them over until it is made anew (on_replay is `rebuild`)"
COVERED = "covered: what it has applied, it passes over"
BEHIND = "events older than its markers are set aside, not applied"


async def horizons(app: ProjectionApp, topics: Collection[str], first_ms: int | None) -> list[dict[str, Any]]:
    """For each projection of the app that reads one of `topics`."""
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
