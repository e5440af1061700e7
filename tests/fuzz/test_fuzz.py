"""A short pass over every parser of outside bytes; `make fuzz` runs longer and with other seeds."""

from __future__ import annotations

import pytest

from fuzz.driver import Hang, _bounded, check, fuzz, seeds_of
from fuzz.seeds import valid_inputs
from fuzz.targets import TARGETS, Target

RUNS = {"settings": 60, "connector": 150, "config_record": 300, "body": 60}
"""Inputs per target; by default 1,500. These are slow."""


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_give_a_result_or_a_documented_error(name: str) -> None:
    for data in seeds_of(name):
        assert (finding := check(name, data)) is None, str(finding)
    limit = RUNS.get(name, 1500)
    _, finding = fuzz(name, 1, going=lambda runs: runs < limit)
    assert finding is None, str(finding)


@pytest.mark.parametrize("name", TARGETS)
def test_valid_inputs_are_in_the_corpus(name: str) -> None:
    assert set(valid_inputs()[name].values()) <= set(seeds_of(name))


def test_an_undocumented_error_and_a_hang_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(data: bytes) -> int:
        return data[5]

    monkeypatch.setitem(TARGETS, "lsn", Target(careless))
    _, finding = fuzz("lsn", 1, going=lambda runs: runs < 500)
    assert finding is not None
    assert isinstance(finding.error, IndexError)
    monkeypatch.setattr("fuzz.driver.HANG_SECONDS", 0.1)
    with pytest.raises(Hang), _bounded():
        spin()


def spin() -> None:
    while True:
        pass
