"""The trace of an event goes on in its handler, and each block is a span, if OpenTelemetry's SDK is installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tailrace.projections.core.apply import NoTracing, Tracing
from tailrace.projections.core.event import Event

if TYPE_CHECKING:
    from opentelemetry.context import Context

CARRIED = ("traceparent", "tracestate")
NOTHING = nullcontext()
MOST_LINKS = 128
"""What the SDK keeps of a span's links by default."""


def tracing(projection: str) -> Tracing:
    """What surrounds the work: spans with the SDK, nothing without."""
    return _Spans(projection) if find_spec("opentelemetry") and find_spec("opentelemetry.sdk") else NoTracing()


class _Spans:
    def __init__(self, projection: str) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._context = context
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._projection = projection

    def block(self, events: Sequence[Event]) -> AbstractContextManager[object]:
        """A span, linked to the spans in which its events were written."""
        told = [self._told(event) for event in events[:MOST_LINKS] if event.traceparent is not None]
        links = [self._trace.Link(self._trace.get_current_span(context).get_span_context()) for context in told]
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": self._projection,
            "messaging.destination.name": events[0].partition.topic,
            "messaging.destination.partition.id": str(events[0].partition.number),
            "messaging.batch.message_count": len(events),
        }
        tracer = self._trace.get_tracer("tailrace")
        return tracer.start_as_current_span(f"process {self._projection}", links=links, attributes=attributes)

    def handling(self, event: Event) -> AbstractContextManager[object]:
        """The handler's own spans become children of the one in which the event was written."""
        return self._within(event) if "traceparent" in event.said else NOTHING

    @contextmanager
    def _within(self, event: Event) -> Iterator[None]:
        token = self._context.attach(self._told(event))
        try:
            yield
        finally:
            self._context.detach(token)

    def _told(self, event: Event) -> Context:
        return self._propagator.extract({name: text for name in CARRIED if (text := event.header(name)) is not None})
