"""`tailrace worker`: pipelines of a folder, each in its own process, started, changed, stopped and taken over."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.shop import Shop
from helpers.worker import Workers, put_pipeline


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "pipelines"
    found.mkdir()
    return found


def test_runs_the_pipelines_of_a_folder_and_stops_them(workers: Workers, folder: Path, shop: Shop) -> None:
    put_pipeline(folder, shop)
    worker = workers.start(folder)
    worker.says("running", shop.name)
    shop.insert('{"order": "1", "revision": 1, "amount": 1, "currency": "EUR"}')
    assert worker.stop() == 0, worker.log
    assert [each.id for each in shop.published()] == list(shop.in_outbox())
