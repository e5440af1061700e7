"""`tailrace topics`: compares declared topics with the cluster (`plan`) and applies the differences (`apply`).

Declared topics are those of the topics folder, and the dead-letter and offsets topics of the pipelines. Other topics,
such as those created from a template, are not changed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import typer

from tailrace.cli.output import emit_json, say, table
from tailrace.config.load import load_pipeline
from tailrace.errors import ConfigError, TailraceError
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.tail import ClusterObserver
from tailrace.kafka.topic_plan import Change, Kind, plan
from tailrace.kafka.topics import make_change, topic_states, unsettled
from tailrace.routing.folder import load_topics
from tailrace.routing.specs import TopicSpec
from tailrace.state import offsets
from tailrace.worker.options import column_map, dead_letter_spec, kafka_options, routing_view

app = typer.Typer(
    help="Compare declared topics with the cluster, and apply the declarations.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)
FILES = typer.Argument(..., metavar="FILE...", help="The settings of one or more pipelines.")


class _Cluster(NamedTuple):
    """One Kafka cluster, and the topics that pipelines declare there."""

    observer: ClusterObserver
    bootstrap: str
    changes: list[Change]


@app.command("plan")
def show(
    files: list[Path] = FILES, as_json: bool = typer.Option(False, "--json", help="Print one JSON object.")
) -> int:
    """Show the differences between the declared topics and the cluster. Changes nothing.

    Asks the brokers to validate each change, if it may. A rejected setting is an error that names its file and line.

    Exit codes: 0 no differences, 1 differences.

    \b
    Examples:
      tailrace topics plan orders.yaml
      tailrace topics plan orders.yaml billing.yaml
      tailrace topics plan orders.yaml --json | jq '.changes[].topic'
    """
    clusters = list(_clusters(files))
    changes = [change for cluster in clusters for change in cluster.changes]
    if as_json:
        emit_json(
            {"changes": [{"bootstrap": c.bootstrap, **_as_json(change)} for c in clusters for change in c.changes]}
        )
    else:
        _print(clusters)
    rejections = [rejection for cluster in clusters for rejection in _rejections(cluster)]
    if rejections:
        raise _one_error(rejections)
    return 1 if changes else 0


@app.command()
def apply(
    files: list[Path] = FILES,
    yes: bool = typer.Option(False, "--yes", help="Do not ask; required without a terminal."),
    grow: bool = typer.Option(False, "--grow", help="Also add partitions; existing keys may move to others."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> int:
    """Create topics, set their declared settings and, with --grow, add partitions.

    Never deletes a topic, removes partitions or changes replication. Differences that it cannot change are shown.

    Exit codes: 0 all topics are as declared, 1 some differences are left.

    \b
    Examples:
      tailrace topics apply orders.yaml
      tailrace topics apply orders.yaml billing.yaml --yes
      tailrace topics apply orders.yaml --grow
    """
    clusters = list(_clusters(files))
    if not as_json:
        _print(clusters)
    kinds = {Kind.CREATE, Kind.SET} | ({Kind.GROW} if grow else set())
    to_do = [(cluster, change) for cluster in clusters for change in cluster.changes if change.kind in kinds]
    if to_do and not yes:
        _ask(len(to_do))
    for cluster, change in to_do:
        make_change(cluster.observer.admin, change)
        if not as_json:
            say(f"done: {_sentence(change)}")
    not_visible = [
        change
        for cluster in clusters
        for change in unsettled(cluster.observer.admin, [change for at, change in to_do if at is cluster])
    ]
    left = [change for cluster in clusters for change in cluster.changes if change.kind not in kinds]
    if as_json:
        states = {"done": [change for _, change in to_do], "not_visible": not_visible, "left": left}
        emit_json({name: [_as_json(change) for change in changes] for name, changes in states.items()})
        return 1 if left else 0
    for change in not_visible:
        say(f"accepted, but not visible yet: {_sentence(change)}")
    for change in left:
        hint = "needs --grow" if change.kind is Kind.GROW else "change it by hand"
        say(f"{hint}: {_sentence(change)}")
    return 1 if left else 0


def _clusters(files: list[Path]) -> Iterator[_Cluster]:
    """Yields each Kafka cluster with the differences from what the pipelines declare there."""
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)
    declared: dict[str, tuple[KafkaOptions, dict[str, TopicSpec]]] = {}
    for file in files:
        options, specs = _declared(file)
        _, topics = declared.setdefault(options.bootstrap, (options, {}))
        for spec in specs:
            first = topics.setdefault(spec.topic, spec)
            if first.shape != spec.shape:
                where = [known.line_of("") or f"topic of {file}" for known in (spec, first)]
                raise ConfigError(
                    f"{where[0]}: the topic {spec.topic} is declared differently in {where[1]}",
                    why="A topic has only one number of partitions, one replication and one config.",
                    remedy="Make them equal, in the topic specs or in kafka.internal_replication of the pipelines.",
                )
    for bootstrap, (options, topics) in declared.items():
        observer = ClusterObserver(options)
        observer.look()  # raises an error if Kafka is unavailable
        live = topic_states(observer.admin, topics)
        yield _Cluster(observer, bootstrap, plan(topics.values(), live))


def _declared(file: Path) -> tuple[KafkaOptions, list[TopicSpec]]:
    settings = load_pipeline(file)
    options = kafka_options(settings)
    view = routing_view(settings.pipeline, column_map(settings))
    specs = load_topics(settings.topics.folder, view) if settings.topics.folder else []
    # A spec may describe the dead-letter topic. It cannot change the offsets topic.
    own = {spec.topic: spec for spec in (dead_letter_spec(settings, options), *reversed(specs), offsets.spec(options))}
    return options, list(own.values())


def _rejections(cluster: _Cluster) -> Iterator[ConfigError]:
    for change in cluster.changes:
        try:
            make_change(cluster.observer.admin, change, validate_only=True)
        except ConfigError as error:
            yield error
        except TailraceError:
            pass  # a user without the right to change topics may still see the plan


def _one_error(rejections: list[ConfigError]) -> ConfigError:
    if len(rejections) == 1:
        return rejections[0]
    each = "".join(f"\n    {error.what}\n      {error.why}" for error in rejections)
    return ConfigError(f"Kafka rejects {len(rejections)} of these changes", why=each, remedy="Correct them all.")


def _ask(count: int) -> None:
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{count} change{'s' * (count != 1)} would be made, but there is no terminal to ask on",
            remedy="Check `tailrace topics plan`, then give --yes.",
        )
    typer.confirm(f"Make {count} change{'s' * (count != 1)}?", abort=True)


def _print(clusters: list[_Cluster]) -> None:
    for cluster in clusters:
        if not cluster.changes:
            say(f"{cluster.bootstrap}: all topics are as declared.")
            continue
        rows = [
            {
                "change": change.kind.value,
                "topic": change.topic,
                "setting": change.setting or None,
                "now": change.before or None,
                "declared": change.after,
                "where": change.where or "Tailrace's own",
            }
            for change in cluster.changes
        ]
        table(cluster.bootstrap, rows)
        for change in cluster.changes:
            if change.note:
                say(f"{change.topic}: {change.setting} {change.before} -> {change.after}. {change.note}")
    sys.stdout.flush()


def _as_json(change: Change) -> dict[str, object]:
    return {
        "change": change.kind.value,
        "topic": change.topic,
        "setting": change.setting,
        "now": change.before,
        "declared": change.after,
        "where": change.where,
        "note": change.note,
    }


def _sentence(change: Change) -> str:
    if change.kind is Kind.CREATE:
        return f"create {change.topic} ({change.after})"
    return f"{change.topic}: {change.setting} {change.before or '-'} -> {change.after}"
