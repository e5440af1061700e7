"""The mark columns of each layout, and the SQL that is made of them."""

from __future__ import annotations

import pytest

from tailrace.errors import ConfigError
from tailrace.outbox.marks import sql
from tailrace.outbox.marks.columns import (
    DOCUMENT,
    STORAGE,
    STREAMS,
    MarkColumns,
    mark_columns,
    require_mark_columns,
)


def test_layouts_have_their_columns_under_the_names_of_the_table() -> None:
    assert mark_columns("streams") is STREAMS or mark_columns("streams") == STREAMS
    renamed = mark_columns("document", {"status": "state"})
    assert renamed is not None
    assert renamed.status == "state"
    assert renamed.published.keys() == {"state", "published_at"}
    assert renamed.dead_lettered["state"] == "failed"


def test_a_table_of_debezium_has_the_mark_columns_that_are_named() -> None:
    assert mark_columns("debezium") is None
    named = mark_columns("debezium", {"processed": "sent"})
    assert named is not None
    assert named.names == ("sent",)
    assert (named.at, named.error) == (None, None)


def test_wrong_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="no mark column"):
        mark_columns("document", {"procesed": "sent"})
    with pytest.raises(ConfigError, match="does not name processed"):
        mark_columns("debezium", {"error": "why"})
    with pytest.raises(ConfigError, match="the layout debezium has none"):
        require_mark_columns("debezium")


def test_a_published_row_is_not_marked_again() -> None:
    statement = sql.mark_published("shop.outbox", "event_id", "uuid", DOCUMENT)
    assert statement == (
        'UPDATE "shop"."outbox" AS o SET "status" = \'published\', "published_at" = now() '
        'WHERE o."event_id" = ANY ($1::uuid[]) AND o."status" IS DISTINCT FROM \'published\''
    )


def test_attempts_are_counted_once_for_a_dead_letter() -> None:
    statement = sql.mark_dead_lettered("outbox", "outbox_id", "text", STORAGE)
    assert '"delivery_attempts" = coalesce(o."delivery_attempts", 0) + 1' in statement
    assert '"first_attempt_at" = coalesce(o."first_attempt_at", now())' in statement
    assert "o.\"delivery_status\" IS DISTINCT FROM 'dlq'" in statement


def test_values_are_quoted_in_arrays_and_literals() -> None:
    assert sql.array(['a"b', "c\\d", "e,f"]) == '{"a\\"b","c\\\\d","e,f"}'
    assert sql.literal("it's") == "'it''s'"


def test_the_view_uses_no_other_columns_of_the_table() -> None:
    statement = sql.view_ddl("outbox", "my-orders", "id", None, ["id", "payload", "created_at"])
    assert '"tailrace_my_orders_marks"' in statement
    assert "payload" not in statement
    assert 'NULL::timestamptz AS "processed_at"' in statement
    own = sql.view_ddl("outbox", "orders", "id", STREAMS, ["id", "processed", "processed_at", "error"])
    assert 'o."processed_at" AS "processed_at"' in own


@pytest.mark.parametrize("columns", [STREAMS, STORAGE, DOCUMENT], ids=["streams", "storage", "document"])
@pytest.mark.parametrize("has_columns", [True, False])
def test_the_view_has_every_mark_column(columns: MarkColumns, *, has_columns: bool) -> None:
    present = ["id", *(columns.names if has_columns else ())]
    statement = sql.view_ddl("outbox", "orders", "id", columns, present)
    assert [name for name in columns.names if f' AS "{name}"' not in statement] == []
    assert (f'o."{columns.names[-1]}"' in statement) == has_columns
