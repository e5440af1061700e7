"""The settings model: defaults, dependencies and representation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.config.model import SECRET_PLACES, ColumnOverrides, PipelineSettings
from tailrace.config.problems import field_at, section_of
from tailrace.config.secrets import Secret
from tailrace.config.section import Section
from tailrace.sql_names import split_table

SMALLEST: dict[str, Any] = {
    "pipeline": "my-orders",
    "source": {"postgres": "host=db dbname=shop", "table": "public.outbox"},
    "kafka": {"bootstrap": "localhost:9092"},
}


def test_defaults() -> None:
    pipeline = PipelineSettings.model_validate(SMALLEST)
    assert pipeline.name == "my-orders"
    assert pipeline.source.slot == pipeline.source.publication == "tailrace_my_orders"
    assert split_table(pipeline.source.table) == ("public", "outbox")
    assert (pipeline.source.create, pipeline.source.start, pipeline.source.failover) == (True, "now", False)
    assert (pipeline.source.on_change, pipeline.source.link_timeout) == ("ignore", 30)
    assert pipeline.source.order_by == ("id",)
    assert (pipeline.outbox.layout, pipeline.outbox.columns.given()) == ("debezium", {})
    assert pipeline.schemas is None
    assert (pipeline.topics.folder, pipeline.topics.template) == (None, "outbox.event.{aggregate}")
    assert (pipeline.topics.create, pipeline.topics.partitions, pipeline.topics.replication) == (True, 3, -1)
    assert (pipeline.kafka.delivery, pipeline.kafka.offsets_topic) == ("exactly_once", "tailrace-offsets")
    assert (pipeline.kafka.dead_letter_topic, pipeline.kafka.internal_replication) == (
        "my-orders.dead-letters",
        -1,
    )
    assert pipeline.on_invalid == "dead_letter"
    limits = pipeline.limits
    assert (limits.batch_records, limits.batch_bytes, limits.payload_bytes) == (6000, 8_388_608, 1_000_000)


def test_given_values_are_kept() -> None:
    source = {
        **SMALLEST["source"],
        "slot": "s",
        "publication": "P",
        "order_by": ["b", "a"],
        "table": "outbox",
    }
    kafka = {**SMALLEST["kafka"], "dead_letter_topic": "letters"}
    topics = {"folder": "topics"}
    pipeline = PipelineSettings.model_validate({**SMALLEST, "source": source, "kafka": kafka, "topics": topics})
    assert (pipeline.source.slot, pipeline.source.publication) == ("s", "P")
    assert pipeline.source.order_by == ("b", "a")
    assert pipeline.source.table == "public.outbox"
    assert pipeline.kafka.dead_letter_topic == "letters"
    assert (pipeline.topics.folder, pipeline.topics.template) == (Path("topics"), None)


def test_order_follows_the_columns() -> None:
    columns = {"id": "event_id", "timestamp": "at", "payload": "body"}
    pipeline = PipelineSettings.model_validate({**SMALLEST, "outbox": {"columns": columns}})
    assert pipeline.source.order_by == ("at", "event_id")
    assert pipeline.outbox.columns.given() == columns


def test_table_names_may_be_quoted() -> None:
    source = {**SMALLEST["source"], "table": 'shop."Out.Box"'}
    assert split_table(PipelineSettings.model_validate({**SMALLEST, "source": source}).source.table) == (
        "shop",
        "Out.Box",
    )


def test_frozen() -> None:
    pipeline = PipelineSettings.model_validate(SMALLEST)
    with pytest.raises(ValidationError):
        pipeline.pipeline = "other"
    with pytest.raises(ValidationError):
        pipeline.source.slot = "other"


def test_no_secret_is_shown() -> None:
    source = {**SMALLEST["source"], "postgres": "postgresql://u:pa55-plain@h/d"}
    settings = {"sasl.password": "sa5l-plain", "ssl.ca.location": Secret("${env:CA}", "/ca"), "linger.ms": 5}
    kafka = {**SMALLEST["kafka"], "settings": settings}
    pipeline = PipelineSettings.model_validate({**SMALLEST, "source": source, "kafka": kafka})
    dumped = json.dumps(pipeline.model_dump(mode="json"))
    for text in (
        repr(pipeline),
        str(pipeline),
        pipeline.model_dump_json(),
        dumped,
        str(pipeline.model_dump()),
    ):
        assert "pa55-plain" not in text
        assert "sa5l-plain" not in text
        assert "***" in text
        assert "${env:CA}" in text
    assert pipeline.source.postgres.reveal() == "postgresql://u:pa55-plain@h/d"
    expected = {"sasl.password": "sa5l-plain", "ssl.ca.location": "/ca", "linger.ms": 5}
    assert pipeline.kafka.client_settings() == expected


def test_every_setting_says_what_is_expected() -> None:
    def walk(model: type[Section]) -> None:
        for name, field in model.model_fields.items():
            assert field.description, name
            assert field.examples, name
            section = section_of(field)
            if section is not None:
                walk(section)

    walk(PipelineSettings)
    assert all(field_at(place) is not None for place in SECRET_PLACES)
    assert section_of(PipelineSettings.model_fields["outbox"]) is not ColumnOverrides
