"""Notices rows that entered the outbox past its publication: by inheritance, by ATTACH PARTITION, while UNLOGGED.

DDL leaves its transaction's number in the catalogue: pg_inherits has that of the ATTACH, pg_class that of the last
rewrite. What is older than a snapshot in which all was well needs no second look, so that snapshot's `xmin` is all that
a position has to store. Of a table that changed since, the rows are asked: does one have an older number than the
ATTACH, or the number of the rewrite? The catalogue alone decides in all other cases, and without waiting for locks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tailrace.errors import PublicationBroken
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.publication import Published, broken
from tailrace.sql_names import quote, quote_table

WRAP = 2**32
"""Numbers of transactions in rows begin again after so many."""

# Row by row through the indexes (OFFSET 0 and LIMIT 1 keep the planner from doing otherwise): it expects far too many
# rows of a recursive query, and would read the whole catalogue each time.
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
class Partition:
    """The outbox itself, a partition of it, or a table that inherits from it. Transactions have 32 bits, 0 is none."""

    oid: int
    parent: int
    name: str
    kind: str
    is_partition: bool
    persistence: str
    attached: int
    """The transaction that made it a partition, and `command`, which of that transaction's commands it was."""
    command: int
    created: int
    rewritten: int
    """The transaction that last gave the rows a new file, or something newer that changed the table itself."""
    altered: int
    """The transaction that last changed the table's own catalogue row."""
    retyped: bool
    """The rewrite came with a new column or a new type of one: that is why there was one."""
    before: int
    """The number (64 bits) that the server gives out next."""
    current: bool = True
    """Its rows are in the file that this transaction's snapshot knows; a function looks at the newest catalogue."""

    def is_since(self, transaction: int, since: int) -> bool:
        """Whether `transaction` (32 bits) is `since` (64 bits) or later."""
        return transaction >= 3 and since + (transaction - since) % WRAP < self.before


def read_partitions(control: PgConnection, relation_id: int) -> list[Partition]:
    """The outbox and all tables below it, parents first, without taking a lock on any of them."""
    return [
        Partition(
            int(oid or 0), int(parent or 0), str(name), str(kind), partition == "t", str(persistence),
            int(attached or 0), int(command or 0), int(created or 0), int(rewritten or 0), int(altered or 0),
            retyped == "t", int(before or 0), current == "t",
        )
        for (oid, parent, name, kind, partition, persistence, attached, command, created, rewritten, altered, retyped,
             before, current) in control.query(_TREE, [str(relation_id)])
    ]  # fmt: skip


def last_attached(members: Sequence[Partition]) -> dict[int, int]:
    """By table: the transaction (32 bits) that attached it, or the last one that attached a table above it."""
    found: dict[int, int] = {}
    for member in members:  # parents come first
        above = found.get(member.parent, 0)
        found[member.oid] = later(above, member.attached, member.before) if member.parent else 0
    return found


def later(one: int, other: int, before: int) -> int:
    """The later one of two transactions (32 bits), neither of which is behind `before` (64 bits)."""
    return min(one, other, key=lambda number: (before - 1 - number) % WRAP if number >= 3 else before)


