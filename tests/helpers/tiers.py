"""Splits the values of a parametrised test: a few run in `make test`, the others in `make test-slow`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_slow(values: Iterable[Any], fast: Collection[Any]) -> list[Any]:
    """Returns the values for `parametrize`, all but `fast` marked as slow."""
    return [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]


postgres_first = pytest.mark.parametrize("service", mostly_slow(["postgres", "mongo"], ["postgres"]), indirect=True)
"""For a long test with the fixture `service`: the same on MongoDB is slow."""
