"""A handler continues the trace of its event."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from helpers.memory_store import MemoryStore
from tailrace.projections import ProjectionTester, projection_app
from tailrace.projections.core.event import Event
from tailrace.projections.projection import Projection

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def test_a_batch_has_a_span_and_handlers_continue_the_trace_of_their_event(spans: InMemorySpanExporter) -> None:
    orders = Projection(projection_app("app"), "orders", store=MemoryStore(), name="summary")

    @orders.on()
    async def handle(event: Event, effects: Any) -> None:
        with trace.get_tracer("handler").start_as_current_span(f"inside {event.type}"):
            pass

    async def scenario() -> None:
        async with ProjectionTester(orders) as tester:
            await tester.send("Traced", {}, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
            await tester.send("Untraced", {})

    asyncio.run(scenario())
    traced, first, untraced, second = spans.get_finished_spans()
    assert traced.context is not None
    assert f"{traced.context.trace_id:032x}" == TRACE
    assert traced.parent is not None
    assert f"{traced.parent.span_id:016x}" == SPAN
    assert (first.name, second.name) == ("process summary", "process summary")
    assert [f"{link.context.trace_id:032x}" for link in first.links] == [TRACE]
    assert (first.attributes or {})["messaging.batch.message_count"] == 1
    assert second.context is not None
    assert untraced.parent is not None
    assert untraced.parent.span_id == second.context.span_id


def test_an_agent_continues_the_trace_of_its_event_within_once(spans: InMemorySpanExporter) -> None:
    app = projection_app("app")

    @app.agent(app.events("orders", store=MemoryStore(), name="summary"))
    async def agent(stream: Any) -> None:
        async for event in stream:
            async with event.once():
                trace.get_tracer("agent").start_span("inside").end()
            trace.get_tracer("agent").start_span("after").end()

    async def scenario() -> None:
        async with ProjectionTester(agent) as tester:
            await tester.send("Traced", {}, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
            await tester.send("Untraced", {})

    asyncio.run(scenario())
    inside, batch, after = spans.get_finished_spans()[:3]
    assert (inside.name, batch.name, after.name) == ("inside", "process summary", "after")
    assert inside.parent is not None
    assert f"{inside.parent.span_id:016x}" == SPAN
    assert after.parent is None
