"""24 pipelines in one worker, one process killed at random every second: nothing is lost, doubled or reordered.

`WORKER_KILL_SECONDS` sets how long. A failure prints its seed for `WORKER_KILL_SEED`.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.shop import Shop, close_shop, open_shop
from helpers.worker import Workers, caught_up, put_pipeline
from tailrace.testkit.stack import KafkaBroker, PostgresServer, wait_until

PIPELINES = 24
SECONDS = float(os.environ.get("WORKER_KILL_SECONDS", "60"))
RATE = 4
"""Transactions a second of each pipeline."""


@pytest.fixture
def shops(postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[list[Shop]]:
    found: list[Shop] = []
    for number in range(PIPELINES):
        folder = tmp_path / f"shop-{number}"
        folder.mkdir()
        found.append(open_shop(postgres, kafka, folder))
    yield found
    for shop in found:
        close_shop(shop)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_random_kills_of_24_pipelines(workers: Workers, shops: list[Shop], tmp_path: Path) -> None:
    seed = int(os.environ.get("WORKER_KILL_SEED", str(random.randrange(1 << 30))))
    print(f"WORKER_KILL_SEED={seed}")  # noqa: T201 - shown if the test fails
    chosen = random.Random(seed)
    folder = tmp_path / "pipelines"
    for shop in shops:
        put_pipeline(folder, shop)
    worker = workers.start(folder, "--restart-minutes", "0.001")
    for shop in shops:
        worker.says("running", shop.name, timeout=300)
        shop.writer().start(rate=RATE)
    killed: dict[str, int] = {}
    until = time.monotonic() + SECONDS
    due = time.monotonic()
    while time.monotonic() < until:
        shop = chosen.choice(shops)
        try:
            os.kill(worker.pids()[shop.name], signal.SIGKILL)
            killed[shop.name] = killed.get(shop.name, 0) + 1
        except ProcessLookupError:
            pass  # it is being restarted after the last kill
        due += 1
        time.sleep(max(0.0, due - time.monotonic()))
    for shop in shops:
        wait_until(lambda shop=shop: worker.pipeline(shop.name)["state"] == "RUNNING", 300, what=f"{shop.name} to run")
        verdict = caught_up(shop, 300)
        assert verdict.ok, (shop.name, killed.get(shop.name, 0), verdict)
        assert verdict.committed > 0
        crashes = worker.events("crashed", shop.name)
        assert len(crashes) == killed.get(shop.name, 0)
        assert all("SIGKILL" in each["what"] for each in crashes)
    assert sum(killed.values()) > SECONDS / 3
    assert worker.stop() == 0
