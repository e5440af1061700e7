"""What a topic has let go of: whether it still begins where it began, and whether it keeps every record of a key."""

from __future__ import annotations

from typing import Any, NamedTuple

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tailrace.kafka.client import error_of, translate
from tailrace.kafka.topics import topic_config
from tailrace.state.offsets import Admin

ASK_TIMEOUT = 15.0


class TopicRetention(NamedTuple):
    """`starts`: the first offset of each partition, 0 unless records were deleted."""

    starts: dict[int, int]
    compacted: bool


def topic_retention(admin: Admin, topic: str, partitions: int) -> TopicRetention:
    earliest: Any = OffsetSpec  # untyped in the driver
    asked = {TopicPartition(topic, number): earliest.earliest() for number in range(partitions)}
    try:
        found = admin.list_offsets(asked, request_timeout=ASK_TIMEOUT)
        starts = {place.partition: int(answer.result(ASK_TIMEOUT).offset) for place, answer in found.items()}
    except KafkaException as error:
        raise translate(error_of(error), f"asking for the beginning of {topic}", topic) from None
    return TopicRetention(starts, "compact" in topic_config(admin, topic).get("cleanup.policy", ""))
