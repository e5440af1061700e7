"""The rules over the outbox table, at their limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace.check.doctor.outbox_rules import IndexFacts, IndexUse, OutboxFacts, TableFacts, check_outbox

PRIMARY = IndexFacts("outbox_pkey", ("id",), 1 << 20)
TABLE = TableFacts('"public"."outbox"', 100_000, 0, 50 << 20, (PRIMARY,))
FACTS = OutboxFacts('"public"."outbox"', (TABLE,), (PRIMARY,))
BY_ID = IndexUse(("id",), "marks")
BY_TIME = IndexUse(("created_at", "id"), "retention")


def codes(
    table: TableFacts = TABLE, uses: tuple[IndexUse, ...] = (BY_ID,), *, deletes: bool = True, **facts: Any
) -> list[str]:
    given = replace(FACTS, tables=(table,), **facts)
    return [each.code for each in check_outbox(given, uses, "orders.yaml", deletes=deletes)]


def test_nothing_to_report() -> None:
    assert codes() == []


@pytest.mark.parametrize(
    ("rows", "dead", "reported"), [(40_001, 10_000, False), (40_000, 10_000, True), (5, 9_999, False)]
)
def test_dead_rows(rows: int, dead: int, reported: bool) -> None:
    assert codes(replace(TABLE, rows=rows, dead=dead)) == ["outbox-dead-tuples"] * reported


def test_autovacuum() -> None:
    assert codes(replace(TABLE, autovacuum=False)) == ["outbox-autovacuum-off"]
    assert codes(autovacuum=False) == ["outbox-autovacuum-off"]
    assert codes(replace(TABLE, rows=5_000_001)) == ["outbox-autovacuum-late"]
    assert codes(replace(TABLE, rows=5_000_001, scale_factor=0.01)) == []


def test_indexes() -> None:
    big = IndexFacts("o'dd\"", ("id",), 10 << 20, needed_bytes=4 << 20)
    assert codes(replace(TABLE, indexes=(big,))) == ["outbox-index-bloat"]
    assert codes(replace(TABLE, indexes=(replace(big, needed_bytes=(4 << 20) + 9),))) == []
    assert codes(replace(TABLE, indexes=(replace(big, needed_bytes=None),))) == []
    assert codes(replace(TABLE, indexes=(replace(big, valid=False),))) == ["outbox-index-invalid"]
    found = check_outbox(replace(FACTS, tables=(replace(TABLE, indexes=(big,)),)), (), "f", deletes=True)
    assert found[0].fixes[0].text == 'REINDEX INDEX CONCURRENTLY "public"."o\'dd""";'


def test_missing_indexes() -> None:
    assert codes(uses=(BY_TIME, IndexUse(("created_at",), "archive"))) == ["outbox-index-missing"]
    by_time = IndexFacts("t", ("created_at",), 1)
    assert codes(uses=(BY_TIME,), indexes=(by_time,)) == []
    assert codes(uses=(BY_TIME,), indexes=(replace(by_time, partial=True),)) == ["outbox-index-missing"]
    assert codes(uses=(BY_TIME,), indexes=(replace(by_time, valid=False),)) == ["outbox-index-missing"]
    found = check_outbox(replace(FACTS, partitioned=True), (BY_TIME,), "f", deletes=True)
    assert found[0].fixes[0].text == 'CREATE INDEX ON "public"."outbox" ("created_at", "id");'


def test_a_large_outbox_that_nothing_makes_smaller() -> None:
    large = replace(TABLE, bytes=(10 << 30) + 1, scale_factor=0.01)
    assert codes(large, deletes=False) == ["outbox-size"]
    assert codes(large) == []
