"""Row 70 of the fault matrix in short: random faults over both databases and their projections, from a fixed seed.

`make chaos MINUTES=30` runs it for longer, with a new seed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.chaos.run import ChaosRun
from helpers.chaos.world import World

SEED = 20
MINUTES = 1.0


@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_a_minute_of_random_faults(tmp_path: Path) -> None:
    with World(tmp_path, SEED) as world:
        report = ChaosRun(world, SEED, MINUTES, print).run()
        assert not report.failure
        # Each fault was injected, or says why not; the faults of all lanes were active at the same time.
        assert len(report.injected) == len(report.schedule)
        assert report.faults.total() > 15, report.faults
        assert min(each["published"] for each in report.pipelines.values()) > 250, report.pipelines
        assert all(each["applied"] == each["events"] for each in report.projections.values())
        assert not report.restarted_by_supervisor["orders"], report.restarted_by_supervisor
        assert not report.restarted_by_supervisor["users"], report.restarted_by_supervisor
