"""Tests of options.py: the columns of a layout that retries and the sequence check use."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.config.model import PipelineSettings
from tailrace.errors import RecordDelayed
from tailrace.event import Column, Row
from tailrace.worker.options import record_retries, sequence_check, start_where

STORAGE = {"layout": "storage"}


def settings(**sections: Any) -> PipelineSettings:
    source = {"postgres": "postgresql://u@localhost/d", "table": "public.outbox"}
    return PipelineSettings.model_validate(
        {"pipeline": "p", "source": source, "kafka": {"bootstrap": "localhost:9092"}, **sections}
    )


def row(**values: object) -> Row:
    columns = tuple(Column(name, 25) for name in values)
    return Row(columns, tuple(str(value).encode() for value in values.values()), "0/1:1", 5)


def delay(of: PipelineSettings, **values: object) -> float | None:
    """Returns the delay after the first refusal; None if the event is dead-lettered."""
    retries = record_retries(of)
    retries.note({"0/1:1": "too large"})
    try:
        assert retries.decide([row(**values)])
    except RecordDelayed as delayed:
        return delayed.seconds
    return None


@pytest.mark.parametrize(
    ("sections", "seconds"),
    [
        ({}, None),
        ({"retries": {"record_attempts": 2, "jitter": 0}}, 1),
        ({"retries": {"record_attempts": 2, "jitter": 0, "base": 7, "maximum": 9}}, 7),
        ({"outbox": STORAGE, "retries": {"jitter": 0}}, 5),
        ({"retries": {"jitter": 0, "columns": {"attempts": "max_attempts"}}}, 1),
    ],
)
def test_retries_are_those_of_the_settings_the_layout_and_the_row(sections: Any, seconds: float | None) -> None:
    found = delay(
        settings(**sections), max_attempts=4, base_delay_ms=5000, max_delay_ms=6000, backoff_multiplier="2.00"
    )
    assert found == (None if seconds is None else pytest.approx(seconds, abs=0.05))


def test_the_sequence_check_uses_the_columns_of_the_layout() -> None:
    assert sequence_check(settings()) is None
    storage = sequence_check(settings(outbox=STORAGE, rules={"sequence": {}}))
    other = sequence_check(settings(rules={"sequence": {"number": "payload#/n"}}))
    assert storage is not None
    assert other is not None
    values = {"aggregate_type": "store", "aggregate_id": "s", "sequence_number": 1, "event_metadata": "{}"}
    assert not storage.observe([row(**values)])
    assert storage.observe([row(**values)]), "it repeats"
    assert not storage.observe([row(**{**values, "event_metadata": '{"replay_of": "e"}'})])
    assert not other.observe([row(aggregatetype="order", aggregateid="o", payload='{"n": 3}')])
    assert other.changes() == {b"order\x00o": 3}


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"rules": {"sequence": {}}}, "a column name, or a path"),
        (
            {"rules": {"sequence": {"number": "n"}}, "kafka": {"bootstrap": "b:1", "delivery": "at_least_once"}},
            "one transaction",
        ),
        ({"retries": {"base": 5, "maximum": 1}}, "at least `base`"),
        ({"rules": {"checks": {"Order*": ["a b"]}}}, "module:function"),
    ],
)
def test_settings_that_cannot_work_are_refused(sections: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        settings(**sections)


@pytest.mark.parametrize(
    ("start", "sections", "where"),
    [
        ({"start": "beginning"}, {"outbox": {"layout": "streams"}}, ""),
        ({"start": "beginning"}, {"outbox": {"layout": "streams"}, "marks": "rows"}, '"processed" IS NOT TRUE'),
        ({"start": "now"}, {"outbox": {"layout": "streams"}, "marks": "rows"}, ""),
        ({"start": "beginning", "start_where": "true"}, {"outbox": {"layout": "streams"}, "marks": "rows"}, "true"),
    ],
)
def test_the_first_read_leaves_out_marked_rows(start: Any, sections: Any, where: str) -> None:
    source = {"postgres": "postgresql://u@localhost/d", "table": "public.outbox", **start}
    assert start_where(settings(source=source, **sections)) == where
