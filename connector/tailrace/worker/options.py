"""Translates the settings of a pipeline into the options of each component."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from tailrace.config.model import PipelineSettings
from tailrace.dlq.parked_keys import state_topic, waiting_topic
from tailrace.dlq.resolutions import resolutions_topic
from tailrace.errors import ConfigError, SourceEmbedded, install_remedy
from tailrace.kafka.client import KafkaOptions
from tailrace.outbox.layouts import INSIDE, ColumnMap, Layout
from tailrace.outbox.marks.columns import require_mark_columns
from tailrace.outbox.pending import pending_predicate
from tailrace.outbox.specs import LAYOUTS, event_columns, layout_map, reader
from tailrace.pipeline.record_retries import RecordRetries, RetryPolicy, RowColumns
from tailrace.routing.specs import TopicSpec
from tailrace.routing.view import View
from tailrace.rules.sequence import SequenceCheck, SequenceColumns
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.postgres.options import MessageOptions, PostgresOptions
from tailrace.sources.postgres.replay_window import ReplayWindow
from tailrace.sources.postgres.token_login import token_address
from tailrace.state import position_history
from tailrace.state.sequences import sequences_topic

DAY_MS = 24 * 3600 * 1000
REQUIRED = ("id", "type", "aggregate", "key", "payload")
"""Fields that a document must have, even if null. Rows of a table always have all columns."""
DEAD_LETTER_BYTES = 8 * 1024 * 1024
"""Payloads up to this size are kept whole in a dead letter; larger ones as hash and length."""


def kafka_options(settings: PipelineSettings) -> KafkaOptions:
    kafka = settings.kafka
    return KafkaOptions(
        bootstrap=kafka.bootstrap,
        pipeline=settings.pipeline,
        exactly_once=kafka.delivery == "exactly_once",
        offsets_topic=kafka.offsets_topic,
        dead_letter_topic=kafka.dead_letter_topic,
        internal_replication=kafka.internal_replication,
        settings=kafka.client_settings(),
        auth=kafka.auth.token_provider() if kafka.auth is not None else None,
    )


def source_options(
    settings: PipelineSettings, columns: ColumnMap, *, adopt: bool = False
) -> PostgresOptions | MongoOptions:
    source = settings.source
    if source.mongo is not None:
        return mongo_options(settings, columns, adopt=adopt)
    if source.rocksdb is not None:
        raise SourceEmbedded(
            f"the pipeline {settings.pipeline} reads the embedded outbox {source.rocksdb}",
            why="Only the process of its service can open it: it has no log that another process could read.",
            remedy="Its service runs the pipeline, with tailrace.worker.embedded.EmbeddedPipeline. Commands that need "
            "only Kafka work as with every pipeline: dlq, tail, route, topics, schemas.",
        )
    if source.postgres is None or (source.table is None and source.messages is None):
        raise ConfigError("source names no database", remedy="Set source.postgres and source.table, or source.mongo.")
    messages = message_options(settings, columns)
    conninfo = source.postgres.reveal()
    return PostgresOptions(
        conninfo=conninfo,
        password=source.auth.token_provider(*token_address(conninfo)) if source.auth is not None else None,
        table=source.table or f"messages:{messages.prefix if messages else ''}",
        messages=messages,
        slot=source.slot,
        publication=source.publication,
        create=source.create,
        beginning=source.start == "beginning",
        start_where=start_where(settings),
        default_where=not source.start_where,
        order_by=source.order_by,
        timestamp=columns.timestamp,
        id_column=columns.id,
        event_columns=event_columns(settings.outbox.layout, columns),
        failover=source.failover,
        halt_on_change=source.on_change == "halt",
        link_timeout=source.link_timeout,
        adopt=adopt,
        replay_window=ReplayWindow.parse(source.replay_window),
        **_row_marks(settings),
    )


def message_options(settings: PipelineSettings, columns: ColumnMap) -> MessageOptions | None:
    """Returns which messages are events; None if the pipeline reads a table."""
    messages = settings.source.messages
    if messages is None:
        return None
    required, optional = document_fields(columns)
    return MessageOptions(messages.prefix, required, optional, columns.payload, ignored_columns(settings))


def document_fields(columns: ColumnMap) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the fields that a document must have, and those that it may have."""
    mapped = dict(columns.parts())
    required = tuple(dict.fromkeys(mapped[part] for part in REQUIRED if part in mapped))
    return required, tuple(dict.fromkeys(field for field in mapped.values() if field not in required))


def _row_marks(settings: PipelineSettings) -> dict[str, Any]:
    if settings.marks != "rows":
        return {"marks": settings.marks}
    marks = require_mark_columns(settings.outbox.layout, settings.outbox.mark_columns)
    return {"marks": "rows", "is_marked": marks.is_done, "mark_columns": frozenset(marks.names)}


def start_where(settings: PipelineSettings) -> str:
    """Returns the predicate of the first read: the setting, or the layout's own one if rows are marked."""
    source, outbox = settings.source, settings.outbox
    if source.start != "beginning" or source.start_where or settings.marks != "rows":
        return source.start_where
    kind = "mongo" if source.mongo is not None else "postgres"
    return pending_predicate(outbox.layout, kind, outbox.mark_columns)


