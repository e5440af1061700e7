"""Finds the dead letters that a `tailrace dlq` command is about, and how to publish them again.

Dead letters of a pipeline are on the topic that its settings file names, and are routed and validated again. Dead
letters of consumers are on the topic given with `--letters`, and go back unchanged to the topic they were read from.
That needs no pipeline, only brokers: from a settings file or from `--bootstrap`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

from pydantic import ValidationError, model_validator

from tailrace.config.kafka_settings import checked_settings
from tailrace.config.load import load_pipeline
from tailrace.config.model import KafkaSettings, PipelineSettings
from tailrace.config.problems import found_problems
from tailrace.config.references import UnresolvedError, has_reference, resolve
from tailrace.config.secrets import Secret
from tailrace.config.section import Section
from tailrace.dlq.dead_letter import DeadLetterId
from tailrace.dlq.reader import DeadLetterReader
from tailrace.dlq.redrive import pass_again, publish_again
from tailrace.errors import ConfigError, TopicMissing
from tailrace.event import Record
from tailrace.kafka.client import KafkaOptions, require_usable
from tailrace.kafka.tail import ClusterObserver
from tailrace.kafka.topics import partition_counts
from tailrace.replay.new_rows import NewRows
from tailrace.state import offsets
from tailrace.worker.options import column_map, kafka_options, source_options
from tailrace.worker.wiring import wire

Require = Callable[[list[str]], None]


@dataclass(frozen=True, slots=True)
class Publishing:
    """How to publish dead letters: `again` makes the record, `topic_manager` returns the check of its topic."""

    again: Callable[..., Record]
    topic_manager: Callable[[], Require]


@dataclass(frozen=True, slots=True)
class DlqContext:
    """Where the dead letters are. `settings` are those of their pipeline; None for dead letters of consumers."""

    kafka: KafkaOptions
    settings: PipelineSettings | None

    def reader(self) -> DeadLetterReader:
        """Raises ConfigError for a missing topic, unless a pipeline creates it with its first dead letter."""
        if self.settings is None and self.kafka.dead_letter_topic not in ClusterObserver(self.kafka).look().topics:
            raise ConfigError(
                f"there is no topic {self.kafka.dead_letter_topic}",
                why="No consumer has written a dead letter there yet, or the name is mistyped.",
                remedy="Give the topic that the projection writes its dead letters to.",
            )
        return DeadLetterReader(self.kafka, of_consumers=self.settings is None)

    def publishing(self) -> Publishing:
        """Uses the present schemas and rules of the pipeline, if there is one."""
        if self.settings is None:
            return Publishing(publish_again, lambda: partial(_require_there, offsets.admin_client(self.kafka)))
        wiring = wire(self.settings)
        return Publishing(partial(pass_again, wiring.processor()), lambda: wiring.topic_manager(wiring.admin()).require)

    def new_rows(self) -> NewRows:
        """Returns what adds rows to the pipeline's outbox. Raises ConfigError if that is not possible."""
        if self.settings is None:
            raise ConfigError(
                "--as-new is given for dead letters of a consumer",
                why="Their events are in the outbox of a pipeline, and were published.",
                remedy="Redrive without --as-new.",
            )
        columns = column_map(self.settings)
        return NewRows(source_options(self.settings, columns), self.settings.outbox.layout, columns)


class _ClusterSettings(Section):
    """The Kafka section of a pipeline's file, without the file."""

    kafka: KafkaSettings

    @model_validator(mode="after")
    def _check(self) -> Self:
        checked_settings(self.kafka.settings, 0, transactional=True)
        return self


def find_context(file: Path | None, letters: str, bootstrap: str, kafka_settings: list[str]) -> DlqContext:
    """Raises ConfigError if the options name no dead letters, or name them twice."""
    if file is not None and bootstrap:
        raise _two_places(file)
    if kafka_settings and not bootstrap:
        raise ConfigError(
            "--kafka-setting is only used with --bootstrap", remedy="In a pipeline's file, write it to kafka.settings."
        )
    if file is not None:
        settings = load_pipeline(file)
        kafka = kafka_options(settings)
        return DlqContext(_of_consumers(kafka, letters), None) if letters else DlqContext(kafka, settings)
    if not bootstrap:
        raise ConfigError(
            "neither a settings file nor --bootstrap is given",
            remedy="Give the pipeline's settings file; or --letters TOPIC and --bootstrap HOST:PORT for consumers.",
        )
    if not letters:
        raise ConfigError("--bootstrap is given without a topic", remedy="Add --letters TOPIC.")
    kafka = _of_consumers(_brokers(bootstrap, kafka_settings), letters)
    require_usable(kafka)
    return DlqContext(kafka, None)


def _require_there(admin: offsets.Admin, topics: list[str]) -> None:
    """Raises TopicMissing: a record goes back to the topic it was read from, and no consumer reads a new one."""
    there = partition_counts(admin)
    for topic in topics:
        if topic not in there:
            raise TopicMissing(
                f"there is no topic {topic}, which the event was read from",
                why="It was deleted.",
                remedy="Create it, or discard the dead letter.",
            )


def ids_first(file: Path | None, ids: list[str] | None, bootstrap: str) -> tuple[Path | None, list[str]]:
    """With --bootstrap there is no settings file: the first argument is the first id."""
    if file is None or not bootstrap:
        return file, ids or []
    try:
        DeadLetterId.parse(str(file))
    except ConfigError:
        raise _two_places(file) from None
    return None, [str(file), *(ids or [])]


def _two_places(file: Path) -> ConfigError:
    return ConfigError(
        f"{file} is not the id of a dead letter, and with --bootstrap no settings file is read",
        remedy="Give a settings file or --bootstrap, not both.",
    )


def _of_consumers(kafka: KafkaOptions, letters: str) -> KafkaOptions:
    """The transactional id comes from the topic, so that two redrives of it fence each other."""
    return replace(kafka, pipeline=letters, dead_letter_topic=letters, exactly_once=True)


def _brokers(bootstrap: str, kafka_settings: list[str]) -> KafkaOptions:
    given: dict[str, str | Secret] = {}
    for each in kafka_settings:
        name, equals, value = each.partition("=")
        if not equals:
            raise ConfigError(
                "--kafka-setting takes NAME=VALUE", remedy="Such as --kafka-setting security.protocol=sasl_ssl."
            )
        try:
            given[name] = Secret(value, resolve(value, os.environ, Path())) if has_reference(value) else value
        except UnresolvedError as error:
            raise ConfigError(f"--kafka-setting {name} cannot be resolved: {error.why}", remedy=error.remedy) from None
    try:
        kafka = _ClusterSettings.model_validate({"kafka": {"bootstrap": bootstrap, "settings": given}}).kafka
    except ValidationError as error:
        problem = found_problems(error, {"kafka": {"bootstrap": bootstrap, "settings": dict.fromkeys(given, "")}})[0]
        raise ConfigError(f"{'.'.join(problem.place)} {problem.what}", remedy=problem.remedy) from None
    return KafkaOptions(kafka.bootstrap, "", settings=kafka.client_settings())
