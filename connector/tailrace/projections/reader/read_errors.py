"""What errors of a consumer mean for the reader."""

from __future__ import annotations

from confluent_kafka import KafkaError

from tailrace.connection_causes import certificate_error
from tailrace.errors import KafkaUnavailable, ReadRefused, TailraceError
from tailrace.kafka.client import lacks_token

MISSING = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._NOENT,
)
"""The topic does not exist, or not yet; it may be created later."""
REFUSALS = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
)
DAMAGED = (KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._NOT_IMPLEMENTED)
"""The client cannot read a record, and might continue behind it."""
TLS = "the ssl context of broker_credentials, or ssl.* in kafka_settings"


def read_error(error: KafkaError, doing: str, group: str) -> TailraceError:
    """Returns Tailrace's error. Everything but a refusal or an invalid certificate may be over after a while."""
    if error.code() in REFUSALS and not lacks_token(error):
        return ReadRefused(
            f"{doing}: Kafka refuses: {error.name()}",
            why=error.str(),
            remedy=f"Allow this user to read the topics and to use the consumer group {group}.",
        )
    invalid = certificate_error(error.str(), "Kafka", TLS)
    if invalid is not None:
        return invalid
    return KafkaUnavailable(
        f"{doing}: {error.str()}", why="Kafka does not answer as it should.", remedy="Restart the worker if it ended."
    )
