"""Whose dead letters a command is about, and how one of them is published again.

A pipeline's letters lie where its file says, and go through its line. The letters of consumers lie on a topic that is
named with `--letters`, and go back, as they were, to the topic they were read from: for that no pipeline is needed,
only brokers, which a pipeline's file names or `--bootstrap` does.
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
from tailrace.state import offsets
from tailrace.worker.options import kafka_options
from tailrace.worker.wiring import wire

Require = Callable[[list[str]], None]


@dataclass(frozen=True, slots=True)
class Publishing:
    """What it takes: `again` makes the record, `keeper` gives what requires topics that may be written to."""

    again: Callable[..., Record]
    topic_manager: Callable[[], Require]


@dataclass(frozen=True, slots=True)
class DlqContext:
    """Some letters. `settings` are those of their pipeline; None for the letters of consumers."""

    kafka: KafkaOptions
    settings: PipelineSettings | None

    def reader(self) -> DeadLetterReader:
        """Refuses a topic that is not there, unless a pipeline is going to create it with its first letter."""
        if self.settings is None and self.kafka.dead_letter_topic not in ClusterObserver(self.kafka).look().topics:
            raise ConfigError(
                f"there is no topic {self.kafka.dead_letter_topic}",
                why="No consumer has set anything aside there yet, or the name is mistyped.",
                remedy="Give the topic that the projection writes its dead letters to.",
            )
        return DeadLetterReader(self.kafka, of_consumers=self.settings is None)

    def publishing(self) -> Publishing:
        """By a pipeline: reads its schemas and rules as they are now."""
        if self.settings is None:
            return Publishing(publish_again, lambda: partial(_require_there, offsets.admin_client(self.kafka)))
        wiring = wire(self.settings)
        return Publishing(partial(pass_again, wiring.processor()), lambda: wiring.topic_manager(wiring.admin()).require)


class _Cluster(Section):
    """What a pipeline's file says about Kafka, without the file."""

    kafka: KafkaSettings

    @model_validator(mode="after")
    def _check(self) -> Self:
        checked_settings(self.kafka.settings, 0, transactional=True)
        return self


def find_context(file: Path | None, letters: str, bootstrap: str, kafka_settings: list[str]) -> DlqContext:
    """Refuses what names no letters, or names them twice."""
    if file is not None and bootstrap:
        raise _two_places(file)
    if kafka_settings and not bootstrap:
        raise ConfigError(
            "--kafka-setting stands beside --bootstrap only", remedy="In a pipeline's file, write it to kafka.settings."
        )
    if file is not None:
        settings = load_pipeline(file)
        kafka = kafka_options(settings)
        return DlqContext(_of_consumers(kafka, letters), None) if letters else DlqContext(kafka, settings)
    if not bootstrap:
        raise ConfigError(
            "neither a pipeline's file nor --bootstrap says where the letters are",
            remedy="Name the pipeline's file; or give --letters TOPIC and --bootstrap HOST:PORT for a consumer's.",
        )
    if not letters:
        raise ConfigError("--bootstrap names the brokers, but no topic is named", remedy="Add --letters TOPIC.")
    kafka = _of_consumers(_brokers(bootstrap, kafka_settings), letters)
    require_usable(kafka)
    return DlqContext(kafka, None)


def _require_there(admin: offsets.Admin, topics: list[str]) -> None:
    """What was read from a topic goes back there: to create it anew would be to publish for nobody."""
    there = partition_counts(admin)
    for topic in topics:
        if topic not in there:
            raise TopicMissing(
                f"there is no topic {topic}, which the event was read from",
                why="It was deleted since.",
                remedy="Create it, or discard the letter.",
            )


def ids_first(file: Path | None, ids: list[str] | None, bootstrap: str) -> tuple[Path | None, list[str]]:
    """Beside --bootstrap there is no file: what stands in its place is the first id."""
    if file is None or not bootstrap:
        return file, ids or []
    try:
        DeadLetterId.parse(str(file))
    except ConfigError:
        raise _two_places(file) from None
    return None, [str(file), *(ids or [])]


def _two_places(file: Path) -> ConfigError:
    return ConfigError(
        f"{file} is not the id of a letter, and beside --bootstrap no file is read",
        remedy="Name a pipeline's file or --bootstrap, not both.",
    )


def _of_consumers(kafka: KafkaOptions, letters: str) -> KafkaOptions:
    """Named after the topic: whoever redrives letters from it has the same transactional id, by whatever file."""
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
        kafka = _Cluster.model_validate({"kafka": {"bootstrap": bootstrap, "settings": given}}).kafka
    except ValidationError as error:
        problem = found_problems(error, {"kafka": {"bootstrap": bootstrap, "settings": dict.fromkeys(given, "")}})[0]
        raise ConfigError(f"{'.'.join(problem.place)} {problem.what}", remedy=problem.remedy) from None
    return KafkaOptions(kafka.bootstrap, "", settings=kafka.client_settings())
