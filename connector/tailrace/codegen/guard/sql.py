"""The SQL of a guard: a trigger that refuses rows which the connector would dead-letter for their shape.

The guard helps teams that write SQL by hand; the connector validates every event all the same. It is never stricter
than the connector, and it does not look for everything: what a schema says beyond types and required fields of the
top level is left to the validator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from textwrap import indent
from typing import Literal

from tailrace.codegen.guard.shape import Shape
from tailrace.outbox.layouts import NAME_BYTES, ColumnMap
from tailrace.sql_names import NAME_BYTES as SQL_NAME_BYTES
from tailrace.sql_names import quote, quote_table, split_table

PayloadType = Literal["jsonb", "json"]
COLUMN_TYPES = {"jsonb": ("jsonb",), "json": ("json", "text", "character varying")}
TRIGGER = "zz_tailrace_guard"
"""Triggers fire in the order of their names: the guard comes after those that fill columns."""
MEASURED_SHARE = 8
"""A jsonb is serialised to measure its text only if it takes more than this share of the limit."""


@dataclass(frozen=True, slots=True)
class Guard:
    """The checks of a guard. Without `shapes`, payloads are only measured."""

    table: str
    columns: ColumnMap
    max_bytes: int
    payload_type: PayloadType = "jsonb"
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    unknown_pass: bool = True
    """Whether event types without a shape are accepted."""
    require_aggregate: bool = False

    def create(self) -> str:
        """Returns the SQL that creates or replaces the guard."""
        body = self._body()
        tag = _tag(body)
        return f"""\
-- Refuses rows that Tailrace would dead-letter because of their shape. Never stricter than Tailrace itself.
-- Run as the owner of the table, again after each change of the schemas. It holds back writers for a moment.
-- Rows that are in the table already are not checked. To remove the guard:
{indent(self.drop(), "--   ")}
{self._check()}
CREATE OR REPLACE FUNCTION {self._function()}() RETURNS trigger LANGUAGE plpgsql AS {tag}
{body}{tag};

DROP TRIGGER IF EXISTS {TRIGGER} ON {quote_table(self.table)};
CREATE TRIGGER {TRIGGER} BEFORE INSERT ON {quote_table(self.table)}
    FOR EACH ROW EXECUTE FUNCTION {self._function()}();
"""

    def drop(self) -> str:
        """Returns the SQL that removes the guard."""
        return f"""\
DROP TRIGGER IF EXISTS {TRIGGER} ON {quote_table(self.table)};
DROP FUNCTION IF EXISTS {self._function()}();
"""

    def _function(self) -> str:
        schema, table = split_table(self.table)
        name = f"tailrace_guard_{table}"
        if len(name.encode()) > SQL_NAME_BYTES:
            name = f"tailrace_guard_{sha256(table.encode()).hexdigest()[:16]}"
        return f"{quote(schema)}.{quote(name)}"

    def _check(self) -> str:
        """Returns a statement that fails if the table lacks a column: the trigger would fail at the next INSERT."""
        table, mapped = literal(quote_table(self.table)), self.columns
        named = [mapped.id, mapped.type, *([mapped.aggregate] if mapped.aggregate else []), mapped.payload]
        columns = ", ".join(literal(column) for column in dict.fromkeys(named))
        types = ", ".join(literal(name) for name in COLUMN_TYPES[self.payload_type])
        other = "json" if self.payload_type == "jsonb" else "jsonb"
        body = f"""\
DECLARE
    missing constant text := (
        SELECT string_agg(quote_ident(wanted), ', ') FROM unnest(ARRAY[{columns}]) AS wanted
        WHERE NOT EXISTS (
            SELECT FROM pg_attribute WHERE attrelid = {table}::regclass AND attname = wanted AND NOT attisdropped
        )
    );
    payload_type constant text := (
        SELECT format_type(atttypid, NULL) FROM pg_attribute
        WHERE attrelid = {table}::regclass AND attname = {literal(mapped.payload)} AND NOT attisdropped
    );
BEGIN
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = 'the table lacks columns of the layout: ' || missing,
            HINT = 'Choose the layout of the table with --layout, or name the pipeline''s settings file.';
    ELSIF payload_type NOT IN ({types}) THEN
        RAISE EXCEPTION USING MESSAGE = 'the payload column is of type ' || payload_type || ', not {self.payload_type}',
            HINT = 'Use --payload-type {other} if it holds JSON. There is no guard for other types.';
    END IF;
END;
"""  # noqa: S608  every name is a quoted literal
        tag = _tag(body)
        return f"DO {tag}\n{body}{tag};\n"

    def _body(self) -> str:
        mapped = self.columns
        payload = f"NEW.{quote(mapped.payload)}"
        return f"""\
