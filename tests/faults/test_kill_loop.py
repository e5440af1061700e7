"""Row 5 of the fault matrix: killed again and again at any point while the service keeps writing.

Each round starts a connector and ends it with SIGKILL: at a failpoint, or at a random time,
including during its start. KILL_ROUNDS sets the number of rounds, KILL_SEED repeats a run.
"""

from __future__ import annotations

import os
import random

import pytest

from helpers.kill_loop import kill_again_and_again
from helpers.shop import Shop
from tailrace.testkit.workload.writer import Mix

ROUNDS = int(os.environ.get("KILL_ROUNDS", "24"))
SEED = int(os.environ.get("KILL_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)


@pytest.mark.slow
@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_killed_again_and_again(shop: Shop) -> None:
    large = Mix(rollback=0.2, invalid=0.05, savepoint=0.3, events_per_transaction=35)
    small = Mix(rollback=0.2, invalid=0.05, savepoint=0.3)
    kill_again_and_again(shop, [(large, 3), (large, 3), (small, 15), (small, 15)], rounds=ROUNDS, seed=SEED)
