"""The guard of an outbox table on a real Postgres: what it refuses. It is never stricter than the connector."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.codegen.guard.shape import shapes_of
from tailrace.codegen.guard.sql import Guard
from tailrace.errors import Rejected
from tailrace.event import JSONB, TEXT, Column, Row
from tailrace.outbox.ddl import layout_ddl, table_ddl
from tailrace.outbox.layouts import DEBEZIUM, Layout
from tailrace.outbox.specs import LAYOUTS, layout_map
from tailrace.schema_versions import Version
from tailrace.schemas.compiled import SchemaSet
from tailrace.schemas.json_schema import DRAFTS, CompiledJsonSchema
from tailrace.schemas.validation import PayloadValidator
from tailrace.testkit.stack import PostgresServer

Connection = psycopg.Connection[tuple[Any, ...]]
TABLE = "public.outbox"
ORDER = {
    "type": "object",
    "required": ["order", 'it\'s \\ "odd" $guard$'],
    "properties": {"order": {"type": "string"}, "amount": {"type": ["integer", "null"]}, "note": {"maxLength": 3}},
}
VALID = {"order": "o-1", 'it\'s \\ "odd" $guard$': 1}
LIMIT = 2000


@pytest.fixture(scope="module")
def connection(postgres: PostgresServer) -> Iterator[Connection]:
    """A connection that rolls back: each test makes its table in a transaction."""
    with psycopg.connect(postgres.create_database("guard_tests")) as connection:
        yield connection
        connection.rollback()
    with postgres.connect() as connection:
        connection.execute("DROP DATABASE guard_tests WITH (FORCE)")


@pytest.fixture
def table(connection: Connection) -> Iterator[Connection]:
    connection.rollback()
    connection.execute(table_ddl(TABLE).replace("NOT NULL", ""))
    yield connection
    connection.rollback()


def schema_set(document: Any) -> SchemaSet:
    return SchemaSet.of([CompiledJsonSchema.compile("OrderPlaced", Version(1), document, "file")])


def guard(document: Any = ORDER, **changes: Any) -> Guard:
    made = Guard(TABLE, DEBEZIUM, LIMIT, shapes=shapes_of(schema_set(document), latest=True), unknown_pass=False)
    return replace(made, **changes)


def insert(
    connection: Connection,
    payload: Any,
    *,
    type: str | None = "OrderPlaced",
    aggregate: str | None = "order",
    id: str | None = "7d0a4e8e-5d0c-4c1f-9e5a-000000000001",
) -> tuple[str, str | None] | None:
    """Inserts a row and takes it back. Returns message and hint of the refusal, or None."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(
                "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (%s, %s, 'o-1', %s, %s)",
                [id, aggregate, type, payload if payload is None or isinstance(payload, str) else json.dumps(payload)],
            )
    except psycopg.errors.CheckViolation as error:
        return error.diag.message_primary or "", error.diag.message_hint
    return None


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ([], "the payload of OrderPlaced is of type array, not object"),
        ("null", "the payload of OrderPlaced is of type null, not object"),
        ({**VALID, "order": 1}, "the field order of OrderPlaced is of type number, not string"),
        ({**VALID, "amount": "1"}, "the field amount of OrderPlaced is of type string, not null or number"),
        ({"order": "o-1"}, 'the payload of OrderPlaced lacks the required field it\'s \\ "odd" $guard$'),
        ({**VALID, "x": "y" * LIMIT}, "the payload has more than 2,000 bytes"),
    ],
)
def test_payloads_that_would_be_dead_lettered_are_refused(table: Connection, payload: Any, problem: str) -> None:
    table.execute(guard().create())
    assert insert(table, VALID) is None
    refusal = insert(table, payload)
    assert refusal is not None
    assert refusal[0] == f"the outbox refuses this event: {problem}"
    assert refusal[1] is not None
    assert not accepts(schema_set(ORDER), payload if isinstance(payload, str) else json.dumps(payload))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"type": None}, "column type, the event's type, is NULL or empty"),
        ({"type": ""}, "column type, the event's type, is NULL or empty"),
        ({"type": "OrderLost"}, "there is no schema for the event type 'OrderLost'"),
        ({"aggregate": ""}, "column aggregatetype, the event's aggregate, is NULL or empty"),
        ({"aggregate": None}, "column aggregatetype, the event's aggregate, is NULL or empty"),
    ],
)
def test_columns_that_would_be_dead_lettered_are_refused(
    table: Connection, columns: dict[str, Any], problem: str
) -> None:
    table.execute(guard(require_aggregate=True).create())
    assert insert(table, VALID, **columns) == (
        f"the outbox refuses this event: {problem}",
        "Tailrace could not publish it. Correct the INSERT; the rules come from the event schemas.",
    )


