"""The SQL of an inbox, and objects that are no connection."""

from __future__ import annotations

import pytest

from tailrace.errors import ConfigError
from tailrace.inbox import Inbox


def test_the_table_has_the_flat_fields_and_a_unique_index() -> None:
    sql = Inbox("shop.processed_events").ddl()
    assert 'CREATE TABLE IF NOT EXISTS "shop"."processed_events"' in sql
    for column in ("consumer_group text", "event_id text", "entity_id text", "entity_version bigint", "processed_at"):
        assert f"\n    {column} " in sql or f"\n    {column}," in sql
    assert "PRIMARY KEY (consumer_group, event_id)" in sql


def test_index_names_of_long_tables_stay_different() -> None:
    one, other = (Inbox("x" * 62 + end).ddl().splitlines()[-1] for end in "ab")
    assert one.split('"')[1] != other.split('"')[1]
    assert len(one.split('"')[1]) <= 63


@pytest.mark.parametrize("table", ["", "a.b.c", "a" * 64])
def test_names_that_no_table_can_have(table: str) -> None:
    with pytest.raises(ConfigError):
        Inbox(table).ddl()


def test_an_object_that_is_no_connection_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a connection"):
        Inbox().once(object(), "e", "g")
