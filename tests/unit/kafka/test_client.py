"""Settings of Kafka clients: defaults that a user may change, and their effect."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, Producer

from tailrace.errors import KafkaUnavailable
from tailrace.kafka.client import (
    KafkaOptions,
    admin_config,
    consumer_config,
    producer_config,
    require_usable,
    translate,
)


def options(**settings: str | int) -> KafkaOptions:
    return KafkaOptions("127.0.0.1:1", "orders", settings={name.replace("_", "."): v for name, v in settings.items()})


def test_every_client_has_short_timeouts_for_a_hanging_broker() -> None:
    for config in (admin_config(options()), consumer_config(options(), "g"), producer_config(options())):
        assert config["socket.connection.setup.timeout.ms"] == 5000
        assert config["topic.metadata.refresh.interval.ms"] == 3000
    assert producer_config(options())["socket.timeout.ms"] == 8000
    assert "socket.timeout.ms" not in consumer_config(options(), "g"), "a large answer may take its time"


@pytest.mark.parametrize(
    ("settings", "timeout"),
    [
        ({"transaction_timeout_ms": 3000, "message_timeout_ms": 2000}, 3000),
        ({"transaction_timeout_ms": "120000"}, 8000),
        ({"socket_timeout_ms": 20_000}, 20_000),
    ],
)
def test_settings_of_the_user_take_precedence_and_fit(settings: dict[str, str | int], timeout: int) -> None:
    given = options(**settings)
    assert producer_config(given)["socket.timeout.ms"] == timeout
    require_usable(given)
    Producer(producer_config(given))


@pytest.mark.parametrize(
    ("user", "limit", "size"), [(None, 50_000, 50_000), (20_000, 50_000, 20_000), (None, 2_000_000, None)]
)
def test_batches_are_no_larger_than_topics_accept(user: int | None, limit: int, size: int | None) -> None:
    given = options() if user is None else options(batch_size=user)
    assert producer_config(given, batch_bytes=limit).get("batch.size") == size


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    ],
)
def test_a_partition_without_a_leader_is_retried(code: int) -> None:
    """As right after its topic was created."""
    assert isinstance(translate(KafkaError(code), "reading the stored position"), KafkaUnavailable)
