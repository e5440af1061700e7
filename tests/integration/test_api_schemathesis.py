"""schemathesis calls the JSON API with everything that its OpenAPI document allows, and much that it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.api import serve
from helpers.fetched import api_tools
from helpers.parking import BAD, good
from helpers.shop import Shop
from helpers.worker import Workers, put_pipeline
from tailrace.testkit.stack import wait_until

PROGRAM = "from schemathesis.cli import schemathesis; schemathesis()"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
SECONDS = 90


@pytest.mark.slow
def test_no_request_causes_a_server_error_or_hangs(workers: Workers, tmp_path: Path, shop: Shop) -> None:
    folder = tmp_path / "pipelines"
    put_pipeline(folder, shop)
    worker = workers.start(folder)
    api = serve(worker, shop)
    event, _ = shop.insert(good(1)), shop.insert(BAD)
    wait_until(lambda: [each.id for each in shop.published()] == [event], 60, what="the event")
    (tmp_path / "schemathesis.toml").write_text(
        f"""
[parameters]
"path.name" = "{shop.name}"
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "503"]
"""
    )
    words = [
        "run", f"{worker.url}/api/v1/openapi.json", "--checks", CHECKS, "--max-time", str(SECONDS), "--workers", "1",
        "--request-timeout", "60", "--exclude-path", "/api/v1/stream", "--phases", "examples,coverage,fuzzing",
        "--suppress-health-check", "all", "--generation-database", "none", "--continue-on-failure",
    ]  # fmt: skip
    output = tmp_path / "schemathesis.txt"
    with output.open("w") as out:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(api_tools()), "NO_COLOR": "1"},
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=SECONDS + 300,
        )
    assert done.returncode == 0, output.read_text()[-8000:]
    # The worker is well. The requests have started operations, such as a recovery that was stopped: it is completed.
    assert worker.running
    for job in api.get("/jobs")["jobs"]:
        if job["state"] in ("QUEUED", "RUNNING"):
            assert api.call("DELETE", f"/jobs/{job['id']}").status_code == 200
    api.post(f"/pipelines/{shop.name}/stop")
    api.is_in(shop.name, "STOPPED")
    wait_until(
        lambda: api.get(f"/pipelines/{shop.name}/status")["state"] != "RUNNING", 60, what="the end of the pipeline"
    )
    api.job(f"/pipelines/{shop.name}/recover/apply", {"force": True})
    api.post(f"/pipelines/{shop.name}/start")
    api.is_in(shop.name, "RUNNING")
    assert {each.id for each in shop.published()} == {event}
    assert api.job(f"/pipelines/{shop.name}/verify")["result"]["missing"] == 0
