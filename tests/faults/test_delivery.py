"""`delivery: at_least_once` loses nothing either, and what is passed through to librdkafka takes effect."""

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


def test_killed_anywhere_without_transactions(shop: Shop) -> None:
    """Duplicates are allowed, and that they come shows that the kills were real; loss is not."""
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


def test_without_trouble_at_least_once_is_once(shop: Shop) -> None:
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


def test_a_setting_passed_through_takes_effect(shop: Shop) -> None:
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
    # The first batch of a segment; attributes are the two bytes behind base offset, length, epoch, magic and CRC.
    assert {segment[22] & 7 for segment in segments} == {ZSTD}


@pytest.mark.parametrize("name", ["acks", "transactional.id"])
def test_a_setting_that_a_guarantee_stands_on_is_refused(shop: Shop, name: str) -> None:
    shop.configure(kafka={"settings": {name: "0"}})
    connector = shop.start(wait=False)
    assert connector.ended() == 2, connector.log
    assert name in connector.log


@pytest.mark.parametrize(("name", "named"), [("no.such.setting", "no.such.setting"), ("compression.type", "nonsense")])
def test_a_setting_that_librdkafka_refuses_is_the_users_to_mend(shop: Shop, name: str, named: str) -> None:
    shop.configure(kafka={"settings": {name: "nonsense"}})
    connector = shop.start(wait=False)
    assert connector.ended() == 2, connector.log
    assert named in connector.log
    assert "Traceback" not in connector.log
