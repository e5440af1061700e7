"""Many seeds of every simulation. `make simulate` runs others each time."""

from __future__ import annotations

import pytest

from simulation.__main__ import RUNS

pytestmark = pytest.mark.slow
SEEDS = {"postgres": 1000, "postgres-two": 1000, "zombies": 300, "mongo": 1000, "mongo-two": 1000, "projection": 100}
FIRST = 1_000_000


def test_every_simulation_is_run() -> None:
    assert set(SEEDS) == set(RUNS)


@pytest.mark.parametrize("name", SEEDS)
def test_no_seed_breaks_an_invariant(name: str) -> None:
    for seed in range(FIRST, FIRST + SEEDS[name]):
        try:
            RUNS[name](seed, False).run()
        except Exception as error:
            error.add_note(f"repeat it: make simulate RUN={name} SEED={seed}")
            raise
