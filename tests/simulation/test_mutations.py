"""The simulation finds each broken rule within a bounded number of seeds, with the changes that real servers find."""

from __future__ import annotations

import pytest

from helpers import mutations
from simulation.checks import InvariantBroken
from simulation.mongo_run import MongoRun
from simulation.postgres_run import PostgresRun, zombie_run
from simulation.sabotage import sabotaged

FOUND_WITHIN = {
    "CONFIRM_EARLY": 5,
    "CONFIRM_COMMIT_LSN": 5,
    "SKIP_THE_FENCE": 20,
    "BELIEVE_ABORTED": 60,
    "POSITION_APART": 5,
    "DROP_REJECTED": 5,
    "SKIP_BY_LSN": 60,
    "DROP_IF_FULL": 15,
    "STALE_OWNER": 10,
    "NOT_REPLACED": 40,
}
"""Seeds, with room: each is found in fewer."""
FOUND_WITHIN_ON_MONGO = {
    "SKIP_THE_FENCE": 25,
    "BELIEVE_ABORTED": 15,
    "POSITION_APART": 8,
    "DROP_REJECTED": 8,
    "DROP_IF_FULL": 10,
    "STALE_OWNER": 90,
}
"""The others are about slots and LSNs."""


def run_postgres(seed: int) -> None:
    PostgresRun(seed, rate=0.05, instances=2).run()
    zombie_run(seed).run()


def run_mongo(seed: int) -> None:
    MongoRun(seed, rate=0.05, instances=2).run()


def test_every_mutation_of_the_connector_is_tried() -> None:
    assert set(FOUND_WITHIN) == {name for name in vars(mutations) if name.isupper()}


@pytest.mark.slow
def test_without_a_mutation_the_same_seeds_break_no_invariant() -> None:
    for seed in range(max(FOUND_WITHIN.values())):
        run_postgres(seed)
    for seed in range(max(FOUND_WITHIN_ON_MONGO.values())):
        run_mongo(seed)


@pytest.mark.parametrize("name", FOUND_WITHIN)
def test_a_mutation_is_found(name: str) -> None:
    with sabotaged(getattr(mutations, name)):
        for seed in range(FOUND_WITHIN[name]):
            try:
                run_postgres(seed)
            except InvariantBroken:
                return
    pytest.fail(f"{name} is not found by {FOUND_WITHIN[name]} seeds")


@pytest.mark.parametrize("name", FOUND_WITHIN_ON_MONGO)
def test_a_mutation_is_found_with_mongodb(name: str) -> None:
    with sabotaged(getattr(mutations, name)):
        for seed in range(FOUND_WITHIN_ON_MONGO[name]):
            try:
                run_mongo(seed)
            except InvariantBroken:
                return
    pytest.fail(f"{name} is not found by {FOUND_WITHIN_ON_MONGO[name]} seeds")
