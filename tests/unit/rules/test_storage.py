"""The example rule: STORAGE_TRANSACTION_* events must name the stores involved."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.errors import Rejected
from tailrace.rules import RuleEvent, RuleSet

RULES = RuleSet.of({"STORAGE_TRANSACTION_*": ["tailrace.rules.storage:names_stores"]})


def event(type_name: str, payload: Any) -> RuleEvent:
    return RuleEvent("e-1", type_name, "transaction", "t-1", payload)


def test_stores_are_named_or_the_event_is_of_another_type() -> None:
    RULES.require(event("STORAGE_TRANSACTION_BEGUN", {"stores_involved": ["postgres", "s3"]}))
    RULES.require(event("STORAGE_CLEANED", {}))


@pytest.mark.parametrize("payload", [{}, {"stores_involved": []}, {"stores_involved": None}, [], None])
def test_an_event_without_stores_is_rejected(payload: Any) -> None:
    with pytest.raises(Rejected, match="must name the stores_involved"):
        RULES.require(event("STORAGE_TRANSACTION_COMMITTED", payload))
