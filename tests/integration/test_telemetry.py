"""A real `tailrace run` with OpenTelemetry configured by its standard variables."""

from __future__ import annotations

import json
import re
from typing import Any

from helpers.projection import Projected
from helpers.shop import Connector, Shop
from helpers.worker import WorkerProcess, Workers, put_pipeline
from tailrace.testkit.stack import wait_until
from tailrace.testkit.stack.ports import free_port
from tailrace.testkit.topic_reader import read_all
from tailrace.testkit.workload.writer import Mix

CONSOLE = {
    "OTEL_TRACES_EXPORTER": "console",
    "OTEL_METRICS_EXPORTER": "console",
    "OTEL_BSP_SCHEDULE_DELAY": "200",
    "OTEL_METRIC_EXPORT_INTERVAL": "500",
    "OTEL_SERVICE_NAME": "shop-connector",
}


def printed(connector: Connector | WorkerProcess) -> list[dict[str, Any]]:
    """The JSON objects that the console exporters printed, between log lines."""
    found, text, decoder = [], connector.log, json.JSONDecoder()
    for start in re.finditer(r"^\{\n", text, re.M):
        try:
            found.append(decoder.raw_decode(text, start.start())[0])
        except json.JSONDecodeError:
            pass  # not complete yet
    return found


def spans(connector: Connector | WorkerProcess) -> list[dict[str, Any]]:
    return [each for each in printed(connector) if str(each.get("name", "")).startswith("send")]


def points(connector: Connector | WorkerProcess, name: str) -> list[dict[str, Any]]:
    """The data points of the last export that has this metric."""
    exports = [each for each in printed(connector) if "resource_metrics" in each]
    for export in reversed(exports):
        for resource in export["resource_metrics"]:
            for scope in resource["scope_metrics"]:
                for metric in scope["metrics"]:
                    if metric["name"] == name:
                        return list(metric["data"]["data_points"])
    return []


def test_batches_have_spans_and_events_keep_their_own_context(shop: Shop) -> None:
    connector = shop.start(**CONSOLE)
    writer = shop.writer(mix=Mix(invalid=0))
    for _ in range(40):
        writer.transaction()
    assert shop.caught_up().ok
    events = len(shop.published())
    assert connector.stop() == 0
    made = spans(connector)
    assert sum(span["attributes"]["messaging.batch.message_count"] for span in made) == events
    assert {span["name"] for span in made} == {f"send {shop.topic}"}
    assert {span["kind"] for span in made} == {"SpanKind.PRODUCER"}
    assert {span["parent_id"] for span in made} == {None}
    assert {span["resource"]["attributes"]["service.name"] for span in made} == {"shop-connector"}
    stored = {str(id): text for id, text in shop.execute("SELECT id, traceparent FROM outbox")}
    records = [dict(message.headers() or []) for message in read_all(shop.kafka.bootstrap, [shop.topic])]
    published = {headers["id"].decode(): headers["traceparent"] for headers in records}
    # The headers are what the service wrote, although each batch has a span.
    assert published == {name: stored[name].encode() for name in published}
    linked = {(link["context"]["trace_id"], link["context"]["span_id"]) for span in made for link in span["links"]}
    written = {(f"0x{text[3:35]}", f"0x{text[36:52]}") for text in stored.values()}
    assert linked <= written
    assert len(linked) > 10
    (delivered,) = points(connector, "tailrace.outbox_events_delivered")
    assert (delivered["value"], delivered["attributes"]["pipeline"]) == (events, shop.name)
    (sent,) = points(connector, "messaging.client.operation.duration")
    assert sent["count"] == len(made)


def test_a_projection_worker_exports_its_spans_and_metrics(projected: Projected) -> None:
    worker = projected.start(**CONSOLE)
    traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    projected.publish({"key": 1, "headers": {"traceparent": traceparent}}, {"key": 2})
    projected.caught_up()

    def applied() -> float:
        return sum(
            point["value"]
            for point in points(worker, "tailrace.projection_events")
            if point["attributes"]["outcome"] == "applied"
        )

    wait_until(lambda: applied() == 2, 60, what="metrics")
    (state,) = (each for each in points(worker, "tailrace.projection_state") if each["value"])
    assert state["attributes"] == {"projection": projected.name, "state": "RUNNING"}
    assert worker.stop() == 0
    made = [each for each in printed(worker) if str(each.get("name", "")).startswith("process")]
    assert sum(span["attributes"]["messaging.batch.message_count"] for span in made) == 2
    (link,) = (link for span in made for link in span["links"])
    assert link["context"]["trace_id"] == "0x4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_collector_that_is_away_delays_nothing(shop: Shop) -> None:
    """No exporter for OTLP is installed here: the pipeline runs, and the log says what is missing."""
    connector = shop.start(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{free_port()}")
    connector.says("telemetry is off")
    assert "opentelemetry-exporter-otlp-proto-http" in connector.log
    assert connector.stop() == 0


def test_the_pipelines_of_a_worker_export_as_well(workers: Workers, shop: Shop) -> None:
    folder = shop.folder / "pipelines"
    put_pipeline(folder, shop)
    worker = workers.start(folder, **CONSOLE)
    wait_until(lambda: '"running"' in worker.log, 120, what="a running pipeline")
    shop.writer(mix=Mix(invalid=0)).transaction(rollback=False)
    wait_until(lambda: spans(worker), 60, what="a span")
    assert {span["attributes"]["tailrace.pipeline"] for span in spans(worker)} == {shop.name}
    wait_until(lambda: points(worker, "tailrace.outbox_lag_bytes"), 60, what="what the probe has read")
    assert worker.stop() == 0
