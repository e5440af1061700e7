"""Which MongoDB filters may limit a first read."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.sources.mongo.filters import filter_text


@pytest.mark.parametrize(
    "given",
    [
        {"status": "pending"},
        {"status": {"$in": ["pending", "processing"]}, "retry_count": {"$lt": 5}},
        {"$or": [{"status": {"$ne": "published"}}, {"$and": [{"locked_until": None}]}]},
        {"created_at": {"$gte": {"$date": "2026-01-01T00:00:00Z"}}},
        {"tags": {"$elemMatch": {"name": "a", "n": {"$not": {"$gt": 1}}}}},
        {"_id": {"$gt": {"$oid": "0" * 24}}},
        {},
    ],
)
def test_comparisons_are_accepted(given: dict[str, Any]) -> None:
    text = filter_text(given)
    assert filter_text(text) == text


def test_the_order_of_fields_does_not_matter() -> None:
    assert filter_text({"b": 1, "a": 2}) == filter_text('{"a": 2,   "b": 1}')


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"$where": "this.a == 1"}, r"\$where"),
        ({"a": {"$not": {"$where": "1"}}}, r"\$where"),
        ({"$or": [{"$expr": {"$lt": ["$a", "$$NOW"]}}]}, r"\$expr"),
        ({"$text": {"$search": "a"}}, r"\$text"),
        ({"at": {"$near": [1, 2]}}, r"\$near"),
        ({"$jsonSchema": {}}, r"\$jsonSchema"),
        ({"$ne": 1}, r"\$ne"),
        ("status = 'pending'", "not a document"),
        ("[1]", "not a document"),
        ({1: 2}, "not a text"),
        ({"a": "x" * 3000}, "characters"),
        ({"a": float("nan")}, "JSON does not have"),
    ],
)
def test_code_and_values_that_change_are_refused(given: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        filter_text(given)
