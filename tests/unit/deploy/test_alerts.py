"""The alert rules: promtool accepts and tests them, and every metric in them exists."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.deploy_files import ALERT_TESTS, ALERTS, ROOT, alert_rules, unknown_in, used_metrics
from helpers.deploy_tools import Unavailable, promtool
from tailrace.worker.metric_table import LABEL_VALUES

STRIMZI = {
    "ConnectFailedConnector": 'sum(kafka_connect_connector_status{status="failed"}) > 0',
    "ConnectFailedTask": "sum(kafka_connect_worker_connector_failed_task_count) > 0",
    "ConnectContainersDown": 'absent(container_last_seen{container=~".+-connect",pod=~".+-connect-.+"})',
}
"""The expressions of Strimzi's alerts for Kafka Connect, as operators have them."""


def run(*arguments: str | Path, expect: int = 0) -> str:
    try:
        program = promtool()
    except Unavailable as error:
        pytest.skip(str(error))
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_accepts_the_rules() -> None:
    assert f"{len(alert_rules())} rules found" in run("check", "rules", ALERTS)


def test_every_alert_fires_when_it_must_and_only_then() -> None:
    assert "SUCCESS" in run("test", "rules", ALERT_TESTS)


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    cases: list[dict[str, Any]] = [
        case
        for test in yaml.safe_load(ALERT_TESTS.read_text(encoding="utf-8"))["tests"]
        for case in test["alert_rule_test"]
    ]
    names = {rule["alert"] for rule in alert_rules()}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == names
    silent = {case["alertname"] for case in cases if not case["exp_alerts"]}
    # These two have a healthy pipeline beside the one that the alert names.
    assert names - silent == {"TailracePipelineRestarting", "TailraceLogShrinking"}


def test_a_test_of_a_changed_rule_fails(tmp_path: Path) -> None:
    changed = ALERTS.read_text(encoding="utf-8").replace('state="FAILED"}) == 1', 'state="FAILED"}) == 2')
    (tmp_path / ALERTS.name).write_text(changed, encoding="utf-8")
    (tmp_path / ALERT_TESTS.name).write_text(ALERT_TESTS.read_text(encoding="utf-8"), encoding="utf-8")
    assert "TailracePipelineFailed" in run("test", "rules", tmp_path / ALERT_TESTS.name, expect=1)


@pytest.mark.parametrize("rule", alert_rules(), ids=lambda rule: rule["alert"])
def test_every_metric_and_label_exists(rule: dict[str, Any]) -> None:
    assert not unknown_in(rule["expr"])
    assert re.fullmatch(r"Tailrace[A-Za-z]+", rule["alert"])
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert {"summary", "description"} <= rule["annotations"].keys()


def test_every_value_of_a_label_exists() -> None:
    values = {value for known in LABEL_VALUES.values() for value in known}
    texts = [rule["expr"] for rule in alert_rules()]
    used = {
        value
        for text in texts
        for group in re.findall(r'(?:state|server|stage|reason|alert)=~?"([^"]+)"', text)
        for value in group.split("|")
    }
    assert used - values <= {"BLOCKED", "STALLED"}, "states of a projection"
    assert used


def test_the_test_series_exist() -> None:
    text = ALERT_TESTS.read_text(encoding="utf-8")
    for series in re.findall(r"series: '([^']+)'", text):
        assert not unknown_in(series), series


def test_an_unknown_metric_or_label_is_found() -> None:
    assert unknown_in("tailrace_outbox_lag_minutes > 5") == ["no metric tailrace_outbox_lag_minutes"]
    assert unknown_in('tailrace_outbox_lag_seconds{topic="a"}') == ["tailrace_outbox_lag_seconds has no label topic"]
    assert used_metrics("rate(up[5m]) > 3") == {"up": set()}


def test_strimzis_alerts_work_on_the_aliases(tmp_path: Path) -> None:
    """A failed pipeline raises the two alerts that read metrics. The third selects containers by their name."""
    for name in ("ConnectFailedConnector", "ConnectFailedTask"):
        assert not unknown_in(STRIMZI[name])
    rules = [{"alert": name, "expr": text, "for": "5m"} for name, text in STRIMZI.items()]
    pod = 'container_last_seen{container="tailrace-connect", pod="tailrace-connect-7d9c5b-x2x"}'
    series = {
        'kafka_connect_connector_status{connector="orders", status="failed"}': "1x20",
        'kafka_connect_worker_connector_failed_task_count{connector="orders"}': "1x20",
        'kafka_connect_worker_connector_failed_task_count{connector="users"}': "0x20",
        pod: "1x20",
    }
    fired = [{"exp_labels": {}}]
    tests = {
        "rule_files": ["rules.yaml"],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": each, "values": values} for each, values in series.items()],
                "alert_rule_test": [
                    {"eval_time": "8m", "alertname": "ConnectFailedConnector", "exp_alerts": fired},
                    {"eval_time": "8m", "alertname": "ConnectFailedTask", "exp_alerts": fired},
                    {"eval_time": "8m", "alertname": "ConnectContainersDown", "exp_alerts": []},
                ],
            }
        ],
    }
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "connect", "rules": rules}]}))
    (tmp_path / "tests.yaml").write_text(json.dumps(tests))
    assert "SUCCESS" in run("test", "rules", tmp_path / "tests.yaml")
    name = re.search(r"^ +- name: (\S+-connect)$", (ROOT / "deploy/kubernetes/deployment.yaml").read_text(), re.M)
    assert name is not None
    assert name[1] in pod


def test_the_documentation_explains_every_alert() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    assert [rule["alert"] for rule in alert_rules() if f"`{rule['alert']}`" not in page] == []
