"""`tailrace project --http`: what a scrape of a real projection worker shows, and when the worker counts as healthy."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import psycopg
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from helpers.projection import Projected, Worker
from tailrace.projections.core.metrics import METRICS
from tailrace.testkit.stack import wait_until
from tailrace.testkit.stack.ports import free_port

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Edge:
    """The HTTP edge of a worker."""

    def __init__(self, projected: Projected, *arguments: str, wait: bool = True) -> None:
        self.port = free_port()
        self.name = projected.name
        self.topic = projected.topic
        self.worker: Worker = projected.start("--http", str(self.port), *arguments, wait=wait)

    def get(self, path: str, **headers: str) -> tuple[int, str, str]:
        """Returns status, content type and body; 0 if nothing listens."""
        request = Request(f"http://127.0.0.1:{self.port}{path}", headers=headers)
        try:
            with urlopen(request, timeout=10) as answer:
                return answer.status, answer.headers["content-type"], answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.headers["content-type"], error.read().decode()
        except URLError:
            return 0, "", ""

    def ready(self) -> tuple[int, dict[str, Any]]:
        """Returns the status of /readyz, and what it says about the projection."""
        status, _, body = self.get("/readyz")
        return status, json.loads(body)["projections"][0] if status else {}

    def scrape(self) -> Samples:
        status, _, body = self.get("/metrics")
        assert status == 200, body
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(body)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """Returns one sample of the projection."""
        return self.scrape()[f"tailrace_{name}", frozenset({"projection": self.name, **labels}.items())]

    def events(self, outcome: str) -> float:
        return self.value("projection_events_total", topic=self.topic, outcome=outcome)


def configure_backoff(projected: Projected, settings: str) -> None:
    projected.configure(f"within=0.01, {settings}")
    module = projected.folder / f"{projected.module}.py"
    module.write_text("from tailrace.backoff import Backoff\n" + module.read_text())


def test_a_scrape_shows_what_the_projection_did(projected: Projected) -> None:
    configure_backoff(projected, "max_attempts=2, backoff=Backoff(base=0.01, maximum=0.02)")
    edge = Edge(projected)
    first = projected.publish(*({"key": number} for number in range(20)))
    projected.publish({"key": 0, "id": first[0]}, {"key": 1, "value": b'{"fail": true}'})
    wait_until(lambda: edge.events("dead") == 1 and edge.events("duplicate") == 1, 60, what="all outcomes")
    assert edge.events("applied") == 20
    assert edge.value("projection_dead_letters_total", reason="max_retries_exceeded") == 1
    assert edge.value("projection_retries_total", cause="event") >= 2
    assert edge.value("projection_retries_total", cause="store") == 0
    assert edge.value("projection_batch_events_sum") == 22
    batches = edge.value("projection_batches_total")
    assert 1 <= batches <= 22
    assert edge.value("projection_apply_duration_seconds_count") == batches
    assert edge.value("projection_apply_duration_seconds_bucket", le="+Inf") == batches
    assert edge.value("projection_apply_duration_seconds_sum") > 0
    assert 0 <= edge.value("projection_last_event_age_seconds", topic=projected.topic) < 120
    assert edge.value("projection_partitions") == 3
    assert edge.value("projection_state", state="RUNNING") == 1
    assert edge.value("projection_state", state="BLOCKED") == 0
    wait_until(lambda: edge.value("projection_lag_events", topic=projected.topic) == 0, 60, what="no lag")
    assert edge.value("external_db_transactions_written_total") == 20
    exported = {name for name, _ in edge.scrape()}
    for metric in METRICS:
        suffix = "_count" if metric.kind == "histogram" else ""
        assert f"tailrace_{metric.name}{suffix}" in exported
    assert "process_resident_memory_bytes" in exported
    assert edge.worker.stop() == 0
    assert edge.get("/metrics")[0] == 0


def test_other_formats_and_another_prefix(projected: Projected) -> None:
    edge = Edge(projected, "--metrics-prefix", "shop")
    _, kind, body = edge.get("/metrics", accept=OPENMETRICS)
    assert kind.startswith("application/openmetrics-text")
    names = {family.name for family in parse_openmetrics(body)}
    assert "shop_projection_events" in names
    assert not any(name.startswith("tailrace") for name in names)
    assert edge.get("/nothing")[0] == 404


WAITING_HANDLER = """
import asyncio
from pathlib import Path

@projection.on("Wait")
async def wait(event, effects):
    while not Path("go").exists():
        await asyncio.sleep(0.05)
