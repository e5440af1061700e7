"""Dead letters that cannot be written as new rows. `test_record_retries.py` in tests/faults writes one."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.dlq.dead_letter import FIRST, DeadLetter, DeadLetterId
from tailrace.errors import ConfigError, Rejected
from tailrace.outbox.specs import LAYOUTS
from tailrace.replay.new_rows import NewRows
from tailrace.sources.postgres.options import PostgresOptions

COLUMNS = LAYOUTS["storage"].columns


def options() -> PostgresOptions:
    return PostgresOptions(conninfo="host=/nowhere", table="public.storage_outbox", slot="s", publication="p")


@pytest.mark.parametrize(("database", "layout"), [(None, "debezium"), (object(), "storage")])
def test_an_outbox_of_another_layout_is_refused(database: Any, layout: str) -> None:
    with pytest.raises(ConfigError, match="--as-new"):
        NewRows(database or options(), layout, COLUMNS)


@pytest.mark.parametrize(
    ("headers", "expected"), [([], "could not be read"), ([("id", "e-1"), (FIRST, "true")], "wait behind it")]
)
def test_a_dead_letter_that_cannot_be_a_new_row_is_refused(headers: Any, expected: str) -> None:
    letter = DeadLetter(DeadLetterId(0, 1), 5, b"k", b"{}", [("tailrace.position", "0/1:1"), *headers])
    with pytest.raises(Rejected, match=expected):
        NewRows(options(), "storage", COLUMNS).add(letter, None)
