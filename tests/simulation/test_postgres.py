"""Postgres pipelines in the simulation: random faults by seed, and every placement of a fault in a small history.

`make simulate SEEDS=5000` runs more seeds, `make simulate SEED=17` repeats one with its trace.
"""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.network import CRASH_BETWEEN, FAULTS, HOLD
from simulation.pipeline_run import Outcome
from simulation.postgres_run import PostgresRun, zombie_run

SEEDS = 80
SMALL = [(1, True), (9, True), (1, False), (2, True)]
"""A single row, a transaction that is cut twice, a rollback, and two rows."""


@pytest.mark.parametrize("instances", [1, 2])
def test_random_faults_break_no_invariant(instances: int) -> None:
    injected: Counter[str] = Counter()
    outcomes: list[Outcome] = []
    for seed in range(SEEDS):
        outcomes.append(PostgresRun(seed, rate=0.04, instances=instances).run())
        injected.update(fault for _, _, fault in outcomes[-1].injected)
    assert set(injected) == set(FAULTS), "every kind of fault has happened"
    assert sum(each.rows for each in outcomes) > 10 * SEEDS


def test_of_two_instances_the_last_owner_goes_on() -> None:
    returned = 0
    for seed in range(SEEDS // 5):
        run = zombie_run(seed)
        run.run()
        returned += len(run.oracle.owners) > 1
    assert returned > 3, "an instance has taken over in some of the runs"


def test_a_slow_check_of_the_source_does_not_replace_a_healthy_instance() -> None:
    """An instance that found the pipeline free looks again before it takes over, if that is a while ago."""
    calm = PostgresRun(0, history=SMALL, instances=2)
    calm.run()
    assert len(calm.oracle.owners) == 1
    slowed = 0
    for step in range(1, calm.network.steps):
        run = PostgresRun(0, history=SMALL, instances=2, plan={step: HOLD})
        run.run()
        if run.network.injected[0][1].startswith("pg."):
            slowed += 1
            assert len(run.oracle.owners) == 1, (step, run.oracle.owners)
    assert slowed > 10


def test_a_seed_is_repeated_exactly() -> None:
    first, again = (PostgresRun(11, rate=0.1, instances=2, trace=True) for _ in range(2))
    assert first.run() == again.run()
    assert first.simulation.trace == again.simulation.trace
    assert first.network.injected


@pytest.mark.parametrize("seed", [2181191800, 2181191938, 10000087, 20000470, 20000496, 30000504])
def test_seeds_that_once_broke_an_invariant(seed: int) -> None:
    zombie_run(seed).run()


@pytest.mark.parametrize("fault", FAULTS)
def test_each_placement_of_one_fault_in_a_small_history(fault: str) -> None:
    steps = PostgresRun("small", history=SMALL).run().steps
    assert steps > 30
    for step in range(1, steps + 1):
        outcome = PostgresRun("small", history=SMALL, plan={step: fault}).run()
        assert len(outcome.injected) == 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_each_placement_of_a_fault_and_a_crash(fault: str) -> None:
    """Two faults: one of each kind, then a crash at each of the 40 steps that follow."""
    steps = PostgresRun("small", history=SMALL).run().steps
    for step in range(1, steps + 1, 3):
        for later in range(step + 1, step + 41, 2):
            PostgresRun("small", history=SMALL, plan={step: fault, later: CRASH_BETWEEN}).run()