"""


def test_a_worker_is_not_ready_without_progress_and_stays_alive(projected: Projected) -> None:
    """A restart would not help. The lag grows meanwhile."""
    projected.configure("within=0.01, give_up=8, time_limit=100", WAITING_HANDLER)
    edge = Edge(projected)
    projected.publish({"key": 1})
    wait_until(lambda: edge.events("applied") == 1, 60, what="an applied event")
    status, shown = edge.ready()
    assert (status, shown["state"], shown["partitions"]) == (200, "RUNNING", 3)
    projected.publish(*({"key": 2, "headers": {"type": "Wait"}} for _ in range(5)))
    wait_until(lambda: edge.ready()[0] == 503, 60, what="not ready")
    status, shown = edge.ready()
    assert (status, shown["state"]) == (503, "STALLED")
    assert "no progress" in shown["what"]
    assert shown["remedy"]
    assert edge.get("/livez")[0] == 200
    assert edge.value("projection_state", state="STALLED") == 1
    assert edge.value("projection_stalled_seconds") >= 4
    wait_until(lambda: edge.value("projection_lag_events", topic=projected.topic) >= 5, 60, what="a lag")
    (projected.folder / "go").touch()
    wait_until(lambda: edge.ready()[0] == 200 and edge.events("applied") == 6, 60, what="ready again")


def test_a_worker_is_not_ready_while_its_database_does_not_let_it_write(projected: Projected) -> None:
    edge = Edge(projected)
    projected.publish({"key": 1})
    projected.caught_up()
    with psycopg.connect(projected.dsn) as session:
        session.execute(f"LOCK TABLE {projected.name}.history IN ACCESS EXCLUSIVE MODE")  # as a migration may
        projected.publish({"key": 2})
        wait_until(lambda: edge.ready()[0] == 503, 60, what="not ready")
        assert edge.ready()[1]["state"] == "BLOCKED"
        assert edge.value("projection_retries_total", cause="store") >= 1
        assert edge.value("external_db_mongodb_write_errors_total") >= 1
        session.rollback()
    wait_until(lambda: edge.ready()[0] == 200, 60, what="ready again")
    projected.caught_up()


def test_a_worker_is_not_ready_while_it_retries_an_event(projected: Projected) -> None:
    configure_backoff(projected, "max_attempts=2, backoff=Backoff(base=3, maximum=3)")
    edge = Edge(projected)
    projected.publish({"key": 1, "value": b'{"fail": true}'})
    wait_until(lambda: edge.ready()[0] == 503, 60, what="not ready")
    assert edge.ready()[1]["state"] == "BLOCKED"
    assert "ValueError" in edge.ready()[1]["what"]
    wait_until(lambda: edge.ready()[0] == 200, 60, what="ready again")
    assert edge.events("dead") == 1


def test_a_worker_that_waits_for_kafka_is_alive_but_not_ready(projected: Projected) -> None:
    module = projected.folder / f"{projected.module}.py"
    module.write_text(module.read_text().replace(projected.kafka.bootstrap, f"127.0.0.1:{free_port()}"))
    edge = Edge(projected, wait=False)
    edge.worker.says('"waiting"')
    assert edge.get("/livez")[0] == 200
    status, shown = edge.ready()
    assert (status, shown["state"]) == (503, "STARTING")
    assert "Kafka" in shown["what"]
    assert edge.scrape()[
        "tailrace_projection_state", frozenset({("projection", projected.name), ("state", "STARTING")})
    ]
    assert edge.worker.stop() == 0


def test_a_blocked_event_loop_still_answers(projected: Projected) -> None:
    """The edge has its own thread. Only a loop that is blocked for longer fails /livez (BLOCKED_SECONDS)."""
    projected.configure(
        more="""
import time
from pathlib import Path

@projection.on("Block")
async def block(event, effects):
    Path("blocked").touch()
    while not Path("go").exists():
        time.sleep(0.05)
"""
    )
    edge = Edge(projected)
    projected.publish({"key": 1, "headers": {"type": "Block"}})
    blocked = projected.folder / "blocked"
    wait_until(blocked.exists, 60, what="a blocked loop")
    assert edge.scrape()
    assert edge.ready()[0] in (200, 503)
    wait_until(lambda: edge.get("/livez")[0] == 503, 60, what="a failed liveness probe")
    assert "event loop" in json.loads(edge.get("/livez")[2])["what"]
    (projected.folder / "go").touch()
    wait_until(lambda: edge.get("/livez")[0] == 200, 60, what="alive again")


@pytest.mark.parametrize(
    ("address", "error"), [("taken", "AddressInUse"), ("nonsense", "is not an address"), ("70000", "is not an address")]
)
def test_a_bad_address_is_reported_before_anything_runs(projected: Projected, address: str, error: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = str(taken.getsockname()[1]) if address == "taken" else address
        ended = projected.command("--http", given)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert error in ended.stdout + ended.stderr
