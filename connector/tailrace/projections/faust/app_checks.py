"""Checks the settings and agents of an app when it starts, before it reads anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from faust.serializers import codecs
from faust.types.agents import AgentT
from faust.types.enums import ProcessingGuarantee
from faust.types.topics import TopicT

from tailrace.errors import ConfigError
from tailrace.projections.faust.event_channel import EventChannel

if TYPE_CHECKING:
    from tailrace.projections.faust.app import ProjectionApp
    from tailrace.projections.projection import Projection

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
    if app.wants_web and not _is_local(app):
        yield ConfigError(
            f"{name}: Faust's web server would listen on {app.conf.web_bind}",
            why="It shows the app's tables and views to everyone who can reach it, without authentication.",
            remedy='Give web_bind="127.0.0.1" (and no --web-bind), or leave web_enabled out.',
        )
    if app._web_server_service is not None:
        yield ConfigError(
            f"{name}: a web server was given to Faust (app.web_server)",
            why="Nothing shows where it listens, and who can reach it.",
            remedy="Leave app.web_server out; run your own server next to the app, or start it from an @app.task.",
        )
    if any(url.scheme not in SCHEMES for url in app.conf.broker_consumer):
        yield ConfigError(
            f"{name}: the broker's address does not begin with kafka://",
            why="Dead letters are written, and ordinary agents read, through Faust's aiokafka driver.",
            remedy="Give it as kafka://host:port.",
        )
    if app.tables and not app.conf.topic_allow_declare:
        yield ConfigError(
            f"{name}: the app has the Faust table {next(iter(app.tables))}, and topic_allow_declare is off",
            why="Faust could not create the table's changelog topic, and agents that write to the table would crash.",
            remedy="Leave topic_allow_declare out: it is on if the app has tables.",
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
        if isinstance(agent.channel, EventChannel) and agent.isolated_partitions:
            yield ConfigError(
                f"{app.conf.id}: the agent {agent.name} has isolated_partitions",
                why="Faust would stop its tasks in rebalances of other topics. Partitions are applied in order anyway.",
                remedy="Leave it out. For several partitions at a time, give `concurrency`.",
            )
    for projection in app.projections:
        if projection.spec.handover is None:
            continue
        readers = [each.name for each in app.agents.values() if _reads(each, projection)]
        if not readers:
            yield ConfigError(
                f"{app.conf.id}: app.events({', '.join(projection.topics)}) has no agent",
                why="Nobody would apply its events.",
                remedy="Declare one: @app.agent(app.events(…)).",
            )
        elif len(readers) > 1:
            yield ConfigError(
                f"{app.conf.id}: the agents {' and '.join(readers)} have the same app.events({projection.name})",
                why="Each event would go to one of them only.",
                remedy="Give each its own app.events(…, name=…); for several tasks of one agent, `concurrency`.",
            )


def _reads(agent: AgentT[Any], projection: Projection) -> bool:
    return isinstance(agent.channel, EventChannel) and agent.channel.projection is projection


def _is_local(app: ProjectionApp) -> bool:
    """Whether Faust's web server can be reached from this machine only."""
    if app.conf.web_transport.scheme == "unix":
        return True
    try:
        return ip_address(app.conf.web_bind).is_loopback
    except ValueError:
        return app.conf.web_bind == "localhost"
