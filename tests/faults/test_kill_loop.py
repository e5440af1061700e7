"""Row 5 of the fault matrix: killed again and again, anywhere, while the service goes on writing.

Each round starts a connector and ends it with SIGKILL: at a kill point, or at a moment of its life drawn at random,
its start included. KILL_ROUNDS sets the number of rounds, KILL_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections import Counter

import pytest

from fix_shop import Connector, Shop
from tailrace import killpoint
from tailrace.proof.workload import Mix
from tailrace.stack import wait_until

ROUNDS = int(os.environ.get("KILL_ROUNDS", "30"))
SEED = int(os.environ.get("KILL_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
LONGEST_START = 30.0
# Points of a first start only: a pipeline that has a stored position does not pass them.
RECURRING = [
    point
    for point in killpoint.ALL
    if point not in (killpoint.SLOT_INTENDED, killpoint.SLOT_CREATED, killpoint.TABLE_ROWS_READ)
]


def ended_within(connector: Connector, seconds: float) -> bool:
    try:
        connector.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def one_life(shop: Shop, chance: random.Random) -> str:
    """Starts a connector and kills it; says how it died."""
    point = chance.choice([*RECURRING, "", ""])
    connector = shop.start(kill=f"{point}:{chance.randint(1, 6)}" if point else "", wait=False)
    if chance.random() < 0.3:
        # Perhaps while it is still starting.
        ended_within(connector, chance.uniform(0.3, 2.0))
    else:
        wait_until(lambda: '"running"' in connector.log or not connector.running, LONGEST_START, what="a start")
        ended_within(connector, chance.uniform(0.0, 0.8))
    if connector.running and point == killpoint.DRAINING:
        connector.process.send_signal(signal.SIGTERM)
        ended_within(connector, chance.uniform(0.0, 1.0))
    if connector.running:
        connector.kill()
        return "at any moment"
    code = connector.process.returncode
    assert code == -signal.SIGKILL or (point == killpoint.DRAINING and code in (0, -signal.SIGTERM)), connector.log
    return point if code == -signal.SIGKILL else "stopped"


@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_killed_again_and_again(shop: Shop) -> None:
    print(f"KILL_SEED={SEED} KILL_ROUNDS={ROUNDS} repeats this run")  # noqa: T201 - shown when the test fails
    chance = random.Random(SEED)
    shop.configure(limits={"batch_records": 10})
    shop.start().kill()
    large = Mix(rollback=0.2, invalid=0.05, savepoint=0.3, events_per_transaction=35)
    small = Mix(rollback=0.2, invalid=0.05, savepoint=0.3)
    for number, (mix, rate) in enumerate([(large, 3), (large, 3), (small, 15), (small, 15)]):
        shop.writer(seed=chance.randrange(2**32) + number, mix=mix).start(rate=rate)
    deaths = Counter(one_life(shop, chance) for _ in range(ROUNDS))
    stored = len({position.progress for position in shop.positions()})
    for writer in shop.writers:
        writer.stop()
    shop.configure(limits={"batch_records": 1000})
    last = shop.start()
    verdict = shop.caught_up()
    told = f"deaths: {dict(deaths)}\n{verdict}\n{last.log}"
    assert verdict.ok, told
    # The loop was worth something: lives were long enough to publish, and not all ended the same way.
    assert verdict.published > ROUNDS, told
    assert verdict.rolled_back > 0, told
    assert stored > ROUNDS, told
    assert len(deaths) > 2 or ROUNDS < 10, told