def test_long_names_and_missing_ids_are_refused(table: Connection) -> None:
    table.execute(
        "ALTER TABLE outbox ALTER type TYPE text, ALTER aggregatetype TYPE text, DROP CONSTRAINT outbox_pkey, "
        "ALTER id DROP NOT NULL"
    )
    table.execute(guard(unknown_pass=True).create())
    for columns, problem in (
        ({"id": None}, "column id, the event's id, is NULL"),
        ({"type": "é" * 501}, "column type, the event's type, has more than 1,000 bytes"),
        ({"aggregate": "a" * 1001}, "column aggregatetype, the event's aggregate, has more than 1,000 bytes"),
    ):
        refusal = insert(table, VALID, **columns)
        assert refusal is not None
        assert refusal[0].endswith(problem)
    assert insert(table, VALID, type="é" * 500, aggregate="a" * 1000) is None


def test_what_the_connector_accepts_is_accepted(table: Connection) -> None:
    table.execute(guard().create())
    assert insert(table, None) is None, "a tombstone"
    assert insert(table, None, type="OrderLost") is None, "a tombstone of an unknown type"
    assert insert(table, VALID, aggregate=None) is None
    assert insert(table, {**VALID, "note": "too long for the schema"}) is None, "the guard knows the top level only"
    table.execute(guard(unknown_pass=True).create())
    assert insert(table, [], type="OrderLost") is None
    assert insert(table, []) is not None


def test_the_guard_sees_what_other_triggers_fill_in(table: Connection) -> None:
    table.execute(
        "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN NEW.type = 'OrderPlaced'; RETURN NEW; END$$;"
        "CREATE TRIGGER fill BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION fill()"
    )
    table.execute(guard().create())
    assert insert(table, VALID, type=None) is None


def test_the_guard_can_be_replaced_and_removed(table: Connection) -> None:
    for _ in range(2):
        table.execute(guard().create())
    assert insert(table, []) is not None
    table.execute(guard({"type": "array"}).create())
    assert insert(table, []) is None
    assert insert(table, VALID) is not None
    for _ in range(2):
        table.execute(guard().drop())
    assert insert(table, VALID) is None
    assert table.execute("SELECT count(*) FROM pg_proc WHERE proname LIKE 'tailrace_guard%'").fetchone() == (0,)


def test_a_partitioned_table_is_guarded(table: Connection) -> None:
    table.execute("DROP TABLE outbox")
    table.execute(
        "CREATE TABLE outbox (id uuid, aggregatetype text, aggregateid text, type text, payload jsonb, "
        "at timestamptz DEFAULT now()) PARTITION BY RANGE (at);"
        "CREATE TABLE outbox_all PARTITION OF outbox DEFAULT"
    )
    table.execute(guard().create())
    assert insert(table, VALID) is None
    assert insert(table, {}) is not None


@pytest.mark.parametrize("column_type", ["json", "text", "varchar(3000)"])
def test_payloads_of_other_types(table: Connection, column_type: str) -> None:
    table.execute(f"ALTER TABLE outbox ALTER payload TYPE {column_type}")
    with pytest.raises(psycopg.errors.RaiseException, match="payload column is of type"), table.transaction():
        table.execute(guard().create())
    table.execute(guard(payload_type="json").create())
    assert insert(table, VALID) is None
    assert insert(table, {**VALID, "x": 1e-320}) is None
    assert insert(table, {}) is not None
    assert insert(table, {**VALID, "x": "y" * LIMIT}) is not None


