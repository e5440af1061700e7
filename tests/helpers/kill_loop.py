"""Killed again and again, anywhere, while the service goes on writing: the loop for both databases.

How each life ends is dealt from a shuffled deck, so that every run has every kind of death, on a machine of any speed:
where a kill point recurs with traffic, its life lasts until it is passed.
"""

from __future__ import annotations

import random
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence

from helpers.service import Connector, Service
from tailrace import failpoints
from tailrace.testkit.stack import wait_until
from tailrace.testkit.workload.writer import Mix

LONGEST_LIFE = 120.0
"""A transaction left open by another test can hold up a start for a minute."""
LONGEST_WAY = 3.0
ONCE_A_LIFE = (failpoints.STREAM_STARTED,)
WITH_TRAFFIC = (
    failpoints.ROWS_READ,
    failpoints.BEFORE_PRODUCE,
    failpoints.AFTER_PRODUCE,
    failpoints.AFTER_COMMIT,
    failpoints.AFTER_CONFIRM,
)
CERTAIN = (*ONCE_A_LIFE, *WITH_TRAFFIC)
STARTING = "perhaps while it starts"
RUNNING = "at any moment"
# A pipeline that has a stored position does not pass the points of a first start; an idle one is passed by chance.
DECK = (*CERTAIN, failpoints.IDLE_STORED, failpoints.DRAINING, STARTING, STARTING, RUNNING, RUNNING)


def ended_within(connector: Connector, seconds: float) -> bool:
    try:
        connector.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def dealt(chance: random.Random) -> Iterator[str]:
    """Kinds of death, for ever: each deck to its end, then a new one."""
    while True:
        yield from chance.sample(DECK, len(DECK))


def one_life(service: Service, chance: random.Random, kind: str) -> str:
    """Starts a connector and kills it; says how it died."""
    if kind in CERTAIN:
        # At least the third: some batches are stored before.
        nth = 1 if kind in ONCE_A_LIFE else chance.randint(3, 8)
        connector = service.start(kill=f"{kind}:{nth}", wait=False)
        assert connector.ended(LONGEST_LIFE) == -signal.SIGKILL, connector.log
        return kind
    armed = kind if kind in failpoints.ALL else ""
    connector = service.start(kill=armed, wait=False)
    if kind == STARTING:
        ended_within(connector, chance.uniform(0.3, 2.0))
    else:
        wait_until(lambda: '"running"' in connector.log or not connector.running, LONGEST_LIFE, what="a start")
        ended_within(connector, LONGEST_WAY if kind == failpoints.IDLE_STORED else chance.uniform(0.0, 0.8))
    if connector.running and kind == failpoints.DRAINING:
        connector.process.send_signal(signal.SIGTERM)
        ended_within(connector, chance.uniform(0.0, 1.0))
    if connector.running:
        connector.kill()
        return STARTING if kind == STARTING else RUNNING
    code = connector.process.returncode
    assert armed, f"the connector ended by itself with {code}:\n{connector.log}"
    assert code == -signal.SIGKILL or (kind == failpoints.DRAINING and code in (0, -signal.SIGTERM)), connector.log
    return kind if code == -signal.SIGKILL else "stopped"


def kill_again_and_again(service: Service, mixes: Sequence[tuple[Mix, float]], *, rounds: int, seed: int) -> None:
    """`rounds` lives beside a writer for each of `mixes` (and its rate), then the oracle."""
    print(f"KILL_SEED={seed} KILL_ROUNDS={rounds} repeats this run")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)
    service.configure(limits={"batch_records": 10})
    service.start().kill()
    for number, (mix, rate) in enumerate(mixes):
        service.writer(seed=chance.randrange(2**32) + number, mix=mix).start(rate=rate)
    kinds = dealt(chance)
    deaths = Counter(one_life(service, chance, next(kinds)) for _ in range(rounds))
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
    assert stored > rounds // 2 or rounds < len(DECK), told
    assert set(CERTAIN) <= set(deaths) or rounds < len(DECK), told
