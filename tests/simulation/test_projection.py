"""Projections in the simulation: rebalances, fetches in flight, delays at every await, killed and suspended workers."""

from __future__ import annotations

import pytest

from helpers import projection_mutations
from simulation.checks import InvariantBroken
from simulation.projection_run import ProjectionRun
from simulation.sabotage import sabotaged

SEEDS = 15
FOUND_WITHIN = {"CARELESS": 15, "OFFSET_FIRST": 10, "MARKERS_APART": 5}
"""Seeds, with room. CARELESS is fault 82 without its fix: records of an ended assignment are delivered."""


def test_random_faults_break_no_invariant() -> None:
    runs = [ProjectionRun(seed, rate=0.05, workers=1 + seed % 3).run() for seed in range(SEEDS)]
    assert sum(run.group.rebalances for run in runs) > 5 * SEEDS
    assert sum(run.kills for run in runs) > SEEDS / 5
    assert sum(run.events for run in runs) > 10 * SEEDS


def test_a_seed_is_repeated_exactly() -> None:
    first, again = (ProjectionRun(3, rate=0.05, trace=True).run() for _ in range(2))
    assert first.simulation.trace == again.simulation.trace


def test_every_mutation_of_projections_is_tried() -> None:
    assert set(FOUND_WITHIN) == {name for name in vars(projection_mutations) if name.isupper()}


@pytest.mark.parametrize("name", FOUND_WITHIN)
def test_a_mutation_is_found(name: str) -> None:
    with sabotaged(getattr(projection_mutations, name)):
        for seed in range(FOUND_WITHIN[name]):
            try:
                ProjectionRun(seed, rate=0.05, workers=2).run()
            except InvariantBroken:
                return
    pytest.fail(f"{name} is not found by {FOUND_WITHIN[name]} seeds")