def test_a_table_of_another_layout_is_refused(table: Connection) -> None:
    table.execute("ALTER TABLE outbox RENAME type TO kind")
    with pytest.raises(psycopg.errors.RaiseException, match="the table lacks columns of the layout: type") as caught:
        table.execute(guard().create())
    assert "--layout" in (caught.value.diag.message_hint or "")


@pytest.mark.parametrize("layout", ["document", "streams", "storage"])
def test_tables_of_every_layout_are_guarded(table: Connection, layout: str) -> None:
    table.execute(layout_ddl(layout, "public.events"))
    table.execute(guard(table="public.events", columns=layout_map(layout, "postgres")).create())
    filled = [column.name for column in LAYOUTS[layout].table if column.rest in ("PRIMARY KEY", "NOT NULL")]
    filled += [] if "payload" in filled or layout == "storage" else ["payload"]
    values = ", ".join("'1'" for _ in filled)
    with pytest.raises(psycopg.errors.CheckViolation, match="no schema for the event type '1'"):
        table.execute(f"INSERT INTO events ({', '.join(filled)}) VALUES ({values})")


# Never stricter than the validator.

COLUMNS = tuple(
    Column(name, JSONB if name == "payload" else TEXT)
    for name in ("id", "aggregatetype", "aggregateid", "type", "payload")
)
JSON_TYPES = ["object", "array", "string", "number", "integer", "boolean", "null"]
KEYS = st.sampled_from(["a", "b", "c'\\", "$guard$"])
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-2, 2) | st.sampled_from(["", "x", "'"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=6,
)
TYPES = st.sampled_from(JSON_TYPES) | st.lists(st.sampled_from(JSON_TYPES), min_size=1, max_size=3, unique=True)
RULES = st.fixed_dictionaries(
    {},
    optional={
        "type": TYPES,
        "required": st.lists(KEYS, max_size=2, unique=True),
        "minimum": st.integers(-3, 3),
        "maxProperties": st.integers(0, 3),
        "$ref": st.sampled_from(["#/definitions/any", "#/definitions/own", "#/definitions/own/properties/a"]),
    },
)
DOCUMENTS = st.builds(
    lambda rules, properties, draft, more, own: {
        **rules,
        **({"properties": properties} if properties else {}),
        **({more[0]: [more[1]]} if more else {}),
        "$schema": draft,
        "definitions": {"any": {}, "own": {**own, "properties": {"a": {"type": "string"}}}},
    },
    RULES,
    st.dictionaries(KEYS, RULES | st.booleans(), max_size=3),
    st.sampled_from(DRAFTS[:4]),
    st.none() | st.tuples(st.sampled_from(["allOf", "anyOf", "oneOf"]), RULES),
    RULES,
)


def accepts(schemas: SchemaSet, payload: str, *, unknown: Any = "dead_letter") -> bool:
    """Whether the connector accepts a row with this payload."""
    row = Row(COLUMNS, (b"1", b"order", b"o-1", b"OrderPlaced", payload.encode()), "0/1:0", 0)
    try:
        event = Layout(DEBEZIUM).read(row)
        PayloadValidator(schemas, unknown=unknown, max_bytes=LIMIT).validate(event, "orders")
    except Rejected:
        return False
    return True


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=st.lists(DOCUMENTS, min_size=1, max_size=2), payloads=st.lists(VALUES, min_size=1, max_size=8))
def test_the_guard_is_never_stricter_than_the_validator(
    table: Connection, documents: list[Any], payloads: list[Any]
) -> None:
    versions = [
        CompiledJsonSchema.compile("OrderPlaced", Version(number), document, "file")
        for number, document in enumerate(documents, start=1)
    ]
    alone = [SchemaSet.of([schema]) for schema in versions]
    for latest in (True, False):
        table.execute(guard(shapes=shapes_of(versions, latest=latest)).create())
        for payload in payloads:
            text = json.dumps(payload)
            if any(accepts(schemas, text) for schemas in (alone[-1:] if latest else alone)):
                assert insert(table, text) is None, (documents, text)
