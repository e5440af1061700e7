"""`publish_event_transactionally`: adds an event to a `storage_outbox` inside the service's own transaction.

    publish_event_transactionally("s-1", "store", "STORED", {"size": 3}, {"correlation_id": "c-1"}, connection)

The connection may be of any driver that the writer knows; with an asyncio one the call is awaited. The event gets the
next sequence number of its aggregate, a target topic by rule, and an entry in the WAL log, with one statement. Services
that want schemas or receipts use `StorageOutbox`, or the writer itself: `Outbox(layout="storage")`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from tailrace.errors import EventInvalid
from tailrace.outbox.specs import METADATA
from tailrace.outbox.writer.event import trace_context, uuid7
from tailrace.outbox.writer.outbox import Outbox
from tailrace.outbox.writer.payload import MAX_BYTES, PayloadWriter
from tailrace.outbox.writer.receipt import Receipt
from tailrace.outbox.writer.requests import Handle
from tailrace.schema_versions import FIRST_VERSION

TopicRule = Mapping[str, str] | Callable[[str, str], str]
"""Topics by pattern of the event type, tried in their order; or a function of event type and aggregate type."""

Published = Any
"""The outbox id; with an asyncio connection, an awaitable of it."""
DEFAULT_TOPICS: TopicRule = {"*": "outbox.event.{aggregate}"}
PREFIX = "outbox_"


class StorageOutbox:
    """Publishes through one storage outbox. Thread-safe; make one at start-up.

    `topics` maps patterns such as `STORAGE_TRANSACTION_*` to topics, which may contain `{aggregate}` and `{type}`. All
    other settings are those of `Outbox`, such as `schemas`.
    """

    def __init__(
        self,
        table: str = "public.storage_outbox",
        *,
        topics: TopicRule = DEFAULT_TOPICS,
        **settings: Any,  # noqa: ANN401 - those of Outbox
    ) -> None:
        self._outbox = Outbox(layout="storage", table=table, **settings)
        self._topics = topics
        self._metadata = PayloadWriter(None, MAX_BYTES)

    def publish_event_transactionally(
        self,
        aggregate_id: str,
        aggregate_type: str,
        event_type: str,
        payload: Mapping[str, Any],
        metadata: Mapping[str, Any],
        connection: Handle,
        *,
        partition_key: str | None = None,
    ) -> Published:
        """Adds the event; returns its outbox id. With an asyncio connection, returns an awaitable of it.

        The record's key is the aggregate's id, unless `partition_key` is given. The schema's version is `event_version`
        of the metadata, or 1.0.0.
        """
        text = self._with_trace(metadata)
        receipt = self._outbox.add(
            connection,
            event_type,
            payload,
            aggregate=(aggregate_type, aggregate_id),
            id=PREFIX + uuid7(),
            key=partition_key,
            topic=self._topic(event_type, aggregate_type),
            version=str(metadata.get("event_version", FIRST_VERSION)),
            extra={METADATA: text},
        )
        return receipt.id if isinstance(receipt, Receipt) else _id_later(receipt)

    def _topic(self, event_type: str, aggregate_type: str) -> str:
        if callable(self._topics):
            return self._topics(event_type, aggregate_type)
        for pattern, topic in self._topics.items():
            if fnmatchcase(event_type, pattern):
                return topic.replace("{aggregate}", aggregate_type).replace("{type}", event_type)
        raise EventInvalid(
            f"no rule names a topic for {event_type!r}",
            why=f"The patterns are {', '.join(self._topics)}.",
            remedy="Add a pattern to StorageOutbox(topics=…), such as '*'.",
        )

    def _with_trace(self, metadata: Mapping[str, Any]) -> bytes:
        """Returns the metadata as JSON text, with the trace context of this call."""
        if not isinstance(metadata, Mapping):
            raise EventInvalid("the metadata is not an object", remedy="Give a dict; {} if there is none.")
        traceparent, tracestate = trace_context(None)
        trace = {"traceparent": traceparent, "tracestate": tracestate} if traceparent else {}
        given = {name: value for name, value in trace.items() if value is not None}
        return self._metadata.text({**given, **metadata}) or b"{}"


async def _id_later(receipt: Published) -> str:
    return str((await receipt).id)


_default: list[StorageOutbox] = []


def publish_event_transactionally(
    aggregate_id: str,
    aggregate_type: str,
    event_type: str,
    payload: Mapping[str, Any],
    metadata: Mapping[str, Any],
    connection: Handle,
) -> Published:
    """Adds the event to `public.storage_outbox`; returns its outbox id, or an awaitable of it.

    Its topic is `outbox.event.<aggregate type>`. For another table or other topics, make a `StorageOutbox`.
    """
    if not _default:
        _default.append(StorageOutbox())
    return _default[0].publish_event_transactionally(
        aggregate_id, aggregate_type, event_type, payload, metadata, connection
    )
