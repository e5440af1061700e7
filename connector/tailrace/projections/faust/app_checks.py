"""Checks the settings and agents of an app when it starts, before it reads anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from faust.app.base import BootStrategy
from faust.serializers import codecs
from faust.types.enums import ProcessingGuarantee
from faust.types.topics import TopicT

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from tailrace.projections.faust.app import ProjectionApp

SCHEMES = ("kafka", "aiokafka")


def check_app(app: ProjectionApp) -> None:
    """Raises a ConfigError for the first problem."""
    for problem in problems(app):
        raise problem


def problems(app: ProjectionApp) -> Iterator[ConfigError]:
    """Yields every problem of an app's settings and agents."""
    name = app.conf.id
    guarantee: object = app.conf.processing_guarantee  # Faust's type for it is the class
    if guarantee == ProcessingGuarantee.EXACTLY_ONCE:
        yield ConfigError(
            f"{name}: processing_guarantee is exactly_once",
            why="Faust's transactions lose and repeat events in rebalances; a projection is exactly once because its"
            " offset is stored in the transaction of its effects.",
            remedy="Leave processing_guarantee out (and PROCESSING_GUARANTEE of the environment).",
        )
    if app.conf.stream_wait_empty:
        yield ConfigError(
            f"{name}: stream_wait_empty is on",
            why="A worker would wait for acks that projections never send, and lose its partitions.",
            remedy="Leave stream_wait_empty out (and STREAM_WAIT_EMPTY of the environment).",
        )
    if app.wants_web or app._web_server_service is not None or list(cast(BootStrategy, app.boot_strategy).web_server()):
        yield ConfigError(
            f"{name}: Faust's web server is enabled",
            why="It shows the app's data to everyone who can reach it, without authentication.",
            remedy="Leave web_enabled and app.web_server out; run your own server next to the app.",
        )
    if any(url.scheme not in SCHEMES for url in app.conf.broker_consumer):
        yield ConfigError(
            f"{name}: the broker's address does not begin with kafka://",
            why="Projections rely on the aiokafka driver: others cannot skip aborted events.",
            remedy="Give it as kafka://host:port.",
        )
    for table in app.tables.values():
        yield ConfigError(
            f"{name}: the app has the Faust table {table.name}",
            why="A projection app creates no topics, so a table has no changelog, and agents that write to it crash.",
            remedy="Keep that state in the projection's store, or put the table and its agent into a separate app.",
        )
    yield from _pickles(app)
    yield from _agents(app)


def _pickles(app: ProjectionApp) -> Iterator[ConfigError]:
    for name, codec in _codecs(app):
        if _is_pickle(codec):
            yield ConfigError(
                f"{app.conf.id}: {name} is pickle",
                why="Anyone who can write to a topic that is read with pickle can run code in this process.",
                remedy="Use raw or json.",
            )


def _codecs(app: ProjectionApp) -> Iterator[tuple[str, Any]]:
    yield "key_serializer", app.conf.key_serializer
    yield "value_serializer", app.conf.value_serializer
    for topic in _topics(app):
        schema = topic.schema
        if schema is not None:
            name = ", ".join(topic.topics)
            yield f"the key serializer of {name}", schema.key_serializer
            yield f"the value serializer of {name}", schema.value_serializer


def _topics(app: ProjectionApp) -> Iterable[TopicT]:
    yield from app.topics
    for agent in app.agents.values():
        if isinstance(agent.channel, TopicT):
            yield agent.channel


def _is_pickle(codec: Any) -> bool:  # noqa: ANN401 - a name, a codec or None
    """Also true for Faust's restricted pickle, which has let unsafe values through before."""
    if isinstance(codec, str):
        return any("pickle" in part for part in codec.split("|"))
    return isinstance(codec, codecs.Codec) and any("pickle" in type(node).__name__ for node in codec.nodes)


def _agents(app: ProjectionApp) -> Iterator[ConfigError]:
    for agent in app.agents.values():
        if isinstance(agent.channel, TopicT) and agent.channel.pattern:
            yield ConfigError(
                f"{app.conf.id}: the agent {agent.name} reads topics by a pattern",
                why="Faust does not subscribe to patterns: the agent would never receive an event.",
                remedy="Name the topics: app.topic('orders', 'returns').",
            )
        taken = [topic for topic in agent.get_topic_names() if topic in app.receivers]
        if taken:
            yield ConfigError(
                f"{app.conf.id}: the agent {agent.name} reads {', '.join(taken)}, as a projection does",
                why="Its records go only to the projection, and Faust does not track them.",
                remedy="Put the agent into a separate app.",
            )
        owned = [topic for topic in agent.get_topic_names() if app.coordinator.owns(topic)]
        if owned and (agent.concurrency > 1 or agent.isolated_partitions):
            yield ConfigError(
                f"{app.conf.id}: the agent {agent.name} reads {', '.join(owned)} with several tasks",
                why="Events of one entity could be processed out of order.",
                remedy="Leave concurrency and isolated_partitions out; partitions are processed in parallel anyway.",
            )
