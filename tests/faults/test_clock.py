"""Row 68: the wall clock of the connector is an hour wrong, or jumps: no decision may depend on it."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta

import pytest

from helpers.mutations import program
from helpers.shop import Connector, Shop
from helpers.tiers import mostly_slow
from tailrace import failpoints

CLOCK = """
import itertools, time
turns = itertools.cycle((-3600, 3600))
wall, wall_ns = time.time, time.time_ns
def shift():
    return SHIFT
time.time = lambda: wall() + shift()
time.time_ns = lambda: wall_ns() + shift() * 1_000_000_000
"""
CLOCKS = {"ahead": "3600", "behind": "-3600", "jumps": "next(turns)"}


@pytest.mark.parametrize("delivery", mostly_slow(["exactly_once", "at_least_once"], ["exactly_once"]))
@pytest.mark.parametrize("clock", mostly_slow(list(CLOCKS), ["jumps"]))
def test_a_wrong_clock_changes_no_decision(shop: Shop, clock: str, delivery: str) -> None:
    """Killed and continued with this clock; a waiting instance with a correct clock takes over."""
    shop.configure(limits={"batch_records": 5}, kafka={"delivery": delivery})
    wrong = program(shop.folder, CLOCK.replace("SHIFT", CLOCKS[clock]))
    shop.writer()
    shop.start(program=wrong).stop()
    write(shop)
    killed = shop.start(kill=f"{failpoints.AFTER_COMMIT}:4", program=wrong)
    assert killed.ended() == -signal.SIGKILL, killed.log
    assert is_wrong(killed), killed.log
    owner = shop.start(program=wrong)
    waiting = shop.start(wait=False)
    waiting.says('"waiting"')
    write(shop)
    require_complete(shop, delivery)
    assert owner.running
    owner.kill()
    waiting.says('"running"')
    write(shop)
    require_complete(shop, delivery)
    assert waiting.running


def write(shop: Shop) -> None:
    for _ in range(8):
        shop.writers[0].transaction(events=7, rollback=False)


def require_complete(shop: Shop, delivery: str) -> None:
    verdict = shop.caught_up()
    assert verdict.ok if delivery == "exactly_once" else not verdict.missing, verdict


def is_wrong(connector: Connector) -> bool:
    """Whether the times of its log show that the fault happened."""
    times = [datetime.fromisoformat(json.loads(line)["at"]) for line in connector.log.splitlines()]
    return any(abs(datetime.now(UTC) - time) > timedelta(minutes=30) for time in times)
