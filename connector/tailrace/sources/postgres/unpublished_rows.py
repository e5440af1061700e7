"""Finds rows that entered the outbox without its publication: by inheritance, ATTACH PARTITION, or while UNLOGGED.

DDL leaves its transaction id in the catalog: pg_inherits has that of the ATTACH, pg_class that of the last rewrite.
Changes older than a verified snapshot need no second check, so a position only stores that snapshot's `xmin`. If a
table changed since, its rows are queried: is one older than the ATTACH, or as old as the rewrite? In all other cases
the catalog alone decides, without waiting for locks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tailrace.errors import PublicationBroken
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.publication import Published, broken
from tailrace.sql_names import quote, quote_table

WRAP = 2**32
"""Transaction ids in rows wrap around after this many."""

# OFFSET 0 and LIMIT 1 force index lookups row by row: the planner expects far too many rows of a recursive query, and
# would read the whole catalog each time.
_TREE = """
WITH RECURSIVE tree AS (
    SELECT c.oid, 0::oid AS parent, i.xmin AS attached, i.cmin AS command, 0 AS depth
    FROM pg_class c LEFT JOIN pg_inherits i ON c.relispartition AND i.inhrelid = c.oid WHERE c.oid = $1::oid
    UNION ALL
    SELECT i.inhrelid, i.inhparent, i.xmin, i.cmin, t.depth + 1 FROM tree t
    CROSS JOIN LATERAL (SELECT i.inhrelid, i.inhparent, i.xmin, i.cmin FROM pg_inherits i
                        WHERE i.inhparent = t.oid AND NOT i.inhdetachpending OFFSET 0) i
    WHERE (SELECT c.relhassubclass FROM pg_class c WHERE c.oid = t.oid)
)
SELECT t.oid, t.parent, t.oid::regclass, c.relkind, c.relispartition, c.relpersistence,
       coalesce(t.attached::text, '0'), coalesce(t.command::text, '0'), c.created, c.rewritten, c.xmin,
       (SELECT true FROM pg_attribute a
        WHERE a.attrelid = t.oid AND a.attnum > 0 AND a.xmin = c.rewritten LIMIT 1) IS NOT NULL,
       pg_snapshot_xmax(pg_current_snapshot()),
       c.relkind = 'p' OR coalesce(pg_relation_filenode(t.oid), c.relfilenode) = c.relfilenode
FROM tree t CROSS JOIN LATERAL (
    SELECT c.relkind, c.relispartition, c.relpersistence, c.relfilenode, c.xmin,
           coalesce((SELECT f.xmin FROM pg_class f WHERE f.oid = c.reltoastrelid), c.xmin) AS rewritten,
           (SELECT s.xmin FROM pg_attribute s WHERE s.attrelid = c.oid AND s.attnum = -1) AS created
    FROM pg_class c WHERE c.oid = t.oid LIMIT 1) c
ORDER BY t.depth, t.oid
"""


@dataclass(frozen=True, slots=True)
class OutboxPartition:
    """The outbox itself, a partition of it, or a table that inherits from it. Transaction ids have 32 bits; 0: none."""

    oid: int
    parent: int
    name: str
    kind: str
    is_partition: bool
    persistence: str
    attached: int
    """The transaction that attached it; `command` is the number of the command in it."""
    command: int
    created: int
    rewritten: int
    """The transaction of the last rewrite, or a newer one that changed the table itself."""
    altered: int
    """The transaction that last changed the table's pg_class row."""
    retyped: bool
    """The rewrite is explained by a new column or a changed column type."""
    before: int
    """The next transaction id (64 bits)."""
    current: bool = True
    """The snapshot of this transaction sees the table's current file."""

    def is_since(self, transaction: int, since: int) -> bool:
        """Whether `transaction` (32 bits) is at or after `since` (64 bits)."""
        return transaction >= 3 and since + (transaction - since) % WRAP < self.before


