"""`tailrace route`: explains the route of an event."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import typer

from tailrace.cli.output import emit_json, say, table
from tailrace.config.load import load_pipeline
from tailrace.config.model import PipelineSettings
from tailrace.errors import ConfigError, Rejected, TailraceError
from tailrace.event import Headers, OutboxEvent
from tailrace.kafka.client import KafkaOptions, producer_config
from tailrace.kafka.tail import ClusterObserver
from tailrace.kafka.topic_manager import SHORT_TIMEOUT
from tailrace.kafka.topics import partition_counts
from tailrace.records.plain import chosen_key
from tailrace.routing.folder import load_topics
from tailrace.routing.partition import PARTITIONERS, partition_of
from tailrace.routing.router import Router, Tried
from tailrace.routing.specs import BROKER_DEFAULT
from tailrace.routing.view import View
from tailrace.worker.options import column_map, kafka_options, own_topics, routing_view

app = typer.Typer(
    help="Explain the route of an event: rule, topic, key and partition.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)

OFFLINE = typer.Option(False, "--offline", help="Do not ask Kafka for the number of partitions.")


class _Destination(NamedTuple):
    topic: str
    key: str | None
    partition: int | None
    partitions: str


@app.callback()
def _route() -> None:
    """Keeps `explain` as a subcommand: a Typer with one command would drop its name."""


@app.command()
def explain(
    file: Path = typer.Argument(..., metavar="FILE", help="The pipeline's settings, such as orders.yaml."),
    type_name: str = typer.Option(..., "--type", help="The event's type."),
    key: str | None = typer.Option(None, "--key", help="The event's key."),
    aggregate: str = typer.Option("", "--aggregate", help="The event's aggregate."),
    subject: str | None = typer.Option(None, "--subject", help="The event's subject, if it has a column."),
    column: list[str] = typer.Option([], "--column", metavar="NAME=VALUE", help="Another column; may be repeated."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    offline: bool = OFFLINE,
) -> int:
    """Show which rule matches an event, its topic, key and partition, and why other rules do not match.

    Works without a server: if Kafka does not answer, the declared number of partitions is used.

    Exit codes: 0 if the event has a route, 1 if it would be rejected.

    \b
    Examples:
      tailrace route explain orders.yaml --type OrderPlaced --key o-1 --aggregate order
      tailrace route explain orders.yaml --type Moved --subject rwa.inventory.moved
      tailrace route explain orders.yaml --type Paid --column tenant=eu-1 --json
    """
    settings = load_pipeline(file)
    view = routing_view(settings.pipeline, column_map(settings))
    options = kafka_options(settings)
    specs = load_topics(settings.topics.folder, view) if settings.topics.folder else []
    router = Router(specs, settings.topics.template, reserved=own_topics(options), view=view)
    extra = _columns(view, column, subject)
    own_key = None if key is None else key.encode()
    event = OutboxEvent("", type_name, aggregate, own_key, None, None, "", 0, extra)
    tried = router.explain(event)
    try:
        route = router.route(event)
        chosen = own_key if route.key_column is None else chosen_key(event, route.key_column)
    except Rejected as rejected:
        _print_rejected(rejected, tried, settings, as_json=as_json)
        return 1
    declared = {spec.topic: spec.partitions for spec in specs}
    partitions = declared.get(route.topic, settings.topics.partitions)
    goes = _destination(route.topic, chosen, partitions, options, offline=offline)
    if as_json:
        emit_json({**goes._asdict(), "key_column": route.key_column, "tried": [one._asdict() for one in tried]})
        return 0
    winner = next(one for one in tried if one.wins)
    name = "the template" if winner.stream is None else f"the rule of {winner.stream}"
    say(f"rule       {name} ({winner.where})")
    say(f"topic      {goes.topic}")
    by = f", from column {route.key_column}" if route.key_column else ""
    say(f"key        {'none' if goes.key is None else goes.key}{by}")
    say(f"partition  {'unknown' if goes.partition is None else goes.partition} ({goes.partitions})")
    _print_tried(tried)
    return 0


def _columns(view: View, given: list[str], subject: str | None) -> Headers:
    extra: Headers = []
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ConfigError(f"--column {text!r} has no value", remedy="Write it like --column tenant=eu-1.")
        if name in view.parts:
            remedy = "Use --type, --aggregate and --key for these; other parts of an event have no effect on its route."
            raise ConfigError(f"--column {name}: it is the column of the event's {view.parts[name]}", remedy=remedy)
        extra.append((name, value.encode()))
    if subject is not None:
        if view.subject is None or view.subject in view.parts:
            source = "<aggregate>.<type>" if view.subject is None else f"its {view.parts[view.subject]}"
            raise ConfigError(
                f"--subject: in pipeline {view.pipeline} the subject of an event is {source}",
                remedy="Give --aggregate and --type, or set outbox.columns.subject.",
            )
        extra.append((view.subject, subject.encode()))
    return extra


def _destination(topic: str, key: bytes | None, declared: int, options: KafkaOptions, *, offline: bool) -> _Destination:
    live = None if offline else _live_partitions(topic, options)
    count = live if live is not None else declared
    counted = f"{count} partition{'s' * (count != 1)}, {'in Kafka' if live is not None else 'as declared'}"
    shown = None if key is None else key.decode(errors="backslashreplace")
    partitioner = producer_config(options).get("partitioner")
    if key is None:
        return _Destination(topic, shown, None, f"any of {counted}: there is no key")
    if count == BROKER_DEFAULT:
        return _Destination(topic, shown, None, "the number of partitions is the brokers' default")
    if partitioner not in PARTITIONERS:
        return _Destination(topic, shown, None, f"{counted}; kafka.settings chooses the partitioner {partitioner}")
    return _Destination(topic, shown, partition_of(key, count), f"of {counted}")


def _live_partitions(topic: str, options: KafkaOptions) -> int | None:
    """Returns the number of partitions in Kafka, or None if it does not answer."""
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)
    try:
        return partition_counts(ClusterObserver(options).admin, timeout=SHORT_TIMEOUT).get(topic)
    except TailraceError:
        return None


def _print_rejected(rejected: Rejected, tried: list[Tried], settings: PipelineSettings, *, as_json: bool) -> None:
    policy = "stops the pipeline" if settings.on_invalid == "halt" else "becomes a dead letter"
    if as_json:
        fields = {"rejected": rejected.explanation, "remedy": rejected.remedy, "on_invalid": settings.on_invalid}
        emit_json({**fields, "tried": [one._asdict() for one in tried]})
        return
    say(f"rejected   {rejected.explanation}; such an event {policy}")
    say(f"remedy     {rejected.remedy}")
    _print_tried(tried)


def _print_tried(tried: list[Tried]) -> None:
    say()
    rows = [
        {
            "rule": one.stream or "(template)",
            "topic": one.topic,
            "priority": one.priority,
            "result": "wins" if one.wins else "matches" if one.matched else "no match",
            "why": one.why or None,
            "where": one.where,
        }
        for one in tried
    ]
    table("Rules in the order tried", rows)
