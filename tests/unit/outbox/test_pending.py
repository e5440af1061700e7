"""The predicate for rows that are not published yet, by layout."""

from __future__ import annotations

import pytest

from tailrace.outbox.pending import pending_predicate
from tailrace.sources.mongo.filters import filter_text
from tailrace.sources.postgres.predicate import parse_predicate


@pytest.mark.parametrize(
    ("layout", "names", "sql", "mongo"),
    [
        ("streams", {}, '"processed" IS NOT TRUE', '{"processed": {"$ne": true}}'),
        ("document", {}, "(\"status\" IN ('published')) IS NOT TRUE", '{"status": {"$ne": "published"}}'),
        (
            "storage",
            {},
            "(\"delivery_status\" IN ('delivered', 'dlq')) IS NOT TRUE",
            '{"delivery_status": {"$nin": ["delivered", "dlq"]}}',
        ),
        ("debezium", {"processed": "sent"}, '"sent" IS NOT TRUE', '{"sent": {"$ne": true}}'),
    ],
)
def test_rows_that_are_not_published(layout: str, names: dict[str, str], sql: str, mongo: str) -> None:
    assert pending_predicate(layout, names=names) == sql
    assert pending_predicate(layout, "mongo", names) == mongo
    parse_predicate(sql)
    assert filter_text(mongo) == mongo


def test_a_layout_without_status_has_none() -> None:
    assert pending_predicate("debezium") == pending_predicate("debezium", "mongo") == ""
