"""`tailrace doctor` over a worker, while its pipelines run: for one pipeline and for all, as command and in the API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.api import run_locally, serve
from helpers.shop import Shop
from helpers.worker import Workers, put_pipeline
from tailrace.testkit.stack import wait_until

VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'


def test_over_a_worker(workers: Workers, tmp_path: Path, shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "pipelines"
    put_pipeline(folder, shop)
    api = serve(workers.start(folder), shop)
    shop.insert(VALID, kind="OrderShipped")
    before = api.get(f"/pipelines/{shop.name}")["pid"]

    job = api.job(f"/pipelines/{shop.name}/doctor")
    report = job["result"]
    assert report["ok"]
    codes = [each["code"] for each in report["pipelines"][0]["findings"]]
    assert "type-without-schema" in codes
    assert job["progress"]["share"] == 1

    whole = api.job("/doctor", {"strict": True})["result"]
    assert [each["pipeline"] for each in whole["pipelines"]] == [shop.name]
    assert not whole["ok"], "strict"

    url = api.worker.url
    code, out, _ = run_locally(capsys, "doctor", "--json", "--worker", url)
    remote = json.loads(out)
    assert (code, remote["pipelines"][0]["pipeline"]) == (0, shop.name)
    assert [each["code"] for each in remote["pipelines"][0]["findings"]] == codes
    assert run_locally(capsys, "doctor", "nonsense", "--worker", url)[0] == 2
    assert run_locally(capsys, "check", "--worker", url)[0] == 2, "only doctor checks all pipelines"

    event = shop.insert(VALID)
    wait_until(lambda: event in {each.id for each in shop.published()}, 60, what="the pipeline to go on")
    assert api.get(f"/pipelines/{shop.name}")["pid"] == before
