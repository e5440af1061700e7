"""OpenTelemetry spans: one for each batch, and handlers continue the trace of their event. Needs the SDK."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tailrace.projections.core.event import Event

if TYPE_CHECKING:
    from opentelemetry.context import Context

PROPAGATED = ("traceparent", "tracestate")
NOTHING = nullcontext()
MAX_LINKS = 128
"""The SDK keeps no more links of a span by default."""


class Tracing:
    """Context managers around batches and handlers. This base class makes no spans."""

    def batch(self, events: Sequence[Event]) -> AbstractContextManager[object]:
        """Surrounds the transaction of a batch."""
        return NOTHING

    def handler(self, event: Event) -> AbstractContextManager[object]:
        """Surrounds a handler call, so that what it does belongs to the event's trace."""
        return NOTHING


def tracing(projection: str) -> Tracing:
    """Returns the tracing of a projection: spans if the SDK is installed, else nothing."""
    return _Spans(projection) if find_spec("opentelemetry") and find_spec("opentelemetry.sdk") else Tracing()


class _Spans(Tracing):
    def __init__(self, projection: str) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._context = context
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._projection = projection

    def batch(self, events: Sequence[Event]) -> AbstractContextManager[object]:
        """Starts a span that links to the spans in which the events were written."""
        contexts = [self._extract(event) for event in events[:MAX_LINKS] if event.traceparent is not None]
        links = [self._trace.Link(self._trace.get_current_span(context).get_span_context()) for context in contexts]
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

    def handler(self, event: Event) -> AbstractContextManager[object]:
        """Makes the handler's spans children of the span in which the event was written."""
        return self._within(event) if "traceparent" in event.header_values else NOTHING

    @contextmanager
    def _within(self, event: Event) -> Iterator[None]:
        token = self._context.attach(self._extract(event))
        try:
            yield
        finally:
            self._context.detach(token)

    def _extract(self, event: Event) -> Context:
        values = {name: value for name in PROPAGATED if (value := event.header(name)) is not None}
        return self._propagator.extract(values)
