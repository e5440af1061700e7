"""Spans and metrics of a pipeline, read with the SDK's exporters in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from tailrace.event import Record
from tailrace.pipeline.batch import Batch
from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.worker import telemetry
from tailrace.worker.logs import StructuredLogger
from tailrace.worker.metrics import PipelineMetrics
from tailrace.worker.otel import Providers, configured
from tailrace.worker.telemetry import MAX_LINKS, PipelineTelemetry

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"


class Setup:
    """A pipeline's metrics with OpenTelemetry attached."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.metrics = PipelineMetrics()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.telemetry = PipelineTelemetry(
            "orders", self.metrics, StructuredLogger(pipeline="orders"), Providers(self.tracers, self.meters)
        )

    def points(self) -> dict[str, list[Any]]:
        """The data points by the metrics' names."""
        data = self.reader.get_metrics_data()
        found = [] if data is None else data.resource_metrics
        return {
            metric.name: list(metric.data.data_points)
            for resource in found
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def setup() -> Iterator[Setup]:
    made = Setup()
    yield made
    made.telemetry.close(5)


def batch(*headers: Any, topic: str = "shop.orders") -> Batch:
    made = Batch(position())
    for each in headers:
        made.add(Record(topic, b"{}", b"key", each, 0))
    made.rows = len(headers)
    made.oldest_ms = made.newest_ms = int(time.time() * 1000) - 3000
    made.read_at = made.submitted_at = time.time() - 1
    return made


def position() -> LsnPosition:
    return LsnPosition(LogIdentity("7", 1, "shop", "orders", "public.outbox", ""), 0x19602D8, 0)


def test_a_batch_has_one_span_that_links_to_the_contexts_of_its_events(setup: Setup) -> None:
    sent = batch([("id", "1"), ("traceparent", TRACEPARENT), ("tracestate", "a=b")], [("id", "2")])
    before = [list(record.headers) for record in sent.records]
    setup.metrics.committed(sent, 0.1)
    (span,) = setup.exporter.get_finished_spans()
    assert (span.name, span.kind) == ("send shop.orders", SpanKind.PRODUCER)
    assert span.parent is None
    (link,) = span.links
    assert f"{link.context.trace_id:032x}" == TRACE
    assert f"{link.context.span_id:016x}" == SPAN
    assert link.context.trace_state.get("a") == "b"
    assert span.context is not None
    assert span.context.trace_id != link.context.trace_id
    assert span.attributes is not None
    assert {name: span.attributes[name] for name in span.attributes if name.startswith("messaging")} == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.client.id": "tailrace-orders",
        "messaging.destination.name": "shop.orders",
        "messaging.batch.message_count": 2,
    }
    assert span.start_time is not None
    assert span.end_time is not None
    assert 0.9e9 < span.end_time - span.start_time < 60e9
    assert [list(record.headers) for record in sent.records] == before


def test_a_batch_for_several_topics_names_none(setup: Setup) -> None:
    sent = batch([])
    sent.add(Record("shop.users", b"", None, [], 0))
    setup.metrics.committed(sent, 0.1)
    (span,) = setup.exporter.get_finished_spans()
    assert span.name == "send"
    assert span.attributes is not None
    assert "messaging.destination.name" not in span.attributes


def test_the_links_of_a_large_batch_are_bounded_and_chosen_evenly(setup: Setup) -> None:
    count = 10 * MAX_LINKS + 7
    setup.metrics.committed(batch(*([("traceparent", f"00-{TRACE}-{n + 1:016x}-01")] for n in range(count))), 0.1)
    (span,) = setup.exporter.get_finished_spans()
    ids = [link.context.span_id for link in span.links]
    assert MAX_LINKS / 2 < len(ids) <= MAX_LINKS
    assert ids[0] == 1
    assert ids[-1] > count * 0.9


@pytest.mark.parametrize("value", ["", "nonsense", b"\xff\xfe", f"00-{'0' * 32}-{SPAN}-01", None])
def test_a_malformed_context_is_not_linked(setup: Setup, value: Any) -> None:
    setup.metrics.committed(batch([("traceparent", value)]), 0.1)
    (span,) = setup.exporter.get_finished_spans()
    assert span.links == ()


def test_a_position_without_events_has_no_span(setup: Setup) -> None:
    setup.metrics.committed(Batch(position()), 0.1)
    assert setup.exporter.get_finished_spans() == ()
    setup.metrics.committed(batch([]), 0.1)
    assert len(setup.exporter.get_finished_spans()) == 1


def test_metrics_are_those_of_the_snapshot(setup: Setup) -> None:
    setup.metrics.committed(batch([], []), 0.25)
    setup.metrics.dead_lettered("schema_validation_failed", 3)
    setup.metrics.probed({"outbox_lag_bytes": 77})
    points = setup.points()
    (delivered,) = points["tailrace.outbox_events_delivered"]
    assert (delivered.value, dict(delivered.attributes)) == (2, {"pipeline": "orders"})
    reasons = {point.attributes["reason"]: point.value for point in points["tailrace.outbox_events_dlq"]}
    assert reasons["schema_validation_failed"] == 3
    assert points["tailrace.outbox_lag_bytes"][0].value == 77
    (sent,) = points["messaging.client.operation.duration"]
    assert (sent.count, sent.attributes["messaging.operation.name"]) == (1, "send")
    assert 0.9 < sent.sum < 60
    assert points["tailrace.outbox_end_to_end_latency_seconds"][0].count == 2
    assert points["tailrace.outbox_commit_duration_seconds"][0].sum == 0.25
    assert points["tailrace.outbox_batch_events"][0].sum == 2


def test_an_error_turns_telemetry_off_and_is_logged(
    setup: Setup, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(setup.telemetry, "_measure", fail)
    setup.metrics.committed(batch([]), 0.1)
    setup.metrics.committed(batch([]), 0.1)
    assert setup.metrics.delivered == 2
    assert [record.getMessage() for record in caplog.records] == ["telemetry is off"]


def test_a_collector_that_does_not_answer_does_not_delay_the_end(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup.tracers, "shutdown", lambda: time.sleep(20))
    began = time.monotonic()
    setup.telemetry.close(0.2)
    assert time.monotonic() - began < 10
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("environ", "exporter"),
    [
        ({}, ""),
        ({"OTEL_TRACES_EXPORTER": "none"}, ""),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "True"}, ""),
        ({"OTEL_METRICS_EXPORTER": "console"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "otlp_proto_http"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "otlp_proto_grpc"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, ""),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "otlp_proto_grpc"),
    ],
)
def test_the_standard_variables_choose_the_exporter(environ: dict[str, str], exporter: str) -> None:
    assert configured("TRACES", environ) == exporter


def test_an_exporter_that_is_not_installed_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "carrier_pigeon")
    metrics = PipelineMetrics()
    started = telemetry.start("orders", metrics)
    started.close(1)
    assert type(started) is telemetry.Telemetry
    assert metrics.observers == []
    (record,) = caplog.records
    assert "carrier_pigeon" in record.__dict__["fields"]["what"]


def test_nothing_is_imported_unless_it_is_configured() -> None:
    code = (
        "import sys; from tailrace.worker import telemetry; from tailrace.worker.metrics import PipelineMetrics\n"
        "metrics = PipelineMetrics(); telemetry.start('orders', metrics).close(1)\n"
        "print(sorted(name for name in sys.modules if name.startswith('opentelemetry')), metrics.observers)"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    ran = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert ran.stdout == "[] []\n"
