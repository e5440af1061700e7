"""Rows 1-4 of the fault matrix: kill -9 at every failpoint of a pipeline, then a restart, then the oracle."""

from __future__ import annotations

import pytest

from helpers.shop import Shop
from helpers.tiers import mostly_slow
from tailrace import failpoints

AT_START = (failpoints.SLOT_INTENDED, failpoints.SLOT_CREATED, failpoints.TABLE_ROWS_READ)
WHILE_STREAMING = (
    failpoints.STREAM_STARTED,
    failpoints.ROWS_READ,
    failpoints.BEFORE_PRODUCE,
    failpoints.AFTER_PRODUCE,
    failpoints.AFTER_COMMIT,
    failpoints.AFTER_CONFIRM,
    failpoints.IDLE_STORED,
)


def test_every_failpoint_is_exercised() -> None:
    assert {*AT_START, *WHILE_STREAMING, failpoints.DRAINING} == set(failpoints.ALL)


@pytest.mark.parametrize("point", AT_START)
def test_killed_during_the_first_start(shop: Shop, point: str) -> None:
    """Rows of the table and rows committed in between are published once."""
    shop.configure(source={"start": "beginning"}, limits={"batch_records": 20})
    writer = shop.writer()
    for _ in range(40):
        writer.transaction()
    assert shop.start(kill=point).ended() == -9
    for _ in range(20):
        writer.transaction()
    shop.start()
    verdict = shop.caught_up()
    assert verdict.ok, verdict
    assert verdict.committed > 60


@pytest.mark.parametrize(
    "point", mostly_slow(WHILE_STREAMING, [failpoints.AFTER_PRODUCE, failpoints.AFTER_COMMIT, failpoints.IDLE_STORED])
)
def test_killed_while_streaming(shop: Shop, point: str) -> None:
    """Small batches cut transactions in the middle, so that ROWS_READ is inside one (row 4)."""
    shop.configure(limits={"batch_records": 5})
    shop.start().stop()
    writer = shop.writer()
    for _ in range(30):
        writer.transaction(events=7)
    nth = 1 if point in (failpoints.STREAM_STARTED, failpoints.IDLE_STORED) else 4
    connector = shop.start(kill=f"{point}:{nth}")
    if point == failpoints.IDLE_STORED:
        shop.execute("CREATE TABLE unrelated AS SELECT generate_series(1, 1000)")
    assert connector.ended() == -9
    for _ in range(10):
        writer.transaction()
    shop.start()
    verdict = shop.caught_up()
    assert verdict.ok, verdict


def test_killed_while_draining(shop: Shop) -> None:
    """SIGKILL while it drains after SIGTERM."""
    connector = shop.start(kill=failpoints.DRAINING, wait=False)
    connector.says('"running"')
    writer = shop.writer()
    for _ in range(30):
        writer.transaction()
    assert connector.stop() == -9
    shop.start()
    verdict = shop.caught_up()
    assert verdict.ok, verdict
