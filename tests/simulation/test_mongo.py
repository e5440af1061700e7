"""MongoDB pipelines in the simulation: random faults, each placement of one fault, and streams that cannot go on."""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.mongo_run import MongoRun
from simulation.network import BREAK, FAULTS

SEEDS = 60
SMALL = [(1, True), (9, True), (1, False), (2, True)]


@pytest.mark.parametrize("instances", [1, 2])
def test_random_faults_break_no_invariant(instances: int) -> None:
    injected: Counter[str] = Counter()
    for seed in range(SEEDS):
        outcome = MongoRun(seed, rate=0.04, instances=instances).run()
        injected.update(fault for _, _, fault in outcome.injected)
    assert set(injected) == set(FAULTS), "every kind of fault has happened"


@pytest.mark.parametrize("fault", FAULTS)
def test_each_placement_of_one_fault_in_a_small_history(fault: str) -> None:
    steps = MongoRun("small", history=SMALL).run().steps
    assert steps > 30
    for step in range(1, steps + 1):
        assert len(MongoRun("small", history=SMALL, plan={step: fault}).run().injected) == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_dropped_collection_stops_the_pipeline_behind_its_last_event(seed: int) -> None:
    run = MongoRun(seed, history=[(3, True)] * 5, rate=0.02, expects="CollectionGone")
    run.simulation.at(60.0, run.server.drop)
    run.run()
    assert run.oracle.finished()


@pytest.mark.parametrize("seed", range(5))
def test_a_rolled_oplog_stops_the_pipeline(seed: int) -> None:
    """The connector is cut off while the service writes, and the oplog no longer has its position."""
    run = MongoRun(seed, history=[(3, True)] * 30, expects="HistoryLost")

    def roll() -> None:
        run.server.fault(BREAK)
        run.server.commit(["a-last"])
        run.server.lost_before = run.server.changes[-1][0]

    run.simulation.at(1.5, roll)
    run.run()
    assert run.oracle.committed
    assert not run.oracle.finished()
