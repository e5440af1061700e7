"""`delivery: at_least_once` loses no event, and librdkafka settings take effect."""

from __future__ import annotations

import pytest

from helpers.shop import Shop
from tailrace import failpoints

POINTS = (
    failpoints.ROWS_READ,
    failpoints.BEFORE_PRODUCE,
    failpoints.AFTER_PRODUCE,
    failpoints.AFTER_COMMIT,
    failpoints.AFTER_CONFIRM,
)
ZSTD = 4
"""In the three lowest bits of a record batch's attributes."""


def test_kills_without_transactions_lose_nothing(shop: Shop) -> None:
    """Duplicates are allowed, and show that the kills had an effect."""
    shop.configure(kafka={"delivery": "at_least_once"}, limits={"batch_records": 5})
    shop.start().stop()
    writer = shop.writer()
    for point in POINTS:
        for _ in range(10):
            writer.transaction(events=7)
        assert shop.start(kill=f"{point}:3").ended() == -9, shop.connectors[-1].log
    shop.start()
    verdict = shop.caught_up()
    assert not verdict.missing, verdict
    assert not verdict.phantom, verdict
    assert not verdict.misplaced, verdict
    assert verdict.duplicated, verdict
    assert not verdict.positions, verdict


def test_at_least_once_without_faults_publishes_once(shop: Shop) -> None:
    shop.configure(kafka={"delivery": "at_least_once"})
    shop.start()
    writer = shop.writer()
    for _ in range(20):
        writer.transaction()
    assert shop.caught_up().ok
    assert shop.connectors[-1].stop() == 0
    writer.transaction(rollback=False)
    shop.start()
    verdict = shop.caught_up()
    assert verdict.ok, verdict


def test_a_librdkafka_setting_takes_effect(shop: Shop) -> None:
    if not shop.kafka.local:
        pytest.skip("needs the broker's own files")
    shop.configure(kafka={"settings": {"compression.type": "zstd"}}, topics={"create": True})
    shop.start()
    shop.writer().transaction(events=5, rollback=False)
    assert shop.caught_up().ok
    segments = [
        file.read_bytes()
        for file in shop.kafka.data_dir.glob(f"{shop.topic}-*/*.log")
        if file.stat().st_size > 0
    ]  # fmt: skip
    assert segments
    # The first batch of a segment: the attributes follow base offset, length, epoch, magic and CRC.
    assert {segment[22] & 7 for segment in segments} == {ZSTD}


@pytest.mark.parametrize("name", ["acks", "transactional.id"])
def test_a_setting_that_would_break_a_guarantee_is_rejected(shop: Shop, name: str) -> None:
    shop.configure(kafka={"settings": {name: "0"}})
    connector = shop.start(wait=False)
    assert connector.ended() == 2, connector.log
    assert name in connector.log


@pytest.mark.parametrize(("name", "named"), [("no.such.setting", "no.such.setting"), ("compression.type", "nonsense")])
def test_a_setting_that_librdkafka_rejects_is_a_configuration_error(shop: Shop, name: str, named: str) -> None:
    shop.configure(kafka={"settings": {name: "nonsense"}})
    connector = shop.start(wait=False)
    assert connector.ended() == 2, connector.log
    assert named in connector.log
    assert "Traceback" not in connector.log
