"""Asks Kafka where partitions begin and end, without disturbing the reading. Ends are those of committed records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tailrace.kafka.client import error_of
from tailrace.projections.core.store import Partition
from tailrace.projections.reader.offset_coordinator import PartitionBounds
from tailrace.projections.reader.read_errors import read_error

ASK_SECONDS = 10.0
EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class OffsetQueries:
    """All methods raise KafkaUnavailable if Kafka does not answer, or does not know a partition (yet)."""

    def __init__(self, config: Mapping[str, Any], group: str) -> None:
        self._admin = AdminClient(dict(config))
        self._group = group

    async def ends(self, topics: Iterable[str]) -> Mapping[Partition, int]:
        """Returns the ends of all partitions of these topics, assigned to this worker or not."""
        known = (await self._asked(asyncio.to_thread(self._admin.list_topics, timeout=ASK_SECONDS))).topics
        found = [Partition(topic, number) for topic in topics if topic in known for number in known[topic].partitions]
        return await self.ends_of(found)

    async def ends_of(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        """Returns the offsets after the last stable record of these partitions."""
        return await self._offsets(partitions, LATEST)

    async def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, PartitionBounds]:
        asked = list(partitions)
        first = await self._offsets(asked, EARLIEST)
        end = await self._offsets(asked, LATEST)
        return {each: PartitionBounds(first[each], end[each]) for each in asked}

    async def _offsets(self, partitions: Iterable[Partition], at: OffsetSpec) -> dict[Partition, int]:
        asked = {TopicPartition(*each): at for each in partitions}
        if not asked:
            return {}
        answers = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ASK_SECONDS
        )
        return {
            Partition(each.topic, each.partition): (await self._asked(asyncio.wrap_future(answer))).offset
            for each, answer in answers.items()
        }

    async def _asked(self, answer: Any) -> Any:  # noqa: ANN401 - the driver has no types for it
        """Awaits an answer of Kafka; raises one of Tailrace's errors."""
        try:
            return await answer
        except KafkaException as error:
            raise read_error(error_of(error), "asking for offsets", self._group) from None
        finally:
            self._admin.poll(0)  # it queues its log lines
