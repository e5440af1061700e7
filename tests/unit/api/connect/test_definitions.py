"""Config definitions: made from the settings model, in the closed enums of Connect's clients."""

from __future__ import annotations

import pytest

from tailrace.api.connect.definitions import common, of_class, recommended
from tailrace.api.connect.plugins import validation_json
from tailrace.config.connector import KINDS, MONGO, POSTGRES
from tailrace.config.debezium_keys import POSTGRES as DEBEZIUM
from tailrace.config.definitions import definitions
from tailrace.config.model import PipelineSettings
from tailrace.config.problems import all_places, field_at, section_of
from tailrace.config.translation import KeyProblem

TYPES = {"BOOLEAN", "CLASS", "DOUBLE", "INT", "LIST", "LONG", "PASSWORD", "SHORT", "STRING"}


def by_name(connector: str, bootstrap: str = "") -> dict[str, dict[str, object]]:
    return {each["name"]: each for each in (*common(), *of_class(connector, bootstrap))}


def test_every_setting_of_the_model_is_defined_with_its_meaning() -> None:
    names = {each.name for each in definitions()}
    leaves = {".".join(place) for place in all_places() if (field := field_at(place)) and section_of(field) is None}
    assert names == leaves
    assert all(each.meaning for each in definitions())
    assert {each.name for each in definitions() if each.required} == {"pipeline", "kafka.bootstrap"}


def test_kinds_and_choices() -> None:
    found = {each.name: each for each in definitions()}
    assert found["source.postgres"].kind.__name__ == "Secret"
    assert found["kafka.settings"].kind is dict
    assert found["kafka.delivery"].choices == ("exactly_once", "at_least_once")
    assert found["limits.batch_records"].default == PipelineSettings.model_fields["limits"].default.batch_records


@pytest.mark.parametrize("connector", KINDS)
def test_enums_of_connect(connector: str) -> None:
    for each in (*common(), *of_class(connector)):
        assert each["type"] in TYPES
        assert each["importance"] in ("LOW", "MEDIUM", "HIGH")
        assert each["width"] in ("NONE", "SHORT", "MEDIUM", "LONG")
        assert isinstance(each["required"], bool)
        assert each["default_value"] is None or isinstance(each["default_value"], str)
        assert each["documentation"]
        assert each["display_name"]
        assert isinstance(each["order"], int)
    names = [each["name"] for each in (*common(), *of_class(connector))]
    assert len(names) == len(set(names))


def test_each_class_has_its_own_database() -> None:
    postgres, mongo = by_name(POSTGRES), by_name(MONGO)
    assert postgres["source.postgres"]["required"] is True
    assert mongo["source.mongo"]["required"] is True
    assert {"source.mongo", "source.collection"}.isdisjoint(postgres)
    assert {"source.postgres", "source.slot", "source.table", "source.messages.prefix"}.isdisjoint(mongo)
    assert "pipeline" not in postgres
    assert postgres["source.failover"] | {"type": "", "documentation": ""} == {
        "name": "source.failover", "type": "", "required": False, "default_value": "false", "importance": "MEDIUM",
        "documentation": "", "group": "Source", "width": "SHORT", "display_name": "Source failover", "dependents": [],
        "order": postgres["source.failover"]["order"],
    }  # fmt: skip


def test_the_brokers_of_the_worker_are_the_default() -> None:
    assert by_name(POSTGRES)["kafka.bootstrap"]["required"] is True
    shown = by_name(POSTGRES, "kafka:9092")["kafka.bootstrap"]
    assert (shown["required"], shown["default_value"]) == (False, "kafka:9092")


def test_debezium_has_its_keys_and_requires_none_of_ours() -> None:
    found = by_name(DEBEZIUM)
    assert found["database.hostname"]["required"] is True
    assert found["source.postgres"]["required"] is False
    assert found["database.password"]["type"] == "PASSWORD"


def test_recommended_values() -> None:
    assert recommended("on_invalid") == ["dead_letter", "park", "halt"]
    assert recommended("source.create") == ["true", "false"]
    assert recommended("source.table") == []
    assert set(recommended("connector.class")) == set(KINDS)


def test_validation_lists_every_key_with_its_errors_and_without_secrets() -> None:
    config = {
        "connector.class": "PostgresOutbox",
        "source.postgres": "host=db password=hunter2",
        "kafka.settings.x": "1",
    }
    problems = [KeyProblem("topics.partitions", "is 'x'", "write 3"), KeyProblem("mistyped", "is unknown", "remove it")]
    found = validation_json(POSTGRES, config, problems, "kafka:9092")
    assert (found["name"], found["error_count"]) == ("PostgresOutbox", 2)
    values = {each["value"]["name"]: each["value"] for each in found["configs"]}
    assert values["topics.partitions"]["errors"] == ["topics.partitions is 'x'. Write 3."]
    assert values["mistyped"]["errors"]
    assert values["kafka.settings.x"]["value"] == "1"
    assert values["kafka.bootstrap"]["value"] == "kafka:9092"
    assert values["source.postgres"]["value"] == "host=db password=***"
    assert set(found["groups"]) == {each["definition"]["group"] for each in found["configs"]}
