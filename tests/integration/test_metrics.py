"""`/metrics` and `/health` of real pipelines on both databases: values, alerts, and servers that go away."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from psycopg.conninfo import make_conninfo

from helpers.service import Service
from helpers.shop import Shop, close_shop, open_shop
from helpers.tls import HOST, Certificates, TlsFront
from helpers.users import Users, close_users, open_users
from helpers.worker import WorkerProcess, Workers, put_pipeline
from tailrace.testkit.stack import KafkaBroker, MongoServer, PostgresServer, ServerChoice, StackError, wait_until
from tailrace.worker.metric_table import METRICS, STATES

VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'
SECRET = '{"card": "4111-1111-SECRET"}'
RARE = {"log_safe_bytes", "certificate_expiry_timestamp_seconds", "outbox_lag_bytes"}
"""Metrics that exist only with certain servers."""
Samples = dict[str, dict[tuple[str, ...], float]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "pipelines"


def scrape(worker: WorkerProcess, name: str) -> Samples:
    """Returns the samples of one pipeline by name, and by the values of further labels."""
    text = httpx2.get(f"{worker.url}/metrics", timeout=30).text
    assert "SECRET" not in text
    assert "4111-1111" not in text
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("pipeline") == name:
                rest = tuple(value for label, value in sorted(sample.labels.items()) if label != "pipeline")
                found.setdefault(sample.name.removeprefix("tailrace_"), {})[rest] = sample.value
    return found


def reaches(worker: WorkerProcess, name: str, wanted: dict[str, float], *labels: str) -> Samples:
    """Waits until the metrics have these values, and returns all."""
    last: Samples = {}

    def there() -> bool:
        last.clear()
        last.update(scrape(worker, name))
        return all(last.get(metric, {}).get(labels) == value for metric, value in wanted.items())

    try:
        wait_until(there, 60)
    except StackError:
        got = {metric: last.get(metric) for metric in wanted}
        pytest.fail(f"{got} instead of {wanted}\n{worker.log}")
    return last


def health(worker: WorkerProcess, name: str) -> tuple[int, Any]:
    answer = httpx2.get(f"{worker.url}/health?pipeline={name}", timeout=30)
    return answer.status_code, answer.json()


def check(worker: WorkerProcess, name: str, group: str, which: str) -> Any:
    return health(worker, name)[1]["pipelines"][name].get(group, {}).get("checks", {}).get(which, {})


def turns_red(worker: WorkerProcess, name: str, server: str) -> None:
    """Waits until the check of a server fails."""
    wait_until(lambda: check(worker, name, "publisher", server).get("status") == "fail", 60, what=f"a red {server}")


@pytest.fixture(params=["postgres", "mongo"])
def service(request: pytest.FixtureRequest) -> Service:
    found: Service = request.getfixturevalue("shop" if request.param == "postgres" else "users")
    return found


def write(service: Service, good: int, bad: int) -> None:
    """Writes events, and others that do not fit their schema."""
    for number in range(good):
        if isinstance(service, Shop):
            service.insert(VALID, key=str(number))
        elif isinstance(service, Users):
            service.insert(str(number))
    for number in range(bad):
        if isinstance(service, Shop):
            service.insert(SECRET, key=f"bad{number}")
        elif isinstance(service, Users):
            service.insert(f"bad{number}", payload={"card": "4111-1111-SECRET"})


def test_every_metric_appears_and_moves(service: Service, workers: Workers, folder: Path) -> None:
    put_pipeline(folder, service, limits={"stall_timeout": 8}, source={"link_timeout": 4})
    worker = workers.start(folder)
    worker.says("running", service.name)
    before = reaches(worker, service.name, {"outbox_pending_events_count": 0, "outbox_dlq_events_count": 0})
    assert before["outbox_events_published_total"] == {(): 0}
    write(service, 30, 4)
    after = reaches(
        worker,
        service.name,
        {
            "outbox_events_published_total": 34,
            "outbox_events_delivered_total": 30,
            "outbox_events_failed_total": 4,
            "outbox_validation_errors_total": 4,
            "outbox_dlq_events_count": 4,
            "outbox_pending_events_count": 0,
            "outbox_lag_seconds": 0,
        },
    )
    assert after["outbox_events_dlq_total"]["schema_validation_failed",] == 4
    assert sum(after["outbox_events_dlq_total"].values()) == 4
    for histogram in ("outbox_end_to_end_latency_seconds", "outbox_delivery_duration_seconds", "outbox_batch_events"):
        assert after[f"{histogram}_count"][()] > 0
        assert after[f"{histogram}_sum"][()] > 0
    assert after["outbox_batch_events_sum"][()] == 34
    assert after["outbox_validation_duration_seconds_count"][()] > 0
    assert after["outbox_commit_duration_seconds_count"][()] > 0
    stages = after["outbox_stage_duration_seconds_count"]
    assert set(stages) == {("source",), ("processing",), ("publish",)}
    assert len(set(stages.values())) == 1
    assert after["outbox_table_size_bytes"][()] > 0
    assert after["outbox_bytes_read_total"][()] > 0
    assert after["pipeline_process_resident_memory_bytes"][()] > 10_000_000
    assert after["pipeline_process_open_fds"][()] > 5
    assert after["alerts_total"]["dead_letters",] >= 1
    assert after["server_up"] == {("source",): 1, ("kafka",): 1}
    assert after["pipeline_state"] == {(state,): float(state == "RUNNING") for state in STATES}
    missing = {
        metric.name
        for metric in METRICS
        if not ({metric.name, f"{metric.name}_count"} & after.keys()) and metric.name not in RARE
    }
    assert not missing
    assert worker.stop() == 0


@pytest.mark.slow
def test_a_paused_pipeline_falls_behind_and_catches_up(shop: Shop, workers: Workers, folder: Path) -> None:
    """While there is no process, nothing is said about lag and log."""
    put_pipeline(folder, shop, limits={"stall_timeout": 8}, source={"link_timeout": 4})
    worker = workers.start(folder)
    worker.says("running", shop.name)
    reaches(worker, shop.name, {"outbox_pending_events_count": 0, "outbox_lag_bytes": 0})
    worker.change(shop.name, "pause")
    worker.is_in(shop.name, "PAUSED")
    assert "outbox_lag_bytes" not in scrape(worker, shop.name)
    assert scrape(worker, shop.name)["pipeline_state"]["PAUSED",] == 1
    assert health(worker, shop.name)[0] == 200
    for number in range(500):
        shop.insert(VALID, key=str(number))
    worker.change(shop.name, "resume")
    reaches(worker, shop.name, {"outbox_events_published_total": 500, "outbox_lag_seconds": 0})


def test_health_of_postgres_that_is_gone(kafka: KafkaBroker, workers: Workers, folder: Path, tmp_path: Path) -> None:
    with PostgresServer("16", choice=ServerChoice.LOCAL) as postgres:
        shop = open_shop(postgres, kafka, tmp_path)
        try:
            put_pipeline(folder, shop, limits={"stall_timeout": 8}, source={"link_timeout": 2})
            worker = workers.start(folder)
            worker.says("running", shop.name)
            wait_until(lambda: health(worker, shop.name)[0] == 200, 60, what="a healthy pipeline")
            assert httpx2.get(f"{worker.url}/readyz").status_code == 200
            postgres.kill()
            turns_red(worker, shop.name, "database")
            code, answer = health(worker, shop.name)
            assert (code, answer["status"]) == (500, "unhealthy")
            assert check(worker, shop.name, "publisher", "database")["remedy"]
            assert check(worker, shop.name, "publisher", "kafka")["status"] == "ok"
            assert scrape(worker, shop.name)["server_up"]["source",] == 0
            wait_until(lambda: scrape(worker, shop.name)["pipeline_state"]["RETRYING",] == 1, 60, what="RETRYING")
            assert check(worker, shop.name, "publisher", "running")["status"] == "fail"
            assert httpx2.get(f"{worker.url}/livez").status_code == 200
            postgres.start()
            wait_until(lambda: health(worker, shop.name)[0] == 200, 120, what="a healthy pipeline")
            counted = scrape(worker, shop.name)
            errors = counted["outbox_network_errors_total"][()] + counted["outbox_timeout_errors_total"][()]
            assert errors >= 1
            assert counted["outbox_retries_total"]["attempt",] >= 1
            assert counted["outbox_retry_delay_seconds_count"][()] >= 1
        finally:
            close_shop(shop)


@pytest.mark.slow
def test_lag_and_health_while_kafka_is_gone(
    postgres: PostgresServer, workers: Workers, folder: Path, tmp_path: Path
) -> None:
    with KafkaBroker(choice=ServerChoice.LOCAL) as kafka:
        shop = open_shop(postgres, kafka, tmp_path)
        try:
            put_pipeline(folder, shop, limits={"stall_timeout": 8}, source={"link_timeout": 2})
            worker = workers.start(folder)
            worker.says("running", shop.name)
            reaches(worker, shop.name, {"outbox_pending_events_count": 0, "outbox_lag_bytes": 0})
            kafka.kill()
            shop.execute("CREATE TABLE filler (t text)")
            shop.execute("INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
            shop.execute(
                "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
                "SELECT gen_random_uuid(), 'order', 'k', 'OrderPlaced', %s FROM generate_series(1, 300)",
                VALID,
            )
            turns_red(worker, shop.name, "kafka")
            assert check(worker, shop.name, "publisher", "kafka")["remedy"]
            assert check(worker, shop.name, "publisher", "database")["status"] == "ok"
            found = reaches(worker, shop.name, {"outbox_pending_events_count": 300})
            assert found["outbox_lag_bytes"][()] > 1_000_000
            assert found["outbox_lag_seconds"][()] > 0
            assert found["log_retained_bytes"][()] > 1_000_000
            kafka.start()
            reaches(worker, shop.name, {"outbox_events_delivered_total": 300, "outbox_pending_events_count": 0})
            wait_until(lambda: health(worker, shop.name)[0] == 200, 120, what="a healthy pipeline")
        finally:
            close_shop(shop)


@pytest.mark.slow
def test_health_of_mongodb_that_is_gone(kafka: KafkaBroker, workers: Workers, folder: Path, tmp_path: Path) -> None:
    with MongoServer(choice=ServerChoice.LOCAL) as mongo:
        users = open_users(mongo, kafka, tmp_path)
        try:
            put_pipeline(folder, users, limits={"stall_timeout": 8}, source={"link_timeout": 2})
            worker = workers.start(folder)
            worker.says("running", users.name)
            wait_until(lambda: health(worker, users.name)[0] == 200, 60, what="a healthy pipeline")
            mongo.kill()
            wait_until(
                lambda: check(worker, users.name, "publisher", "database").get("status") == "fail",
                60,
                what="a red database",
            )
            assert check(worker, users.name, "publisher", "database")["remedy"]
            mongo.start()
            wait_until(lambda: health(worker, users.name)[0] == 200, 120, what="a healthy pipeline")
        finally:
            close_users(users)


@pytest.mark.slow
def test_a_slot_close_to_its_limit_is_a_log_in_danger(
    kafka: KafkaBroker, workers: Workers, folder: Path, tmp_path: Path
) -> None:
    settings = {"max_slot_wal_keep_size": "64MB", "checkpoint_timeout": "1h", "max_wal_size": "1GB"}
    with PostgresServer("16", settings=settings, choice=ServerChoice.LOCAL) as postgres:
        shop = open_shop(postgres, kafka, tmp_path)
        try:
            put_pipeline(folder, shop, limits={"stall_timeout": 8}, source={"link_timeout": 4})
            worker = workers.start(folder)
            worker.says("running", shop.name)
            found = reaches(worker, shop.name, {"outbox_pending_events_count": 0})
            assert found["log_safe_bytes"][()] > 32 << 20
            # A long transaction holds the slot back, and others write.
            shop.execute("CREATE TABLE filler (t text)")
            with psycopg.connect(shop.dsn) as open_transaction:
                open_transaction.execute("SELECT pg_current_xact_id()")
                for _ in range(60):
                    shop.execute("INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
                worker.says("alert", shop.name)
                alert = worker.events("alert", shop.name)[0]
                assert alert["alert"] == "log_in_danger"
                assert alert["remedy"]
                # The alert may be raised before the probe has seen all that was written.
                wait_until(
                    lambda: check(worker, shop.name, "data", "log")["status"] == "fail", 60, what="the check to fail"
                )
                assert scrape(worker, shop.name)["log_lost_in_seconds"][()] < 3600
        finally:
            close_shop(shop)


def test_a_worker_restarts_a_stalled_pipeline(shop: Shop, workers: Workers, folder: Path, tmp_path: Path) -> None:
    """The hook is in all processes of the worker: a file blocks the reading thread."""
    hooks, block = tmp_path / "hooks", tmp_path / "block"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(
        "import os, threading\n"
        "try:\n"
        "    from tailrace.pipeline import loop\n"
        "except ImportError:\n"
        "    pass\n"
        "else:\n"
        "    process = loop.PipelineLoop._process\n"
        "    def blocked(self, chunk, batch):\n"
        "        while os.path.exists(os.environ.get('BLOCK', '')):\n"
        "            threading.Event().wait(0.1)\n"
        "        return process(self, chunk, batch)\n"
        "    loop.PipelineLoop._process = blocked\n"
    )
    put_pipeline(folder, shop, limits={"stall_timeout": 4}, source={"link_timeout": 2})
    worker = workers.start(folder, "--restart-minutes", "0.001", BLOCK=str(block), PYTHONPATH=str(hooks))
    worker.says("running", shop.name)
    first = worker.pid_of(shop.name)
    block.touch()
    shop.insert(VALID)
    failure = worker.says("failed", shop.name)
    assert failure["error"] == "PipelineStalled"
    worker.says("restart", shop.name)
    block.unlink()
    worker.says("process started", shop.name, times=2)
    assert worker.pid_of(shop.name) != first
    reaches(worker, shop.name, {"outbox_events_delivered_total": 1})
    found = scrape(worker, shop.name)
    assert found["pipeline_restarts_total"][()] >= 1
    wait_until(
        lambda: [each["alert"] for each in worker.events("alert", shop.name)] == ["stall", "recovery"],
        what="the alerts",
    )


def test_the_expiry_of_a_certificate(shop: Shop, workers: Workers, folder: Path, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    with TlsFront(certificates.server(), shop.postgres.port, postgres=True) as front:
        trusted = str(certificates.authority)
        dsn = make_conninfo(shop.dsn, host=HOST, port=front.port, sslmode="verify-full", sslrootcert=trusted)
        put_pipeline(folder, shop, source={"postgres": dsn})
        worker = workers.start(folder)
        worker.says("running", shop.name)
        wait_until(
            lambda: "certificate_expiry_timestamp_seconds" in scrape(worker, shop.name),
            60,
            what="the certificate's expiry",
        )
        found = scrape(worker, shop.name)["certificate_expiry_timestamp_seconds"]
        assert found.keys() == {("source",)}
        # Those of the tests are valid for 30 days.
        assert found["source",] - time.time() == pytest.approx(30 * 86_400, abs=86_400)
        worker.stop()
