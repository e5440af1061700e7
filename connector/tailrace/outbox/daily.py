"""The SQL of an outbox that is partitioned by day: its primary key, and the partitions of the next days.

The statements may run again, and should run every day: each time the partitions of the next days are added. Days are
those of UTC, so the time zone of the session makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from tailrace.sql_names import NAME_BYTES, quote, quote_table, split_table

DAYS_AHEAD = 7
_SUFFIX = "_20261231"

ColumnDefinitions = list[tuple[str, str]]


def with_time_in_key(columns: Iterable[tuple[str, str]], time: str) -> tuple[ColumnDefinitions, str]:
    """Returns the columns and a primary key that contains the time: Postgres wants the partition key in it."""
    plain = [(name, definition.replace("PRIMARY KEY", "NOT NULL")) for name, definition in columns]
    key = [name for name, definition in columns if "PRIMARY KEY" in definition]
    return plain, f"PRIMARY KEY ({', '.join(map(quote, [*key, time]))})"


def partitions_ddl(table: str, days: int = DAYS_AHEAD) -> str:
    """Returns the block that creates the missing partitions of today and the next days."""
    schema, name = split_table(table)
    if len((name + _SUFFIX).encode()) > NAME_BYTES:  # Postgres would cut off the day
        name = f"outbox_{blake2b(name.encode(), digest_size=12).hexdigest()}"
    full = quote_table(table)
    tag = "$do$"
    while tag in f"{full}{name}":  # a name may contain anything
        tag = f"{tag[:-1]}_$"
    inside = full.replace("'", "''").replace("%", "%%")
    names = [f"E'{part.replace(chr(92), chr(92) * 2).replace(chr(39), chr(39) * 2)}'" for part in (schema, name)]
    return f"""\

-- The partitions of today and the next {days} days, by UTC. Run this every day: existing ones are left as they are.
-- CREATE and ATTACH instead of PARTITION OF: that would make writers wait.
-- To delete an old day: ALTER TABLE … DETACH PARTITION … CONCURRENTLY; then DROP TABLE …;
DO {tag}
DECLARE
    day timestamp;
    part text;
BEGIN
    FOR day IN
        SELECT date_trunc('day', now() AT TIME ZONE 'UTC') + n * interval '1 day' FROM generate_series(0, {days}) n
    LOOP
        part := format('%I.%I', {names[0]}, {names[1]} || to_char(day, '_YYYYMMDD'));
        IF to_regclass(part) IS NULL THEN
            EXECUTE format('CREATE TABLE %s (LIKE {inside} INCLUDING ALL)', part);
            EXECUTE format('ALTER TABLE {inside} ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)',
                part, day AT TIME ZONE 'UTC', (day + interval '1 day') AT TIME ZONE 'UTC');
        END IF;
    END LOOP;
END {tag};
"""  # noqa: S608 - every name is quoted