def read_partitions(control: PgConnection, relation_id: int) -> list[OutboxPartition]:
    """Returns the outbox and all tables below it, parents first, without locking any of them."""
    return [
        OutboxPartition(
            int(oid or 0), int(parent or 0), str(name), str(kind), partition == "t", str(persistence),
            int(attached or 0), int(command or 0), int(created or 0), int(rewritten or 0), int(altered or 0),
            retyped == "t", int(before or 0), current == "t",
        )
        for (oid, parent, name, kind, partition, persistence, attached, command, created, rewritten, altered, retyped,
             before, current) in control.query(_TREE, [str(relation_id)])
    ]  # fmt: skip


def last_attached(members: Sequence[OutboxPartition]) -> dict[int, int]:
    """Returns for each table the last transaction (32 bits) that attached it or a table above it."""
    found: dict[int, int] = {}
    for member in members:  # parents come first
        above = found.get(member.parent, 0)
        found[member.oid] = later(above, member.attached, member.before) if member.parent else 0
    return found


def later(one: int, other: int, before: int) -> int:
    """Returns the later of two transactions (32 bits), both before `before` (64 bits)."""
    return min(one, other, key=lambda number: (before - 1 - number) % WRAP if number >= 3 else before)


class UnpublishedRowsCheck:
    """Verifies that no row entered the tables without the publication since a known transaction."""

    def __init__(self, table: str, since: int) -> None:
        """`since` is a 64-bit transaction id; 0 if nothing is known yet."""
        self._table = table
        self._since = since
        # Changes that were verified, and are not older than `since`.
        self._verified: set[tuple[int, int]] = set()

    def advance(self, since: int) -> None:
        """Notes that everything is verified up to a snapshot with this `xmin`."""
        self._since = max(self._since, since)

    def verify(self, control: PgConnection, published: Published, *, timeout: float | None = None) -> bool:
        """Raises PublicationBroken if rows may have entered without the publication.

        Returns False if a table that must be queried is locked; then call it again. `timeout` applies to one table.
        """
        members = read_partitions(control, published.relation_id)
        require_logged(members)
        if not self._since or not members:
            return True
        root = members[0].name
        if published.moved and members[0].is_since(published.moved, self._since):
            raise _entered(f"{root} was moved to another schema and back (SET SCHEMA)", "it was elsewhere")
        suspects = list(self._suspects(members, published))
        self._verified &= {(member.oid, change) for member, change, _, _ in suspects}
        done = True
        for member, change, problem, condition in suspects:
            if (member.oid, change) in self._verified:
                continue
            has_row = self._has_row(control, member, condition, timeout)
            if has_row:
                raise problem
            if has_row is None:
                done = False
            else:
                self._verified.add((member.oid, change))
        return done

    def _suspects(
        self, members: list[OutboxPartition], published: Published
    ) -> Iterator[tuple[OutboxPartition, int, PublicationBroken, str]]:
        """Yields changed tables with the transaction, the error to raise, and the SQL condition for affected rows."""
        by_oid = {member.oid: member for member in members}
        root = members[0]
        for member in members:
            if member.kind == "p":
                continue
            # Find the last ATTACH between root and table. The root's own counts if only an ancestor is published.
            way = [member]
            while way[-1].parent in by_oid:
                way.append(by_oid[way[-1].parent])
            if published.direct:
                way.remove(root)
            new = [each for each in way if each.is_since(each.attached, self._since)]
            if new:
                last = max(new, key=lambda each: ((each.attached - self._since) % WRAP, each.command))
                problem = _entered(f"{member.name} was attached to {root.name} with rows in it", "it was detached")
                yield member, last.attached, problem, _older(last, born=member.created == last.attached)
            # The server refuses SET UNLOGGED for a table that is itself in the publication.
            guarded = published.direct and member is root
            rewrite = member.rewritten
            known = member.retyped or rewrite in (member.created, member.attached)
            if not guarded and not known and member.is_since(rewrite, self._since):
                problem = _entered(
                    f"{member.name} was rewritten (SET UNLOGGED and SET LOGGED do so)", "it was unlogged"
                )
                yield member, rewrite, problem, f"xmin = '{rewrite}'::xid"

    def _has_row(
        self, control: PgConnection, member: OutboxPartition, condition: str, timeout: float | None
    ) -> bool | None:
        """Returns whether a row of the table meets the condition; None if the table is locked."""
        locked, own, all_of_them = control.query(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = $1::oid AND mode = 'AccessExclusiveLock'), "
            "has_table_privilege($1::oid, 'SELECT'), has_table_privilege($2, 'SELECT')",
            [str(member.oid), quote_table(self._table)],
        )[0]
        if locked == "t":
            return None
        if control.query("SELECT pg_relation_size($1::oid)", [str(member.oid)])[0][0] == "0":
            return False
        if "t" not in (own, all_of_them):
            raise _entered(
                f"{member.name} is new in {self._table} and has rows, which this role may not read",
                "it was not part of it",
                f"GRANT SELECT ON {quote_table(self._table)} TO {quote(control.pgconn.user.decode())}; then start "
                "again. ",
            )
        # The privilege on the outbox is enough to read its partitions through it.
        source = member.name if own == "t" else quote_table(self._table)
        found = control.query(
            f"SELECT EXISTS (SELECT FROM {source} WHERE tableoid = $1::oid AND ({condition}))",  # noqa: S608 - quoted
            [str(member.oid)],
            timeout=timeout,
        )
        return found[0][0] == "t"


