"""librdkafka settings: everything may be set except what guarantees depend on."""

from __future__ import annotations

import pytest
from pydantic_core import PydanticCustomError

from tailrace.config.kafka_settings import RESERVED, Setting, checked_settings, setting_name, setting_value
from tailrace.config.secrets import Secret


@pytest.mark.parametrize("name", [*RESERVED, "ACKS", "stats_cb"])
def test_reserved_names_say_why(name: str) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        setting_name(name)
    assert "because" in caught.value.message()


def test_settings_that_guarantees_depend_on_are_reserved() -> None:
    named = {"transactional.id", "enable.idempotence", "isolation.level", "bootstrap.servers", "acks"}
    assert named | {"delivery.report.only.error", "on_delivery", "error_cb"} <= set(RESERVED)


def test_other_names_and_single_values_pass() -> None:
    assert setting_name("compression.type") == "compression.type"
    assert [setting_value(v) for v in ("a", 1, 0.5, True)] == ["a", 1, 0.5, True]


@pytest.mark.parametrize("value", [None, [1], {"a": 1}])
def test_lists_and_maps_are_refused(value: object) -> None:
    with pytest.raises(PydanticCustomError, match="a text, a number"):
        setting_value(value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"message.timeout.ms": 59_999},
        {"delivery.timeout.ms": "20000"},
        {"transaction.timeout.ms": 30_001},
        {"transaction.timeout.ms": 900_000, "message.timeout.ms": 120_000},
        {"transaction.timeout.ms": 20_000, "message.timeout.ms": 10_000},
        {"partitioner": "consistent_random", "message.max.bytes": 1000},
    ],
)
def test_valid_combinations_are_accepted(settings: dict[str, Setting]) -> None:
    checked_settings(settings, 1000, transactional=True)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"message.timeout.ms": 60_000}, "message.timeout.ms"),
        ({"message.timeout.ms": 0}, "message.timeout.ms"),
        ({"delivery.timeout.ms": "90000"}, "delivery.timeout.ms"),
        ({"transaction.timeout.ms": 30_000}, "transaction.timeout.ms"),
        ({"transaction.timeout.ms": 10_000, "message.timeout.ms": 10_000}, "message.timeout.ms"),
        ({"message.timeout.ms": Secret("${env:T}", "60000")}, "message.timeout.ms"),
        ({"transaction.timeout.ms": "1 minute"}, "transaction.timeout.ms"),
        ({"partitioner": "random"}, "partitioner"),
        ({"message.max.bytes": 999}, "message.max.bytes"),
    ],
)
def test_contradictory_values_are_refused(settings: dict[str, Setting], field: str) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        checked_settings(settings, 1000, transactional=True)
    assert caught.value.context is not None
    assert caught.value.context["place"] == ("kafka", "settings", field)
    assert caught.value.context["remedy"]


def test_timeouts_do_not_matter_without_transactions() -> None:
    checked_settings({"message.timeout.ms": 300_000}, 1000, transactional=False)
