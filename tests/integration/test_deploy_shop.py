"""The shop of compose/, without Docker: its set-up, commands, pipelines, metrics, alerts and dashboard really work.

The demo's scenario runs on it, as `make compose-test` runs it in containers.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from helpers.deploy_files import ALERTS, ROOT, alert_rules, dashboard_queries, used_metrics
from helpers.deploy_shop import Shop, open_shop
from helpers.deploy_tools import Unavailable, prometheus, promtool
from tailrace.testkit.demo.display import display_for
from tailrace.testkit.stack import wait_until
from tailrace.testkit.stack.ports import free_port
from tailrace.testkit.stack.process import LocalProcess
from tailrace.testkit.workload.writer import Mix
from tools.compose_shop import get, run_scenario_on

pytestmark = pytest.mark.slow

CONDITIONAL = {
    "ALERTS",  # while an alert is pending or fires
    "tailrace_certificate_expiry_timestamp_seconds",  # with TLS
}
"""Series that exist in certain conditions only."""
SCRAPES = 60.0


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with open_shop(tmp_path_factory.mktemp("shop")) as opened:
        yield opened


def test_the_demos_verdict(shop: Shop) -> None:
    display = display_for(io.StringIO())
    report = run_scenario_on(shop.environment, display, seconds=9, seed=19)
    assert report.ok, report.as_json()
    shown = report.as_json()
    assert shown["kills"] == 4
    assert set(shown["pipelines"]) == {"orders", "users"}
    assert shown["projections"]["order_summary"]["applied"] > 50


@pytest.fixture(scope="module")
def running(shop: Shop) -> Iterator[Shop]:
    """The shop with its worker and projection, which have seen valid and invalid events."""
    environment = shop.environment
    for program in (shop.worker, shop.projection):
        if not program.is_running:
            program.start()
    processes = [*(service.connector for service in environment.services), environment.projections[0].process]
    wait_until(lambda: all(process.ready for process in processes), 120, what="the start of worker and projection")
    for service in environment.services:
        writer = service.writer(seed=5, keys=10, mix=Mix(invalid=0.3))
        writer.start(rate=50)
        wait_until(lambda writer=writer: len(writer.written) > 100, 60)  # type: ignore[misc]
        writer.stop()
    url = f"http://127.0.0.1:{shop.worker_port}/metrics"
    wait_until(lambda: scraped_value(url, "tailrace_outbox_pending_events_count") == 0, 60, what="the last event")
    yield shop
    shop.worker.stop()
    shop.projection.stop()


def text_of(url: str) -> str:
    with urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def scraped_value(url: str, name: str) -> float:
    """Returns the largest value of a metric."""
    lines = [line for line in text_of(url).splitlines() if line.startswith(name + "{")]
    return max((float(line.rpartition(" ")[2]) for line in lines), default=-1.0)


def test_promtool_finds_nothing_wrong_with_the_metrics(running: Shop) -> None:
    try:
        program = promtool()
    except Unavailable as error:
        pytest.skip(str(error))
    for port in (running.worker_port, running.projection_port):
        text = text_of(f"http://127.0.0.1:{port}/metrics")
        done = subprocess.run([program, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        problems = [line for line in (done.stdout + done.stderr).splitlines() if not is_by_contract(line)]
        assert problems == []


def is_by_contract(line: str) -> bool:
    """Names that the requirements or other tools fix, whatever the conventions are."""
    counts = ("dlq_events_count", "pending_events_count", "parked_keys_count")
    return line.startswith(("debezium_metrics_", "kafka_connect_", *(f"tailrace_outbox_{name} " for name in counts)))


def test_the_health_checks_of_worker_and_projection_pass(running: Shop) -> None:
    for name, port in (("worker", running.worker_port), ("projection", running.projection_port)):
        kind, *command = running.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        for asked, code in ((port, 0), (free_port(), 1)):
            here = [sys.executable if word == "python" else word.replace("8083", str(asked)) for word in command]
            assert subprocess.run(here, capture_output=True, check=False).returncode == code


class Server:
    """A Prometheus with the configuration of compose/, whose targets are the shop's."""

    def __init__(self, shop: Shop, folder: Path) -> None:
        program = prometheus()
        text = (ROOT / "compose" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
        self.port = free_port()
        for there, here in {
            "worker:8083": f"127.0.0.1:{shop.worker_port}",
            "projection:8083": f"127.0.0.1:{shop.projection_port}",
            "localhost:9090": f"127.0.0.1:{self.port}",
            "/etc/prometheus/rules/*.yaml": str(ALERTS),
            "10s": "1s",
        }.items():
            assert there in text
            text = text.replace(there, here)
        (folder / "prometheus.yml").write_text(text)
        self.process = LocalProcess("prometheus", folder)
        self.process.launch(
            [
                str(program),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            {},
        )
        wait_until(self.has_scraped, SCRAPES, what="scrapes of all targets")

    def has_scraped(self) -> bool:
        try:
            targets = self.api("targets")["activeTargets"]
        except OSError:
            return False
        return len(targets) == 3 and all(each["health"] == "up" for each in targets)

    def api(self, path: str, **parameters: str) -> Any:
        return get(f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")["data"]

    def query(self, text: str) -> list[Any]:
        result: list[Any] = self.api("query", query=text)["result"]
        return result


@pytest.fixture(scope="module")
def server(running: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    try:
        started = Server(running, tmp_path_factory.mktemp("prometheus"))
    except Unavailable as error:
        pytest.skip(str(error))
    yield started
    started.process.close()


def test_prometheus_knows_every_metric_of_the_dashboard_and_the_alerts(server: Server) -> None:
    queries = [query for _, query in dashboard_queries()] + [rule["expr"] for rule in alert_rules()]
    wanted = {name for query in queries for name in used_metrics(query)} - CONDITIONAL
    wait_until(lambda: wanted <= set(server.api("label/__name__/values")), SCRAPES, what="all metrics")


def test_every_panel_shows_something(server: Server) -> None:
    def empty() -> list[str]:
        return [
            f"{title}: {query}"
            for title, query in dashboard_queries()
            if not (used_metrics(query).keys() & CONDITIONAL) and "< Inf" not in query and not server.query(query)
        ]

    # A rate needs two scrapes.
    wait_until(lambda: not empty(), SCRAPES, what="a value in every panel")


def test_prometheus_evaluates_every_rule_and_none_fires_on_a_healthy_shop(server: Server) -> None:
    def evaluated() -> bool:
        rules = [rule for group in server.api("rules")["groups"] for rule in group["rules"]]
        return len(rules) == len(alert_rules()) and all(rule["health"] == "ok" for rule in rules)

    wait_until(evaluated, SCRAPES, what="an evaluation of all rules")
    firing = {alert["labels"]["alertname"] for alert in server.api("alerts")["alerts"] if alert["state"] == "firing"}
    assert firing <= {"TailraceDeadLetters"}, "the writers wrote invalid events"


def test_a_failed_pipeline_raises_our_alert_and_those_of_strimzi(running: Shop, server: Server) -> None:
    """The file of the orders names a table that does not exist: the pipeline fails, and stays so."""
    strimzi = (
        'sum(kafka_connect_connector_status{status="failed"}) > 0',
        "sum(kafka_connect_worker_connector_failed_task_count) > 0",
    )
    assert all(not server.query(text) for text in strimzi)
    file = next((Path(running.worker.arguments[1])).glob("orders.yaml"))
    good = file.read_text(encoding="utf-8")
    try:
        file.write_text(good.replace("table: public.outbox", "table: public.nothing"), encoding="utf-8")
        failed = next(rule["expr"] for rule in alert_rules() if rule["alert"] == "TailracePipelineFailed")
        wait_until(lambda: all(server.query(text) for text in (failed, *strimzi)), 120, what="the alerts")
    finally:
        file.write_text(good, encoding="utf-8")


def test_the_compose_file_is_the_one_that_ran(shop: Shop) -> None:
    text = (ROOT / "compose" / "compose.yaml").read_text(encoding="utf-8")
    assert json.dumps(shop.services) == json.dumps(yaml.safe_load(text)["services"])