def _older(attached: OutboxPartition, *, born: bool) -> str:
    """Returns the SQL condition for rows that were in a table before the ATTACH; one created as a partition had none.

    Ids are compared within the last 2^32 transactions: what is not newer than the ATTACH is older.
    """
    at = attached.attached
    newer = f"mod(xmin::text::bigint - {at} + {WRAP}, {WRAP})"
    span = f"mod(pg_snapshot_xmax(pg_current_snapshot())::text::bigint - {at}, {WRAP})"
    same = f"xmin = '{at}'::xid AND cmin::text::bigint < {attached.command}"
    return same if born else f"{newer} >= {span} OR {same}"


def require_logged(members: Sequence[OutboxPartition]) -> None:
    """Raises if rows of a table below the outbox are not in the log, or not as rows of the outbox."""
    for member in members:
        _require_logged(member, members[0].name)


def _require_logged(member: OutboxPartition, root: str) -> None:
    if member.parent and not member.is_partition:
        moved = (
            f"WITH moved AS (DELETE FROM ONLY {member.name} RETURNING *) "  # noqa: S608 - for people
            f"INSERT INTO {root} SELECT * FROM moved;"
        )
        raise PublicationBroken(
            f"{member.name} inherits from {root}",
            why="Its rows belong to the outbox, but the stream does not send them as rows of the outbox.",
            remedy=f"This publishes its rows (name the columns if they differ): {moved} "
            f"Then: ALTER TABLE {member.name} NO INHERIT {root};",
        )
    if member.kind == "f":
        raise PublicationBroken(
            f"{member.name}, a partition of {root}, is a foreign table",
            why="Its rows are on another server: they are not in this server's log.",
            remedy=f"ALTER TABLE {root} DETACH PARTITION {member.name};",
        )
    if member.persistence != "p":
        raise broken(
            f"{member.name} is not logged: its rows are not in the log", f"ALTER TABLE {member.name} SET LOGGED;"
        )


def _entered(problem: str, cause: str, first: str = "") -> PublicationBroken:
    return PublicationBroken(
        problem,
        why=f"Rows inserted while {cause} are in the table, but not in the stream.",
        remedy=f"{first}`tailrace recover plan FILE` compares the table with the topics, `recover apply` publishes "
        "what is missing, if anything is. To continue without it, start once with --adopt.",
    )
