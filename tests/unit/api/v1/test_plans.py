"""Plans that a worker keeps: found by their id, bounded in number and size."""

from __future__ import annotations

import json

import pytest

from tailrace.api.v1 import plans as plans_module
from tailrace.api.v1.plans import Plans
from tailrace.errors import ConfigError


def test_a_plan_is_found_by_its_id_without_the_path_of_its_file() -> None:
    plans = Plans()
    plans.keep({"id": "p1", "file": "/worker/p1.json", "events": 3})
    assert json.loads(plans.resolved(b'"p1"')) == {"id": "p1", "events": 3}
    assert plans.resolved(b'{"id": "own"}') == b'{"id": "own"}'
    for wrong in (b'"p2"', b"5", b"nonsense", b'"' + b"x" * 200 + b'"'):
        with pytest.raises(ConfigError):
            plans.resolved(wrong)


def test_old_plans_are_forgotten_by_number_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans_module, "KEPT_BYTES", 1000)
    plans = Plans()
    for number in range(plans_module.MOST + 1):
        plans.keep({"id": f"p{number}"})
    assert len(plans._plans) <= plans_module.MOST
    plans.keep({"id": "large", "ids": ["x" * 900]})
    assert sum(map(len, plans._plans.values())) <= 1000
    plans.keep({"id": "larger", "ids": ["x" * 2000]})
    assert list(plans._plans) == ["larger"]  # the last one is kept in any case