def mongo_options(settings: PipelineSettings, columns: ColumnMap, *, adopt: bool = False) -> MongoOptions:
    if find_spec("pymongo") is None:
        raise ConfigError(
            "source.mongo needs the MongoDB driver, which is not installed", remedy=install_remedy("mongo")
        )
    source = settings.source
    required, optional = document_fields(columns)
    ignored = ignored_columns(settings)
    # Not part of the event, but needed in its row.
    own_retries = tuple(name for name in settings.retries.columns.names if name in ignored and name not in required)
    names = [name.partition(".") for name in source.collection]
    return MongoOptions(
        uri=source.mongo.reveal() if source.mongo else "",
        app_name=app_name(settings.pipeline),
        database=names[0][0],
        collections=tuple(name for _, _, name in names),
        required=required,
        optional=(*optional, *own_retries),
        ignored=ignored,
        payload=columns.payload,
        timestamp=columns.timestamp,
        create=source.create,
        beginning=source.start == "beginning",
        start_where=start_where(settings),
        default_where=not source.start_where,
        # Reading can only be resumed in an order that is unique for every document.
        order_by=source.order_by if "_id" in source.order_by else (*source.order_by, "_id"),
        link_timeout=source.link_timeout,
        adopt=adopt,
    )


STORAGE_RETRIES = RowColumns("max_attempts", "base_delay_ms", "max_delay_ms", "backoff_multiplier")
"""The columns of the layout `storage` with a row's own retry settings."""


def record_retries(settings: PipelineSettings) -> RecordRetries:
    given = settings.retries.columns.model_dump(exclude_none=True)
    own = STORAGE_RETRIES if settings.outbox.layout == "storage" else RowColumns()
    policy = RetryPolicy(settings.retries.record_attempts, settings.retries.backoff())
    return RecordRetries(policy, replace(own, **given), clock=time.monotonic)


SEQUENCES = {
    "storage": SequenceColumns("sequence_number", ("aggregate_type", "aggregate_id"), "event_metadata#/replay_of"),
    "document": SequenceColumns("entity_version", ("entity_type", "entity_id")),
}
"""The columns of layouts that number events, and mark those that are written again."""


def sequence_check(settings: PipelineSettings) -> SequenceCheck | None:
    given = settings.rules.sequence
    if given is None:
        return None
    columns = column_map(settings)
    aggregate = tuple(column for column in (columns.aggregate, columns.key) if column)
    own = SEQUENCES.get(settings.outbox.layout, SequenceColumns("", aggregate))
    return SequenceCheck(
        SequenceColumns(given.number or own.number, given.aggregate or own.aggregate, given.replay or own.replay),
        limit=given.aggregates,
        fixed=settings.source.mongo is None,
    )


def app_name(pipeline: str) -> str:
    """Returns the application name of MongoDB sessions, by which `tailrace status` finds them."""
    return f"tailrace {pipeline}"


def declared_for(pipeline: str, specs: Iterable[TopicSpec]) -> list[str]:
    """Returns the topics without a rule, or with one for this pipeline."""
    rules = [(spec.topic, spec.rule) for spec in specs]
    return [topic for topic, rule in rules if rule is None or not rule.pipelines or pipeline in rule.pipelines]


def own_topics(kafka: KafkaOptions) -> frozenset[str]:
    """Returns the internal topics, to which no event may go: it could make a pipeline skip or repeat events."""
    parking = {state_topic(kafka), waiting_topic(kafka)}
    books = {kafka.offsets_topic, position_history.history_topic(kafka), sequences_topic(kafka)}
    return frozenset({*books, kafka.dead_letter_topic, resolutions_topic(kafka), *parking})


def dead_letter_spec(settings: PipelineSettings, kafka: KafkaOptions) -> TopicSpec:
    """Returns the default spec of the dead-letter topic."""
    kept = settings.dead_letters.retention_days * DAY_MS
    # Retention counts from writing, not from the commit, which may be long ago and is in a header.
    stamp = {"message.timestamp.type": "LogAppendTime"}
    config = {"retention.ms": str(kept), "max.message.bytes": str(2 * DEAD_LETTER_BYTES), **stamp}
    return TopicSpec(kafka.dead_letter_topic, 1, kafka.internal_replication, config)


def routing_view(pipeline: str, columns: ColumnMap) -> View:
    """Returns the pipeline's name and columns, as routing rules use them."""
    mapped = dict(columns.parts())
    # A key inside a column, or equal to the stream, leaves its column to the rules.
    shared = INSIDE in columns.key or columns.key == columns.stream
    parts = ("id", "payload", *(() if shared else ("key",)), "aggregate", "type")
    taken = {mapped[part]: part for part in parts if part in mapped}
    return View(pipeline, columns.subject, columns.stream, taken)


def column_map(settings: PipelineSettings) -> ColumnMap:
    kind = "mongo" if settings.source.mongo is not None else "postgres"
    return replace(layout_map(settings.outbox.layout, kind), **settings.outbox.columns.given())


def ignored_columns(settings: PipelineSettings) -> frozenset[str]:
    """Returns the columns that are not part of the event: the layout's and marks', unless mapped."""
    ignored = LAYOUTS[settings.outbox.layout].ignored | set(settings.outbox.mark_columns.values())
    return ignored - {column for _, column in column_map(settings).parts()}


def layout_of(settings: PipelineSettings) -> Layout:
    """Returns the reader of the pipeline's rows."""
    return reader(settings.outbox.layout, column_map(settings), ignored_columns(settings))
