"""compose/ in Docker, with the demo's verdict: what `make compose-test` does."""

from __future__ import annotations

import pytest

from tools import compose_test


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_demos_verdict_in_containers() -> None:
    assert compose_test.main(["--seconds", "15", "--seed", "19"]) == 0
