"""Which SQL predicates may limit a first read, by their text alone."""

from __future__ import annotations

import pytest

from tailrace.sources.postgres.predicate import LONGEST, parse_predicate


@pytest.mark.parametrize(
    "text",
    [
        "processed = false",
        "NOT processed",
        "processed IS NOT TRUE AND created_at >= '2026-01-01'",
        "status IN ('pending', 'failed') OR (retry_count < 5 AND last_error IS NULL)",
        "(payload->>'kind')::text = 'a;b--c/*d*/e''f('",
        "coalesce(lower(\"Status\"), '') <> E'it\\'s; done'",
        "tags[1] = 'x' AND amount > -1.5e3",
        "o.processed = false",
        "payload @> '{\"a\": 1}' AND payload ? 'b'",
        "CASE WHEN a THEN b ELSE c END",
        "name = U&'d!0061' UESCAPE '!'",
        '"select" = 1',
    ],
)
def test_conditions_on_the_row_are_accepted(text: str) -> None:
    parse_predicate(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("true; DROP TABLE outbox", "semicolon"),
        ("true) OR (true", "closing parenthesis"),
        ("(true", "not closed"),
        ("true -- and more", "comment"),
        ("true /* and more */", "comment"),
        ("1 +-- 2", "comment"),
        ("a = 'open", "text is not closed"),
        ('a = "open', "name is not closed"),
        ("a = $1", "contains '\\$'"),
        ("a = $$x$$", "contains '\\$'"),
        ("a = 'x\\'' OR true", "backslash|not closed"),
        ("id IN (SELECT id FROM other)", "query"),
        ("EXISTS (TABLE other)", "query"),
        ("id IN (VALUES (1))", "query"),
        ("created_at < CURRENT_TIMESTAMP", "later session"),
        ("created_at < 'now'", "later session"),
        ("created_at < date' Today '", "later session"),
        ("xmin::text = '7'", "system column"),
        ("true\0", "NUL"),
        ("a = '" + "x" * LONGEST + "'", "characters"),
        ('{"processed": false}', "contains '{'"),
    ],
)
def test_what_could_end_the_statement_or_change_later_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_predicate(text)


def test_functions_and_operators_are_found() -> None:
    found = parse_predicate("""audit.is_new (a) AND "Odd one"(b) @@@ c AND d IN (1) AND NOT (e)""")
    assert {"is_new", "Odd one"} <= found.functions
    assert not {"a", "b", "c", "d"} & found.functions
    assert found.operators == {"@@@"}
    assert {"a", "b", "c", "d", "e"} <= found.names
