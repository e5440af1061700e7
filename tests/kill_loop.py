"""Killed again and again, anywhere, while the service goes on writing: the loop for both databases."""

from __future__ import annotations

import random
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence

from fix_service import Connector, Service
from tailrace import killpoint
from tailrace.proof.writer import Mix
from tailrace.stack import wait_until

LONGEST_START = 30.0
LONGEST_WAY = 3.0
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


def one_life(service: Service, chance: random.Random) -> str:
    """Starts a connector and kills it; says how it died."""
    point = chance.choice([*RECURRING, "", ""])
    connector = service.start(kill=f"{point}:{chance.randint(1, 6)}" if point else "", wait=False)
    if chance.random() < 0.3:
        # Perhaps while it is still starting.
        ended_within(connector, chance.uniform(0.3, 2.0))
    else:
        wait_until(lambda: '"running"' in connector.log or not connector.running, LONGEST_START, what="a start")
        # A point was chosen to be passed; without one, any moment will do.
        ended_within(connector, LONGEST_WAY if point not in ("", killpoint.DRAINING) else chance.uniform(0.0, 0.8))
    if connector.running and point == killpoint.DRAINING:
        connector.process.send_signal(signal.SIGTERM)
        ended_within(connector, chance.uniform(0.0, 1.0))
    if connector.running:
        connector.kill()
        return "at any moment"
    code = connector.process.returncode
    assert code == -signal.SIGKILL or (point == killpoint.DRAINING and code in (0, -signal.SIGTERM)), connector.log
    return point if code == -signal.SIGKILL else "stopped"


def kill_again_and_again(service: Service, mixes: Sequence[tuple[Mix, float]], *, rounds: int, seed: int) -> None:
    """`rounds` lives beside a writer for each of `mixes` (and its rate), then the oracle."""
    print(f"KILL_SEED={seed} KILL_ROUNDS={rounds} repeats this run")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)
    service.configure(limits={"batch_records": 10})
    service.start().kill()
    for number, (mix, rate) in enumerate(mixes):
        service.writer(seed=chance.randrange(2**32) + number, mix=mix).start(rate=rate)
    deaths = Counter(one_life(service, chance) for _ in range(rounds))
    stored = len({position.progress for position in service.positions()})
    for writer in service.writers:
        writer.stop()
    service.configure(limits={"batch_records": 1000})
    last = service.start()
    verdict = service.caught_up()
    told = f"deaths: {dict(deaths)}\n{verdict}\n{last.log}"
    assert verdict.ok, told
    # The loop was worth something: lives were long enough to publish, and not all ended the same way.
    assert verdict.published > rounds, told
    assert verdict.rolled_back > 0, told
    assert stored > rounds, told
    assert len(deaths) > 2 or rounds < 10, told
