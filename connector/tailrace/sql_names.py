"""Parses and quotes SQL names.

A table is written `table` or `schema.table`; a part that contains a dot goes in double quotes, as in SQL. Without a
schema, `public`.
"""

from __future__ import annotations

import re

from tailrace.errors import ConfigError

NAME_BYTES = 63
"""NAMEDATALEN - 1. Postgres silently truncates longer names, and the truncated name would never match."""

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


def quote(name: str) -> str:
    """Returns `name` as a quoted SQL identifier."""
    if not name or "\0" in name or len(name.encode()) > NAME_BYTES:
        raise ConfigError(
            f"{name[:80]!r} cannot be a Postgres name",
            why=f"A name has 1 to {NAME_BYTES} bytes and no NUL.",
            remedy="Choose another name.",
        )
    return '"' + name.replace('"', '""') + '"'


def split_table(table: str) -> tuple[str, str]:
    """Splits `table` or `schema.table` into schema and table."""
    parts: list[str] = []
    at = 0
    while match := _PART.match(table, at):
        quoted, bare = match.groups()
        parts.append(bare if quoted is None else quoted.replace('""', '"'))
        at = match.end()
        if table[at : at + 1] != ".":
            break
        at += 1
    if at != len(table) or table.endswith(".") or len(parts) not in (1, 2):
        raise ConfigError(
            f"{table[:150]!r} is not the name of a table",
            why="It must be `table` or `schema.table`.",
            remedy='Put a part that contains a dot in double quotes: shop."out.box".',
        )
    return (parts[0], parts[1]) if len(parts) == 2 else ("public", parts[0])


def quote_table(table: str) -> str:
    """Returns the quoted full name of the table."""
    schema, name = split_table(table)
    return f"{quote(schema)}.{quote(name)}"


def beside(table: str, suffix: str) -> str:
    """Returns the quoted full name of another table in the same schema: the same name with a suffix."""
    schema, name = split_table(table)
    return f"{quote(schema)}.{quote(name + suffix)}"
