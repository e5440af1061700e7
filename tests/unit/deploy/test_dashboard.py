"""The Grafana dashboard: its queries parse, every metric in them exists, and its panels have a place each."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from helpers.deploy_files import PREFIX, dashboard, dashboard_queries, unknown_in, used_metrics
from helpers.deploy_tools import Unavailable, promtool
from tailrace.worker.metric_table import METRICS

PANELS = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
NOT_SHOWN = {"pipeline_process_start_time_seconds", "outbox_retry_delay_seconds"}
"""Metrics that need no panel."""


QUERIES = list(dashboard_queries())


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[title for title, _ in QUERIES])
def test_every_metric_and_label_exists(title: str, query: str) -> None:
    assert not unknown_in(query), title


def test_every_metric_has_a_panel() -> None:
    shown = {name for _, query in dashboard_queries() for name in used_metrics(query)}
    missing = [
        metric.name
        for metric in METRICS
        if not metric.name.startswith("external_db_") and not any(PREFIX + metric.name in name for name in shown)
    ]
    assert set(missing) == NOT_SHOWN


def test_promtool_parses_every_query(tmp_path: Path) -> None:
    try:
        program = promtool()
    except Unavailable as error:
        pytest.skip(str(error))
    rules = [{"record": f"panel:{number}", "expr": query} for number, (_, query) in enumerate(dashboard_queries())]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        [program, "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_failed_pipelines_come_first() -> None:
    first = min(PANELS, key=lambda panel: (panel["gridPos"]["y"], panel["gridPos"]["x"]))
    assert first["title"] == "Failed pipelines"
    assert 'state="FAILED"' in first["targets"][0]["expr"]


def test_the_panels_cover_what_operators_need() -> None:
    queries = " ".join(query for _, query in list(dashboard_queries()))
    for part in (
        *("lag_seconds", "lag_bytes", "pending_events", "end_to_end_latency", "stage_duration", "delivered_total"),
        *("dlq_total", "dlq_events_count", "log_retained", "log_safe", "log_lost_in", "resident_memory", "certificate"),
    ):
        assert part in queries


def test_panels_have_their_own_ids_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for cell in (
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ):
            assert cell not in taken, f"{panel['title']} and {taken[cell]}"
            taken[cell] = panel["title"]


def test_every_query_uses_the_chosen_data_source() -> None:
    names = {variable["name"] for variable in dashboard()["templating"]["list"]}
    assert names == {"datasource", "pipeline"}
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