DECLARE
    event_type constant text := format('%s', NEW.{quote(mapped.type)});
    payload {self.payload_type};
    problem text;
BEGIN
    IF NEW.{quote(mapped.id)} IS NULL THEN
        problem := {literal(f"column {mapped.id}, the event's id, is NULL")};
    ELSIF event_type = '' THEN
        problem := {literal(f"column {mapped.type}, the event's type, is NULL or empty")};
    ELSIF octet_length(event_type) > {NAME_BYTES} THEN
        problem := {literal(f"column {mapped.type}, the event's type, has more than {NAME_BYTES:,} bytes")};
{self._aggregate()}\
    ELSIF {payload} IS NULL THEN
        RETURN NEW;  -- a tombstone
    ELSIF pg_column_size({payload}) > {self.max_bytes // MEASURED_SHARE} \
AND octet_length({payload}::text) > {self.max_bytes} THEN
        problem := {literal(f"the payload has more than {self.max_bytes:,} bytes")};
{self._payload(payload)}\
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'check_violation',
            MESSAGE = 'the outbox refuses this event: ' || problem,
            HINT = 'Tailrace could not publish it. Correct the INSERT; {
            "the rules come from the event schemas" if self.shapes else "the guard comes from tailrace outbox guard"
        }.',
            SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = {literal(TRIGGER)};
    END IF;
    RETURN NEW;
END;
"""

    def _aggregate(self) -> str:
        if self.columns.aggregate is None:
            return ""
        column = self.columns.aggregate
        value, what = f"format('%s', NEW.{quote(column)})", f"column {column}, the event's aggregate,"
        long = f"""\
    ELSIF octet_length({value}) > {NAME_BYTES} THEN
        problem := {literal(f"{what} has more than {NAME_BYTES:,} bytes")};
"""
        if not self.require_aggregate:
            return long
        return f"""\
    ELSIF {value} = '' THEN
        problem := {literal(f"{what} is NULL or empty")};
{long}"""

    def _payload(self, payload: str) -> str:
        """Returns the branch that checks payloads by their event type."""
        if not self.shapes and self.unknown_pass:
            return ""
        branches = [
            f"        WHEN {literal(name)} THEN\n{self._shape(name, shape, payload)}"
            for name, shape in sorted(self.shapes.items())
            if "\0" not in name
        ]
        unknown = (
            "NULL;"
            if self.unknown_pass
            else "problem := 'there is no schema for the event type ' || quote_literal(left(event_type, 80));"
        )
        if not branches:
            return f"    ELSE\n        {unknown}\n"
        return f"""\
    ELSE
        CASE event_type
{"".join(branches)}\
        ELSE
            {unknown}
        END CASE;
"""

    def _shape(self, name: str, shape: Shape, payload: str) -> str:
        typeof = f"{self.payload_type}_typeof"
        cases: list[tuple[str, str]] = []
        if shape.types is not None:
            cases.append(
                (
                    f"{typeof}(payload) NOT IN ({_listed(shape.types)})",
                    f"{literal(f'the payload of {name} is of type ')} || {typeof}(payload) || "
                    + literal(f", not {_or(shape.types)}"),
                )
            )
        cases += [
            (
                f"{typeof}(payload) = 'object' AND (payload -> {literal(key)}) IS NULL",
                literal(f"the payload of {name} lacks the required field {key}"),
            )
            for key in sorted(shape.required)
            if "\0" not in key
        ]
        cases += [
            (
                f"{typeof}(payload -> {literal(key)}) NOT IN ({_listed(types)})",
                f"{literal(f'the field {key} of {name} is of type ')} || {typeof}(payload -> {literal(key)}) || "
                + literal(f", not {_or(types)}"),
            )
            for key, types in sorted(shape.fields.items())
            if "\0" not in key
        ]
        if not cases:
            return "            NULL;\n"
        body = "\n".join(
            f"                WHEN {condition}\n                    THEN {text}" for condition, text in cases
        )
        return f"            payload := {payload};\n            problem := CASE\n{body}\n            END;\n"


def literal(text: str) -> str:
    """Returns `text` as an SQL string, for any `standard_conforming_strings`."""
    quoted = "'" + text.replace("'", "''") + "'"
    return "E" + quoted.replace("\\", "\\\\") if "\\" in text else quoted


def _listed(types: frozenset[str]) -> str:
    return ", ".join(literal(name) for name in sorted(types))


def _or(types: frozenset[str]) -> str:
    return " or ".join(sorted(types))


def _tag(body: str) -> str:
    """Returns a dollar quote that does not occur in the text."""
    number, tag = 0, "$guard$"
    while tag in body:
        number += 1
        tag = f"$guard{number}$"
    return tag
