"""Configurations of connectors: classes, names, keys of the framework, and problems that name the given key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.config.connector import (
    KINDS,
    MONGO,
    POSTGRES,
    check_connector,
    class_name,
    connector_error,
    file_config,
    pipeline_tree,
    translate,
)
from tailrace.config.debezium_keys import HARMLESS, REFUSED
from tailrace.config.framework_keys import AVRO, CONVERTERS, JSON, JSON_SCHEMA, STRING
from tailrace.config.secrets import mask
from tailrace.config.translation import KeyProblem
from tailrace.errors import ConfigError

SMALL = {
    "connector.class": POSTGRES,
    "source.postgres": "postgresql://tailrace@db/shop",
    "source.table": "public.outbox",
    "kafka.bootstrap": "kafka:9092",
}


def problems(config: Mapping[str, str | None], name: str = "orders", **environ: str) -> dict[str, KeyProblem]:
    found = check_connector(name, config, Path("/nowhere"), environ)
    assert (found.settings is None) == bool(found.problems)
    return {problem.key: problem for problem in found.problems}


def test_a_small_configuration() -> None:
    assert pipeline_tree("orders", SMALL) == {
        "pipeline": "orders",
        "source": {"postgres": "postgresql://tailrace@db/shop", "table": "public.outbox"},
        "kafka": {"bootstrap": "kafka:9092"},
    }
    assert problems(SMALL) == {}


def test_the_brokers_of_the_worker_are_the_default() -> None:
    without = {key: text for key, text in SMALL.items() if key != "kafka.bootstrap"}
    assert pipeline_tree("orders", without, "worker:9092")["kafka"] == {"bootstrap": "worker:9092"}
    assert pipeline_tree("orders", SMALL, "worker:9092")["kafka"] == {"bootstrap": "kafka:9092"}
    assert "kafka" in problems(without)


@pytest.mark.parametrize("given", [*KINDS, "PostgresOutbox", "MongoOutbox", "PostgresConnector", "MongoDb"])
def test_a_class_may_be_given_by_its_short_name(given: str) -> None:
    assert class_name(given) in KINDS


@pytest.mark.parametrize("given", [None, "", "org.apache.kafka.connect.file.FileStreamSourceConnector"])
def test_an_unknown_class_is_a_problem(given: str | None) -> None:
    found = problems({**SMALL, "connector.class": given})
    assert POSTGRES in found["connector.class"].remedy


@pytest.mark.parametrize(
    ("config", "name", "key"),
    [
        ({"name": "payments"}, "orders", "name"),
        ({"pipeline": "payments"}, "orders", "pipeline"),
        ({}, "Orders", "name"),
        ({}, "a/b", "name"),
        ({}, "", "name"),
        ({}, "x" * 49, "name"),
        ({"source.mongo": "mongodb://db"}, "orders", "source.mongo"),
        ({"connector.class": MONGO}, "orders", "source.postgres"),
        ({"source.postgres": None}, "orders", "source.postgres"),
        ({"source.table": None}, "orders", "source.table"),
        ({"kafka.bootstap": "x"}, "orders", "kafka.bootstap"),
        ({"topics.partitions": "many"}, "orders", "topics.partitions"),
        ({"on_invalid": "skip"}, "orders", "on_invalid"),
        ({"tasks.max": "0"}, "orders", "tasks.max"),
        ({"tasks.max": "none"}, "orders", "tasks.max"),
        ({"transforms": "unwrap"}, "orders", "transforms"),
        ({"topic.creation.groups": "a"}, "orders", "topic.creation.groups"),
        ({"errors.tolerance": "some"}, "orders", "errors.tolerance"),
        ({"key.converter": "org.example.Own"}, "orders", "key.converter"),
        ({"value.converter": JSON}, "orders", "value.converter.schemas.enable"),
        ({"kafka.settings.acks": "1"}, "orders", "kafka.settings.acks"),
        ({"producer.override.acks": "1"}, "orders", "producer.override.acks"),
        ({"source.postgres": "postgresql://u:${env:PW}@db/shop"}, "orders", "source.postgres"),
    ],
)
def test_a_problem_names_the_key_that_was_given(config: dict[str, str | None], name: str, key: str) -> None:
    found = problems({**SMALL, **config}, name)
    assert key in found
    assert found[key].what
    assert found[key].remedy


@pytest.mark.parametrize("key", ["source.postgres", "kafka.settings.sasl.password", "producer.override.sasl.password"])
def test_a_problem_never_shows_a_secret(key: str) -> None:
    bad = {**SMALL, key: "hunter2-secret \n:;", "kafka.bootstap": "hunter2-secret", "topics.partitions": "x"}
    found = check_connector("orders", bad, Path("/nowhere"), {})
    assert found.problems
    assert "hunter2" not in str(connector_error("orders", found.problems)) + repr(found.problems)


@pytest.mark.parametrize(
    ("keys", "settings"),
    [
        ({"producer.override.linger.ms": "5"}, {"kafka.settings.linger.ms": "5"}),
        ({"errors.tolerance": "none"}, {"on_invalid": "halt"}),
        ({"errors.tolerance": "all"}, {"on_invalid": "dead_letter"}),
        ({"errors.deadletterqueue.topic.name": "dead"}, {"kafka.dead_letter_topic": "dead"}),
        ({"offsets.storage.topic": "mine"}, {"kafka.offsets_topic": "mine"}),
        ({"topic.creation.default.partitions": "6"}, {"topics.partitions": "6"}),
        ({"topic.creation.default.replication.factor": "3"}, {"topics.replication": "3"}),
        ({"exactly.once.support": "required"}, {"kafka.delivery": "exactly_once"}),
        ({"key.converter": STRING}, {"format.key": "bytes"}),
        ({"key.converter": JSON, "key.converter.schemas.enable": "false"}, {"format.key": "json"}),
        ({"value.converter": STRING}, {"format.value": "json"}),
        (
            {
                "value.converter": AVRO,
                "value.converter.schema.registry.url": "http://registry:8081",
                "value.converter.basic.auth.user.info": "${env:LOGIN}",
            },
            {
                "format.value": "avro",
                "format.schema_id": "prefix",
                "schemas.registry.url": "http://registry:8081",
                "schemas.registry.settings.basic.auth.user.info": "${env:LOGIN}",
            },
        ),
        (
            {"value.converter": JSON_SCHEMA, "value.converter.schema.registry.url": "http://registry:8081"},
            {"format.value": "json", "format.schema_id": "prefix", "schemas.registry.url": "http://registry:8081"},
        ),
    ],
)
def test_keys_of_the_framework_have_counterparts(keys: dict[str, str], settings: dict[str, str]) -> None:
    assert pipeline_tree("orders", {**SMALL, **keys}) == pipeline_tree("orders", {**SMALL, **settings})
    assert problems({**SMALL, **keys}, LOGIN="a:b") == {}


def test_a_setting_of_its_own_name_has_precedence() -> None:
    tree = pipeline_tree("orders", {**SMALL, "errors.tolerance": "none", "on_invalid": "park"})
    assert tree["on_invalid"] == "park"


@pytest.mark.parametrize("key", ["tasks.max", "config.action.reload", "header.converter", "errors.log.enable"])
def test_a_key_without_effect_is_ignored_with_a_note(key: str) -> None:
    found = check_connector("orders", {**SMALL, key: "3"}, Path("/nowhere"), {})
    assert found.settings is not None
    assert found.notes[key]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("kafka.settings.plugin.library.paths", "/tmp/own.so"),
        ("kafka.settings.Plugin.Library.Paths", "/tmp/own.so"),
        ("producer.override.plugin.library.paths", "/tmp/own.so"),
        ("kafka.settings.ssl.engine.location", "/tmp/own.so"),
        ("kafka.settings.sasl.kerberos.kinit.cmd", "id"),
        ("rules.folder", "/tmp/rules"),
        ("rules.folder", "rules/../../tmp"),
        ("rules.folder", "${env:HOME}"),
        ("retention.consumers", "shop.projections:app"),
    ],
)
def test_a_configuration_cannot_choose_code_that_the_worker_runs(key: str, text: str) -> None:
    assert key in problems({**SMALL, key: text}, HOME="/tmp")
    with pytest.raises(ConfigError, match="worker's"):
        pipeline_tree("orders", {**SMALL, key: text})


def test_code_settings_in_one_json_object_are_refused() -> None:
    given = {**SMALL, "kafka.settings": '{"plugin.library.paths": "/tmp/own.so", "linger.ms": 5}'}
    assert list(problems(given)) == ["kafka.settings.plugin.library.paths"]


def test_rules_may_be_in_a_folder_of_the_worker() -> None:
    assert translate("orders", {**SMALL, "rules.folder": "rules"}).problems == []


def test_several_problems_are_one_error() -> None:
    with pytest.raises(ConfigError) as raised:
        pipeline_tree("orders", {**SMALL, "transforms": "a", "name": "b"})
    assert "2 problems" in raised.value.what
    assert all(text in raised.value.why for text in ("transforms", "name is not the name", "remedy:"))


def test_the_configuration_of_a_file() -> None:
    tree = pipeline_tree("orders", SMALL)
    assert file_config(tree) == {"name": "orders", "tasks.max": "1", **SMALL}
    assert pipeline_tree("orders", file_config(tree)) == tree
    mongo = file_config({"pipeline": "users", "source": {"mongo": "mongodb://db", "collection": ["shop.outbox"]}})
    assert (mongo["connector.class"], mongo["source.collection"]) == (MONGO, "shop.outbox")


some_keys = st.sampled_from([
    *SMALL, "name", "tasks.max", "transforms", "transforms.outbox.type", "key.converter", "value.converter.x",
    "snapshot.mode", "plugin.name", "table.include.list", "collection.include.list", "mongodb.connection.string",
    "transforms.outbox.route.topic.replacement", "transforms.outbox.table.fields.additional.placement",
    *(key.replace("*", "x") for key in (*HARMLESS, *REFUSED)),
])  # fmt: skip
some_values = st.none() | st.text(max_size=30) | st.sampled_from(["outbox", "true", "{}", "[", "${", *CONVERTERS])


@given(
    st.dictionaries(some_keys | st.text(max_size=20), some_values, max_size=8),
    st.sampled_from([*KINDS, "", None]),
    st.text(max_size=10) | st.just("orders"),
)
def test_any_configuration_is_translated_or_refused(
    config: dict[str, str | None], connector: str | None, name: str
) -> None:
    given_ = {**config, "connector.class": connector}
    translate(name, given_)
    found = check_connector(name, given_, Path("/nowhere"), {})
    assert (found.settings is None) == bool(found.problems)


def test_secrets_of_a_configuration_that_was_examined_are_forgotten() -> None:
    planted = {**SMALL, "source.postgres": "postgresql://u:planted-word@db/shop", "topics.partitions": "x"}
    assert check_connector("orders", planted, Path("/nowhere"), {}).problems
    assert mask("planted-word") == "planted-word"
