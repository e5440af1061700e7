"""`/livez`, `/readyz` and `/health` for every state of a pipeline and of its servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tailrace.api import health
from tailrace.api.errors import answer_error
from tailrace.api.health_checks import FAIL, OK, UNKNOWN, WARN, Check, groups
from tailrace.config.secrets import remember
from tailrace.errors import TailraceError
from tailrace.manager.managed import ManagedPipeline
from tailrace.manager.manager import PipelineManager
from tailrace.manager.report import ErrorReport, PipelineReport

AWAY = {"code": "KafkaUnavailable", "what": "no answer", "why": "It is down.", "remedy": "Start it."}
ERROR = ErrorReport("KafkaUnavailable", "no answer within 75 s", "It is down.", "Tailrace retries by itself.")
LOG = {
    "retained_bytes": 1000,
    "safe_bytes": None,
    "limit_bytes": None,
    "growth": 10.0,
    "lost_in_seconds": None,
    "status": "reserved",
    "lost": "",
}


def recent(delivered: int, failed: int) -> dict[str, Any]:
    return {"seconds": 9.0, "delivered": delivered, "failed": failed, "dead_letters": failed}


def facts(**changed: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "at_ms": int(time.time() * 1000),
        "servers": {"source": None, "kafka": None},
        "lag": {"bytes": 0, "seconds": 0.0, "events": 0},
        "log": LOG,
        "dead_letters": {"open": 0, "more": False, "by_reason": {}},
        "parked": {"keys": 0, "since_ms": None},
        "recent": recent(1000, 0),
        "retrying_records": 0,
        "certificates": {},
        "reading_existing": False,
    }
    return {**found, **changed}


def pipeline(state: str = "RUNNING", *, error: ErrorReport | None = None, **changed: Any) -> ManagedPipeline:
    report = PipelineReport(state, 1, 7, error=error, facts=facts(**changed))
    return ManagedPipeline("orders", {}, Path("x"), from_topic=False, state=state, error=error, report=report, pid=7)


def check(group: str, name: str, found: ManagedPipeline) -> Check:
    return groups(found, time.time())[group][name]


def test_all_checks_of_a_healthy_pipeline() -> None:
    found = groups(pipeline(), time.time())
    assert {group: set(checks) for group, checks in found.items()} == {
        "publisher": {"running", "database", "kafka"},
        "performance": {"lag", "retries", "success_rate"},
        "data": {"orphans", "log", "dead_letters"},
    }
    assert {each.status for checks in found.values() for each in checks.values()} == {OK}


@pytest.mark.parametrize(
    ("group", "name", "changed", "status"),
    [
        ("publisher", "database", {"servers": {"source": AWAY, "kafka": None}}, FAIL),
        ("publisher", "kafka", {"servers": {"source": None, "kafka": AWAY}}, FAIL),
        ("publisher", "registry", {"servers": {"source": None, "kafka": None, "registry": AWAY}}, WARN),
        ("publisher", "kafka", {"certificates": {"kafka": time.time() + 86_400}}, WARN),
        ("publisher", "kafka", {"certificates": {"kafka": time.time() - 1}}, WARN),
        ("publisher", "kafka", {"certificates": {"kafka": time.time() + 1e7}}, OK),
        ("performance", "lag", {"lag": {"seconds": 61.0, "events": 10}}, WARN),
        ("performance", "lag", {"lag": {"seconds": 601.0, "events": None}}, FAIL),
        ("performance", "lag", {"lag": {"seconds": 1e6, "events": 1}, "reading_existing": True}, OK),
        ("performance", "retries", {"retrying_records": 3}, WARN),
        (
            "performance",
            "success_rate",
            {"recent": recent(98, 2)},
            WARN,
        ),
        (
            "performance",
            "success_rate",
            {"recent": recent(1, 99)},
            FAIL,
        ),
        ("performance", "success_rate", {"recent": recent(0, 9)}, OK),
        ("performance", "success_rate", {"recent": recent(0, 0)}, OK),
        ("data", "orphans", {"parked": {"keys": 2, "since_ms": 1}}, WARN),
        ("data", "orphans", {"parked": {"keys": 2, "since_ms": int(time.time() * 1000)}}, OK),
        ("data", "log", {"log": {**LOG, "lost": "there is no slot"}}, FAIL),
        ("data", "log", {"log": {**LOG, "lost_in_seconds": 600.0}}, FAIL),
        ("data", "log", {"log": {**LOG, "lost_in_seconds": 7200.0}}, WARN),
        ("data", "log", {"log": {**LOG, "safe_bytes": 10, "limit_bytes": 100}}, FAIL),
        ("data", "log", {"log": {**LOG, "safe_bytes": 90, "limit_bytes": 100}}, OK),
        ("data", "dead_letters", {"recent": recent(9, 1)}, WARN),
        ("data", "dead_letters", {"dead_letters": {"open": 5, "more": True, "by_reason": {"poison_message": 5}}}, OK),
    ],
)
def test_each_check_with_cause_and_remedy(group: str, name: str, changed: dict[str, Any], status: str) -> None:
    found = check(group, name, pipeline(**changed))
    assert found.status == status, found
    assert found.what
    if status != OK:
        assert found.why
        assert found.remedy


@pytest.mark.parametrize("state", ["RETRYING", "FAILED", "RESTARTING"])
def test_a_pipeline_that_does_not_run(state: str) -> None:
    found = check("publisher", "running", pipeline(state, error=ERROR))
    assert found.status == FAIL
    assert ERROR.what in found.what
    assert (found.why, found.remedy) == (ERROR.why, ERROR.remedy)


def test_old_facts_say_nothing() -> None:
    found = pipeline(at_ms=int((time.time() - 120) * 1000))
    assert check("publisher", "kafka", found).status == UNKNOWN
    assert check("data", "log", found).status == UNKNOWN
    gone = pipeline()
    gone.pid = None
    assert check("performance", "lag", gone).status == UNKNOWN


def test_secrets_are_masked() -> None:
    remember("hunter2-health")
    shown = Check(FAIL, "password hunter2-health refused").to_json()
    assert "hunter2" not in str(shown)


@pytest.fixture
def manager() -> Iterator[PipelineManager]:
    found = PipelineManager()
    found.is_started = True
    found.pipelines.update({"orders": pipeline()})
    yield found
    asyncio.run(found.close())


def client(manager: PipelineManager) -> TestClient:
    return TestClient(Starlette(routes=health.routes(manager), exception_handlers={TailraceError: answer_error}))


class TestHealth:
    def test_healthy(self, manager: PipelineManager) -> None:
        answer = client(manager).get("/health")
        assert answer.status_code == 200
        assert answer.json()["status"] == "healthy"
        assert answer.json()["pipelines"]["orders"]["data"]["status"] == OK

    def test_starting(self, manager: PipelineManager) -> None:
        manager.pipelines["orders"] = pipeline("STARTING")
        answer = client(manager).get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "starting")
        manager.pipelines.clear()
        manager.is_started = False
        answer = client(manager).get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "starting")

    def test_unhealthy(self, manager: PipelineManager) -> None:
        manager.pipelines["users"] = pipeline("FAILED", error=ERROR)
        manager.pipelines["users"].name = "users"
        answer = client(manager).get("/health")
        assert (answer.status_code, answer.json()["status"]) == (500, "unhealthy")
        assert "1 of 2" in answer.json()["message"]
        assert ERROR.what in answer.json()["message"]
        # The others are shown as they are.
        assert answer.json()["pipelines"]["orders"]["status"] == "healthy"

    def test_one_pipeline(self, manager: PipelineManager) -> None:
        manager.pipelines["users"] = pipeline("FAILED", error=ERROR)
        assert client(manager).get("/health?pipeline=orders").status_code == 200
        assert client(manager).get("/health?pipeline=nobody").status_code == 404

    @pytest.mark.parametrize("state", ["PAUSED", "STOPPED"])
    def test_a_pipeline_that_should_not_run_is_healthy(self, manager: PipelineManager, state: str) -> None:
        manager.pipelines["orders"] = pipeline(state, error=ERROR)
        assert client(manager).get("/health").status_code == 200

    def test_problems_with_files_are_shown(self, manager: PipelineManager) -> None:
        manager.problems["bad.yaml"] = ErrorReport("ConfigError", "it is no pipeline")
        answer = client(manager).get("/health")
        assert answer.json()["problems"]["bad.yaml"]["code"] == "ConfigError"


class TestReadiness:
    def test_a_running_pipeline(self, manager: PipelineManager) -> None:
        assert client(manager).get("/readyz").status_code == 200

    @pytest.mark.parametrize("state", ["STARTING", "RETRYING", "FAILED"])
    def test_no_pipeline_runs(self, manager: PipelineManager, state: str) -> None:
        manager.pipelines["orders"] = pipeline(state)
        answer = client(manager).get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["pipelines"] == {"orders": state}

    def test_one_of_two_runs(self, manager: PipelineManager) -> None:
        manager.pipelines["users"] = pipeline("FAILED")
        assert client(manager).get("/readyz").status_code == 200

    def test_nothing_should_run(self, manager: PipelineManager) -> None:
        manager.pipelines["orders"] = pipeline("PAUSED")
        manager.pipelines["orders"].target = "PAUSED"
        assert client(manager).get("/readyz").status_code == 200

    def test_a_worker_that_reads_its_configurations(self, manager: PipelineManager) -> None:
        manager.is_started = False
        assert client(manager).get("/readyz").status_code == 503


def test_livez(manager: PipelineManager) -> None:
    manager.pipelines["orders"] = pipeline("FAILED", error=ERROR)
    assert client(manager).get("/livez").status_code == 200
