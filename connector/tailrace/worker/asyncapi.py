"""Describes a pipeline as an AsyncAPI document: its topics, the event types they may contain, and their schemas.

Rules may use more than the type (aggregate, columns), so a type is listed for every topic that a rule could send it to,
up to the first rule that matches the type without other conditions.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.codegen.asyncapi.document import Channel, Message, Server, asyncapi
from tailrace.config.model import PipelineSettings
from tailrace.errors import ConfigError
from tailrace.routing.folder import load_topics
from tailrace.routing.patterns import matcher
from tailrace.routing.specs import Rule, TopicSpec, in_order
from tailrace.routing.view import View
from tailrace.schemas.compiled import CompiledSchema
from tailrace.schemas.folder import load_folder
from tailrace.schemas.strict_json import Json
from tailrace.worker.options import column_map, routing_view
from tailrace.worker.schemas import DEFAULT_SUBJECT, KEY_SUFFIX, wire_format

SECURE = ("SSL", "SASL_SSL")


def describe(settings: PipelineSettings, version: str) -> dict[str, Json]:
    """Returns the document. Asks no server except the registry, if schemas come from one."""
    compiled_schemas = _schemas(settings)
    kafka, registry = settings.kafka, settings.schemas.registry if settings.schemas else None
    server = Server(
        kafka.bootstrap,
        secure=str(kafka.client_settings().get("security.protocol", "")).upper() in SECURE,
        registry=registry.url if registry else None,
        subject=registry.subject if registry else DEFAULT_SUBJECT,
    )
    return asyncapi(
        settings.pipeline,
        version,
        server,
        _channels(settings, compiled_schemas),
        compiled_schemas,
        wire_format(settings),
    )


def _schemas(settings: PipelineSettings) -> list[CompiledSchema]:
    schemas = settings.schemas
    if schemas is None:
        return []
    if schemas.folder is not None:
        return list(load_folder(schemas.folder))
    from tailrace.schemas.registry.cache import with_references
    from tailrace.schemas.registry.lookup import compile_fetched
    from tailrace.worker.registry import registry_client

    if schemas.registry is None or schemas.registry.subject != DEFAULT_SUBJECT:
        raise ConfigError(
            "the registry's subjects do not show the types of events",
            why=f"Only with the subject {DEFAULT_SUBJECT} is each of them a type.",
            remedy="Describe the schemas of a folder instead: set schemas.folder.",
        )
    with registry_client(schemas.registry) as client:
        fetched = [client.fetch(subject, number) for subject in client.subjects() for number in client.numbers(subject)]
        return [compile_fetched(with_references(each, client.fetch)) for each in fetched if each is not None]


def _channels(settings: PipelineSettings, compiled_schemas: list[CompiledSchema]) -> list[Channel]:
    view = routing_view(settings.pipeline, column_map(settings))
    specs = load_topics(settings.topics.folder, view) if settings.topics.folder else []
    sent: dict[str, list[Message]] = {spec.topic: [] for spec in specs}
    for compiled in compiled_schemas:
        if compiled.subject.endswith(KEY_SUFFIX):
            continue
        for topic in dict.fromkeys(_topics(compiled.subject, specs, settings.topics.template, view)):
            sent.setdefault(topic, []).append(Message(compiled.subject, compiled))
    declared = {spec.topic: spec for spec in specs}
    default = TopicSpec("", settings.topics.partitions, settings.topics.replication)
    return [_channel(topic, declared.get(topic, default), messages) for topic, messages in sent.items()]


def _channel(topic: str, spec: TopicSpec, messages: list[Message]) -> Channel:
    stream = f"the stream {spec.stream}" if spec.stream else ""
    return Channel(topic, tuple(messages), stream, spec.partitions, spec.replication, spec.config)


def _topics(type_name: str, specs: list[TopicSpec], template: str | None, view: View) -> Iterator[str]:
    for spec, rule in in_order(specs):
        if view.sees(rule) and _may_take(rule, type_name):
            yield spec.topic
            if all(condition.field == "type" for condition in rule.conditions):
                return
    if template is not None:
        yield template.replace("{type}", type_name)


def _may_take(rule: Rule, type_name: str) -> bool:
    named = [condition for condition in rule.conditions if condition.field == "type"]
    return all(matcher(condition.patterns)(type_name) for condition in named)
