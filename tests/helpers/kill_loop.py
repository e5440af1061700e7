"""The kill loop for both databases: kills connectors again and again, anywhere, while the service keeps writing.

The kind of each kill is drawn from a shuffled list, so that every run has every kind, on a machine of any speed. For a
failpoint that recurs with traffic, the connector runs until it reaches it.
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

LONGEST_RUN = 120.0
"""A transaction left open by another test can delay a start for a minute."""
IDLE_SECONDS = 3.0
ONCE_PER_START = (failpoints.STREAM_STARTED,)
WITH_TRAFFIC = (
    failpoints.ROWS_READ,
    failpoints.BEFORE_PRODUCE,
    failpoints.AFTER_PRODUCE,
    failpoints.AFTER_COMMIT,
    failpoints.AFTER_CONFIRM,
)
CERTAIN = (*ONCE_PER_START, *WITH_TRAFFIC)
STARTING = "perhaps while it starts"
RUNNING = "at any moment"
# A pipeline with a stored position does not reach the failpoints of a first start; IDLE_STORED is reached by chance.
KINDS = (*CERTAIN, failpoints.IDLE_STORED, failpoints.DRAINING, STARTING, STARTING, RUNNING, RUNNING)


def ended_within(connector: Connector, seconds: float) -> bool:
    try:
        connector.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def kinds_of_kills(chance: random.Random) -> Iterator[str]:
    """Yields kinds of kills forever, each once before any comes again."""
    while True:
        yield from chance.sample(KINDS, len(KINDS))


def run_and_kill(service: Service, chance: random.Random, kind: str) -> str:
    """Starts a connector and kills it; returns the kind of kill."""
    if kind in CERTAIN:
        # At least the third time: then some batches have been stored.
        nth = 1 if kind in ONCE_PER_START else chance.randint(3, 8)
        connector = service.start(kill=f"{kind}:{nth}", wait=False)
        assert connector.ended(LONGEST_RUN) == -signal.SIGKILL, connector.log
        return kind
    armed = kind if kind in failpoints.ALL else ""
    connector = service.start(kill=armed, wait=False)
    if kind == STARTING:
        ended_within(connector, chance.uniform(0.3, 2.0))
    else:
        wait_until(lambda: '"running"' in connector.log or not connector.running, LONGEST_RUN, what="a start")
        ended_within(connector, IDLE_SECONDS if kind == failpoints.IDLE_STORED else chance.uniform(0.0, 0.8))
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
    """Runs `rounds` kills with a writer for each of `mixes` (and its rate), then asks the oracle."""
    print(f"KILL_SEED={seed} KILL_ROUNDS={rounds} repeats this run")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)
    service.configure(limits={"batch_records": 10})
    service.start().kill()
    for number, (mix, rate) in enumerate(mixes):
        service.writer(seed=chance.randrange(2**32) + number, mix=mix).start(rate=rate)
    kinds = kinds_of_kills(chance)
    kills = Counter(run_and_kill(service, chance, next(kinds)) for _ in range(rounds))
    stored = len({position.progress for position in service.positions()})
    for writer in service.writers:
        writer.stop()
    service.configure(limits={"batch_records": 1000})
    last = service.start()
    verdict = service.caught_up()
    shown = f"kills: {dict(kills)}\n{verdict}\n{last.log}"
    assert verdict.ok, shown
    # Connectors ran long enough to publish, and were not all killed the same way.
    assert verdict.published > rounds, shown
    assert verdict.rolled_back > 0, shown
    assert stored > rounds // 2 or rounds < len(KINDS), shown
    assert set(CERTAIN) <= set(kills) or rounds < len(KINDS), shown
