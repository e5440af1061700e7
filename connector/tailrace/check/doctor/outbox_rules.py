"""Rules over the outbox table of Postgres: its size, dead rows, indexes and autovacuum. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tailrace.check.findings import advice, note, settings, sql, warning
from tailrace.check.result import CheckResult, human_bytes
from tailrace.sql_names import quote

MANY_DEAD = 10_000
DEAD_SHARE = 0.2
"""Autovacuum starts at a fifth of the rows by default; more means that it cannot keep up or cannot remove them."""
INDEX_BYTES = 4 << 20
"""Smaller indexes are not judged."""
EMPTY_SHARE = 0.6
"""A B-tree that is split at random is about a third empty."""
LARGE_ROWS = 5_000_000
LARGE_BYTES = 10 << 30
FEW_ROWS = 10_000
"""Reading a table of this size completely takes milliseconds."""


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """An index. `needed_bytes` is the estimated size of a new one; None if it cannot be estimated."""

    name: str
    columns: tuple[str, ...]
    bytes: int
    needed_bytes: int | None = None
    valid: bool = True
    partial: bool = False


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table, or one partition of the outbox. `name` is quoted; `rows` is an estimate, also of dead rows."""

    name: str
    rows: int
    dead: int
    bytes: int
    indexes: tuple[IndexFacts, ...] = ()
    autovacuum: bool = True
    scale_factor: float = 0.2
    """The share of rows that must be dead before autovacuum runs."""


@dataclass(frozen=True, slots=True)
class OutboxFacts:
    """The outbox. `indexes` are those of the table itself; `tables` are the table, or its partitions."""

    name: str
    tables: tuple[TableFacts, ...]
    indexes: tuple[IndexFacts, ...]
    partitioned: bool = False
    autovacuum: bool = True
    """Whether autovacuum is on for the whole server."""
    old_transactions: int = 0
    """Transactions that have been open for long: vacuum cannot remove what they may still read."""

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)


@dataclass(frozen=True, slots=True)
class IndexUse:
    """Columns that something looks for in the outbox, in this order."""

    columns: tuple[str, ...]
    purpose: str


def check_outbox(facts: OutboxFacts, uses: Sequence[IndexUse], file: str, *, deletes: bool) -> list[CheckResult]:
    """All findings. `deletes`: whether retention or an archive deletes old rows."""
    found: list[CheckResult] = []
    if not facts.autovacuum:
        fix = sql("ALTER SYSTEM SET autovacuum = 'on'; SELECT pg_reload_conf();")
        found.append(warning("outbox-autovacuum-off", "autovacuum is off for the whole server", fix))
    for table in facts.tables:
        found += _autovacuum(table)
        found += _dead(table, facts.old_transactions)
        found += [finding for index in table.indexes if (finding := _bloat(table, index)) is not None]
    found += _missing(facts, uses)
    if not deletes and (size := sum(table.bytes for table in facts.tables)) > LARGE_BYTES:
        fixes = [
            settings(file, {"retention": {"after": "30d"}}),
            advice("Then run `tailrace retention run` regularly."),
        ]
        what = f"{facts.name} has about {facts.rows:,} rows and {human_bytes(size)}"
        found.append(note("outbox-size", f"{what}, and the pipeline has no retention", *fixes))
    return found


def _autovacuum(table: TableFacts) -> Iterable[CheckResult]:
    if not table.autovacuum:
        fix = sql(f"ALTER TABLE {table.name} RESET (autovacuum_enabled);")
        yield warning("outbox-autovacuum-off", f"autovacuum is off for {table.name}", fix)
    elif table.rows > LARGE_ROWS and table.scale_factor >= DEAD_SHARE:
        yield note(
            "outbox-autovacuum-late",
            f"{table.name} has about {table.rows:,} rows, and autovacuum waits for {table.scale_factor:.0%} dead ones",
            sql(f"ALTER TABLE {table.name} SET (autovacuum_vacuum_scale_factor = 0.01);"),
        )


def _dead(table: TableFacts, old_transactions: int) -> Iterable[CheckResult]:
    total = table.rows + table.dead
    if table.dead < MANY_DEAD or table.dead < DEAD_SHARE * total:
        return
    held = f"; {old_transactions} transactions are open for over an hour and may hold them" if old_transactions else ""
    found = f"about {table.dead:,} of {total:,} rows of {table.name} are dead{held}"
    yield warning("outbox-dead-tuples", found, sql(f"VACUUM (ANALYZE) {table.name};"))


def _bloat(table: TableFacts, index: IndexFacts) -> CheckResult | None:
    schema = table.name.partition(".")[0]
    full = f"{schema}.{quote(index.name)}"
    again = sql(f"REINDEX INDEX CONCURRENTLY {full};")
    if not index.valid:
        return warning(
            "outbox-index-invalid", f"{full} is invalid, after a CREATE INDEX CONCURRENTLY that failed", again
        )
    if index.needed_bytes is None or index.bytes < INDEX_BYTES:
        return None
    empty = 1 - index.needed_bytes / index.bytes
    if empty < EMPTY_SHARE:
        return None
    found = f"about {empty:.0%} of {full} is empty ({human_bytes(index.bytes)})"
    return warning("outbox-index-bloat", found, again)


def _missing(facts: OutboxFacts, uses: Sequence[IndexUse]) -> Iterable[CheckResult]:
    missing: set[str] = set()
    for use in uses:
        # An index that is missing for an earlier use serves this one as well.
        if use.columns[0] in missing or any(_serves(index, use.columns) for index in facts.indexes):
            continue
        missing.add(use.columns[0])
        names = ", ".join(map(quote, use.columns))
        # A partitioned table does not take CONCURRENTLY.
        how = "CREATE INDEX" if facts.partitioned else "CREATE INDEX CONCURRENTLY"
        found = f"{facts.name} has no index on {names}, which {use.purpose} needs"
        report = warning if facts.rows > FEW_ROWS else note
        yield report("outbox-index-missing", found, sql(f"{how} ON {facts.name} ({names});"))


def _serves(index: IndexFacts, columns: tuple[str, ...]) -> bool:
    """Whether rows can be found by the first of the columns; further ones only order equal values."""
    return index.valid and not index.partial and index.columns[:1] == columns[:1]
