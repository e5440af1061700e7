"""A connector's configuration as the file of a pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.debezium import mongo_config, postgres_config
from tailrace.config.load import load_pipeline
from tailrace.debezium_import.connector_config import ConnectorConfig, parse_config, read_config, with_worker, without
from tailrace.debezium_import.pipeline_file import ImportedPipeline, import_config
from tailrace.errors import ConfigError

DSN = "host=db port=5433 user=u password=${env:PW} dbname=shop"
JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"


def imported(config: dict[str, str], **options: Any) -> ImportedPipeline:
    options.setdefault("bootstrap", "localhost:9092")
    return import_config(ConnectorConfig("Shop outbox", config), Path("/"), {"PW": "x"}, **options)


def refused(config: dict[str, str]) -> set[str]:
    return {problem.key for problem in imported(config).problems}


def test_an_outbox_of_postgres(tmp_path: Path) -> None:
    config = postgres_config(DSN, "shop", "shop") | {
        "transforms.outbox.table.fields.additional.placement": "type:header",
        "heartbeat.interval.ms": "5000",
    }
    del config["slot.name"], config["publication.name"]
    found = imported(config)
    assert not found.problems
    assert found.name == "shop-outbox"
    assert not found.secrets
    assert "heartbeat.interval.ms" in found.notes
    (tmp_path / "shop.yaml").write_text(found.text)
    settings = load_pipeline(tmp_path / "shop.yaml", {"PW": "a secret"})
    source = settings.source
    # Debezium's own defaults, because they are taken over; nothing may be created.
    assert (source.slot, source.publication, source.create) == ("debezium", "dbz_publication", False)
    assert settings.topics.template == "shop.{aggregate}"
    assert "  slot: debezium  # slot.name" in found.text
    assert all(len(line) <= 160 for line in found.text.splitlines())


def test_an_outbox_of_mongodb() -> None:
    found = imported(mongo_config("mongodb://u:secret@db/?replicaSet=rs0", "users", "users"))
    assert not found.problems
    assert found.secrets == ["mongodb.connection.string"]


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"transforms": "outbox,mask", "transforms.mask.type": "org.acme.Mask"}, "transforms.mask.type"),
        ({"value.converter": "io.acme.ProtobufConverter"}, "value.converter"),
        ({"value.converter": JSON_CONVERTER}, "value.converter.schemas.enable"),
        ({"header.converter": JSON_CONVERTER}, "header.converter"),
        ({"transforms.outbox.route.topic.regex": "x(.*)"}, "transforms.outbox.route.topic.regex"),
        (
            {"transforms.outbox.table.fields.additional.placement": "type:header,aggregateid:header"},
            "transforms.outbox.table.fields.additional.placement",
        ),
        ({"slot.drop.on.stop": "true"}, "slot.drop.on.stop"),
        ({"snapshot.select.statement.overrides": "public.outbox"}, "snapshot.select.statement.overrides"),
        ({"table.include.list": "public.outbox,public.heartbeat"}, "table.include.list"),
        ({"no.such.option": "1"}, "no.such.option"),
    ],
)
def test_what_cannot_be_translated_is_named(more: dict[str, str], key: str) -> None:
    assert key in refused(postgres_config(DSN, "shop", "shop") | more)


def test_converters_that_are_the_workers() -> None:
    config = postgres_config(DSN, "shop", "shop")
    del config["value.converter"]
    assert refused(config) == {"value.converter"}
    given = with_worker(
        ConnectorConfig("shop", config),
        {
            "value.converter": JSON_CONVERTER,
            "value.converter.schemas.enable": "false",
            "key.converter": "ignored, because the connector has its own",
            "bootstrap.servers": "broker:9092",
            "offset.storage.topic": "connect-offsets",
        },
    )
    assert (given.bootstrap, given.offsets_topic) == ("broker:9092", "connect-offsets")
    # A payload in quotation marks would become an object.
    assert refused(given.keys) == {"transforms.outbox.table.expand.json.payload"}
    assert not refused({**given.keys, "transforms.outbox.table.expand.json.payload": "true"})


@pytest.mark.parametrize("decoder", ["decoderbufs", ""])
def test_a_slot_of_another_decoder_is_not_taken_over(decoder: str) -> None:
    config = postgres_config(DSN, "shop", "shop") | {"plugin.name": decoder}
    if not decoder:
        del config["plugin.name"]  # Debezium's default is decoderbufs
    found = imported(config)
    assert not found.problems
    assert "slot: tailrace_shop_outbox" in found.text
    assert [statement.split()[0] for statement in found.statements] == ["CREATE", "SELECT"]
    assert "cannot be taken over" in found.notes["plugin.name"]


def test_without_brokers() -> None:
    config = postgres_config(DSN, "shop", "shop")
    assert [problem.key for problem in imported(config, bootstrap="").problems] == ["kafka.bootstrap"]


def test_options_that_are_left_out() -> None:
    config = ConnectorConfig(
        "shop", {"transforms": "outbox, mask", "transforms.mask.type": "a", "transforms.mask.b": ""}
    )
    found = without(config, ["transforms.mask.type"])
    assert found.keys == {"transforms": "outbox"}
    assert set(found.left_out) == {"transforms.mask.type", "transforms.mask.b"}
    with pytest.raises(ConfigError, match="no such option"):
        without(config, ["transforms.other.type"])


def test_forms_of_a_configuration(tmp_path: Path) -> None:
    keys = {"connector.class": "PostgresConnector", "tasks.max": 1, "slot.failover": True, "none": None}
    plain = {"connector.class": "PostgresConnector", "tasks.max": "1", "slot.failover": "true"}
    for text in (json.dumps({"name": "a", "config": keys}), json.dumps({"name": "a", **keys})):
        assert parse_config(text, "file", default_name="b") == ConnectorConfig("a", plain)
    properties = "# a comment\nname=a\nconnector.class = PostgresConnector\ntasks.max=1\nslot.failover=\\\n  true\n"
    assert parse_config(properties, "file", default_name="b").keys == plain
    for text in ("{", '{"config": 1}', "neither"):
        with pytest.raises(ConfigError):
            parse_config(text, "file", default_name="b")
    (tmp_path / "c.json").write_text(json.dumps({"connector.class": "org.acme.Other"}))
    with pytest.raises(ConfigError, match="not a configuration of Debezium"):
        read_config(tmp_path / "c.json")