class PartitionWatch:
    """Remembers up to which transaction the tables are known to have let no row in past the publication."""

    def __init__(self, table: str, since: int) -> None:
        """`since` has 64 bits; 0 if nothing is known yet."""
        self._table = table
        self._since = since
        # What was looked at and found well, and is not older than `since`.
        self._well: set[tuple[int, int]] = set()

    def advance(self, since: int) -> None:
        """All is well in a snapshot of this `xmin`."""
        self._since = max(self._since, since)

    def verify(self, control: PgConnection, published: Published, *, timeout: float | None = None) -> bool:
        """Raises PublicationBroken if rows may have entered past the publication.

        False if a table that must be looked at is locked: then it must be asked again. `timeout` is for one table.
        """
        members = read_partitions(control, published.relation_id)
        require_logged(members)
        if not self._since or not members:
            return True
        root = members[0].name
        if published.moved and members[0].is_since(published.moved, self._since):
            raise _entered(f"{root} was moved to another schema and back (SET SCHEMA)", "it was elsewhere")
        suspects = list(self._suspects(members, published))
        self._well &= {(member.oid, change) for member, change, _, _ in suspects}
        done = True
        for member, change, problem, condition in suspects:
            if (member.oid, change) in self._well:
                continue
            has_row = self._has_row(control, member, condition, timeout)
            if has_row:
                raise problem
            if has_row is None:
                done = False
            else:
                self._well.add((member.oid, change))
        return done

    def _suspects(
        self, members: list[Partition], published: Published
    ) -> Iterator[tuple[Partition, int, PublicationBroken, str]]:
        """Tables that changed since: the transaction, the error if it let rows in, and the condition for such a row."""
        by_oid = {member.oid: member for member in members}
        root = members[0]
        for member in members:
            if member.kind == "p":
                continue
            # The last ATTACH between the root and the table. The root's own counts if only an ancestor is a member.
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
            # The server refuses SET UNLOGGED for a table that is a member itself.
            guarded = published.direct and member is root
            rewrite = member.rewritten
            known = member.retyped or rewrite in (member.created, member.attached)
            if not guarded and not known and member.is_since(rewrite, self._since):
                problem = _entered(
                    f"{member.name} was rewritten (SET UNLOGGED and SET LOGGED do so)", "it was unlogged"
                )
                yield member, rewrite, problem, f"xmin = '{rewrite}'::xid"

    def _has_row(self, control: PgConnection, member: Partition, condition: str, timeout: float | None) -> bool | None:
        """Whether a row of the table fulfils the condition; None if it is locked."""
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
                f"{member.name} is new in {self._table} and has rows, which this role may not look at",
                "it was not a part of it",
                f"GRANT SELECT ON {quote_table(self._table)} TO {quote(control.pgconn.user.decode())}; then start "
                "again. ",
            )
        # A right on the outbox is enough to read its partitions through it.
        source = member.name if own == "t" else quote_table(self._table)
        found = control.query(
            f"SELECT EXISTS (SELECT FROM {source} WHERE tableoid = $1::oid AND ({condition}))",  # noqa: S608 - quoted
            [str(member.oid)],
            timeout=timeout,
        )
        return found[0][0] == "t"


def _older(attached: Partition, *, born: bool) -> str:
    """The condition for rows that were in a table before it was attached; one created as a partition had none before.

    Numbers are compared within the last 2^32 transactions: what is not newer than the ATTACH is older.
    """
    at = attached.attached
    newer = f"mod(xmin::text::bigint - {at} + {WRAP}, {WRAP})"
    span = f"mod(pg_snapshot_xmax(pg_current_snapshot())::text::bigint - {at}, {WRAP})"
    same = f"xmin = '{at}'::xid AND cmin::text::bigint < {attached.command}"
    return same if born else f"{newer} >= {span} OR {same}"


def require_logged(members: Sequence[Partition]) -> None:
    """Refuses tables below the outbox whose rows are not in the log, or not as the outbox's."""
    for member in members:
        _require_logged(member, members[0].name)


def _require_logged(member: Partition, root: str) -> None:
    if member.parent and not member.is_partition:
        moved = (
            f"WITH moved AS (DELETE FROM ONLY {member.name} RETURNING *) "  # noqa: S608 - for people
            f"INSERT INTO {root} SELECT * FROM moved;"
        )
        raise PublicationBroken(
            f"{member.name} inherits from {root}",
            why="Its rows are among those of the outbox, but the stream does not bring them as the outbox's.",
            remedy=f"This publishes its rows (name the columns if they differ): {moved} "
            f"Then: ALTER TABLE {member.name} NO INHERIT {root};",
        )
    if member.kind == "f":
        raise PublicationBroken(
            f"{member.name}, a partition of {root}, is a foreign table",
            why="Its rows are another server's: they are not in this server's log.",
            remedy=f"ALTER TABLE {root} DETACH PARTITION {member.name};",
        )
    if member.persistence != "p":
        raise broken(
            f"{member.name} is not logged: its rows are not in the log", f"ALTER TABLE {member.name} SET LOGGED;"
        )


def _entered(problem: str, meanwhile: str, first: str = "") -> PublicationBroken:
    return PublicationBroken(
        problem,
        why=f"Rows that were inserted while {meanwhile} are in the table, but never reach the stream.",
        remedy=f"{first}`tailrace recover plan FILE` compares the table with the topics, `recover apply` publishes "
        "what is missing, if anything is. To go on without it, start once with --adopt.",
    )
