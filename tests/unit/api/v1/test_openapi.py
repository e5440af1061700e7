"""The OpenAPI document: valid, and one path for each operation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from helpers.fetched import api_tools
from tailrace.api.v1.openapi import CHANGES, document
from tailrace.cli.operations import operations

VALIDATE = "from openapi_spec_validator.__main__ import main; main()"


def test_it_is_a_valid_openapi_document(tmp_path: Path) -> None:
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(document(operations())))
    environ = {**os.environ, "PYTHONPATH": str(api_tools())}
    done = subprocess.run(
        [sys.executable, "-c", VALIDATE, str(file)], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_operation_has_a_path_and_a_name_of_its_own() -> None:
    found = document(operations())
    for each in operations():
        path = "events/{event_id}" if each.name == "trace" else each.path
        assert each.method.lower() in found["paths"][f"/api/v1/pipelines/{{name}}/{path}"], each.name
    for verb in CHANGES:
        assert f"/api/v1/pipelines/{{name}}/{verb}" in found["paths"]
    names = [operation["operationId"] for path in found["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names))


def test_long_operations_answer_with_a_job() -> None:
    paths = document(operations())["paths"]
    assert set(paths["/api/v1/pipelines/{name}/verify"]["post"]["responses"]) >= {"202", "400", "404"}
    assert "200" not in paths["/api/v1/pipelines/{name}/verify"]["post"]["responses"]
    assert "202" not in paths["/api/v1/pipelines/{name}/status"]["get"]["responses"]
