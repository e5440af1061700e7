"""Pipelines as connectors: every state of a pipeline has one of Connect's, with a trace where it does not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.api.connect.states import (
    CONNECTOR_STATES,
    connector_state,
    info_json,
    status_json,
    tasks_json,
)
from tailrace.manager import report
from tailrace.manager.managed import ManagedPipeline
from tailrace.manager.report import FAILED, PAUSED, RESTARTING, RETRYING, RUNNING, STOPPED, WAITING, ErrorReport

CONNECT = {"RUNNING", "FAILED", "PAUSED", "UNASSIGNED", "RESTARTING", "STOPPED"}
STATES = [value for name, value in vars(report).items() if name.isupper() and isinstance(value, str)]


def pipeline(state: str, **more: object) -> ManagedPipeline:
    found = ManagedPipeline("orders", {"database.password": "hunter2", "x": "y"}, Path("orders.yaml"), from_topic=True)
    found.state = state
    for name, value in more.items():
        setattr(found, name, value)
    return found


def test_every_state_has_one_of_connect() -> None:
    assert set(CONNECTOR_STATES) == set(STATES)
    assert set(CONNECTOR_STATES.values()) == CONNECT


@pytest.mark.parametrize("state", [*STATES, "UNHEARD OF"])
def test_clients_with_closed_enums_can_read_every_status(state: str) -> None:
    status = status_json(pipeline(state), "host:8083")
    assert status["connector"]["state"] in CONNECT
    assert all(task["state"] in CONNECT - {"STOPPED"} for task in status["tasks"])
    assert len(status["tasks"]) == (state != STOPPED)
    assert status["type"] == "source"


@pytest.mark.parametrize("state", [FAILED, RETRYING, RESTARTING])
def test_a_trace_has_the_remedy(state: str) -> None:
    error = ErrorReport("SlotLost", "the slot is lost", "WAL was removed.", "Run `tailrace recover`.")
    status = status_json(pipeline(state, error=error), "host:8083")
    for part in (status["connector"], status["tasks"][0]):
        assert "SlotLost" in part["trace"]
        assert "tailrace recover" in part["trace"]


def test_no_trace_of_an_old_error_while_it_runs() -> None:
    error = ErrorReport("SlotLost", "the slot was lost")
    assert "trace" not in status_json(pipeline(RUNNING, error=error), "w")["connector"]
    assert "Another instance" in status_json(pipeline(WAITING), "w")["connector"]["trace"]


def test_a_refused_change_is_shown() -> None:
    error = ErrorReport("ConfigError", "limits.batch_records is -1")
    status = status_json(pipeline(RUNNING, config_error=error), "w")
    assert "not in use" in status["connector"]["trace"]
    assert status["connector"]["state"] == "RUNNING"


def test_restarting_is_shown_at_once() -> None:
    status = status_json(pipeline(RUNNING), "w", restarting=True)
    assert status["connector"]["state"] == status["tasks"][0]["state"] == "RESTARTING"


def test_configurations_are_masked_everywhere() -> None:
    paused = pipeline(PAUSED)
    assert info_json(paused)["config"] == {"name": "orders", "database.password": "***", "x": "y"}
    assert "hunter2" not in str((info_json(paused), tasks_json(paused)))
    assert tasks_json(pipeline(STOPPED)) == []
    assert connector_state(pipeline("STARTING")) == "UNASSIGNED"
