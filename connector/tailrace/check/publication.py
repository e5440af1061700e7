"""Checks the publication of the outbox table: it must publish the inserts of that table, all rows, and little else."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tailrace.check.result import CheckResult, fail, ok, warn
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.publication import FIRST_OID, PUBLISHES, create_publication, rows_move, set_publish
from tailrace.sql_names import quote, quote_table

AFTERWARDS = (
    " -- If the pipeline has run before, rows may be missing from the stream: `tailrace recover plan FILE` finds them, "
    "`recover apply` publishes them. One start with --adopt continues without them: consumers never get them."
)
"""Rows may have been skipped while the publication was wrong, so a stored position is not simply resumed."""


class PublicationCheck:
    """Checks the publication. `relation` describes the table: its kind first, its rights, its OID last."""

    def __init__(self, link: PgConnection, options: PostgresOptions, relation: Sequence[str | None]) -> None:
        self._link = link
        self._options = options
        self._relation = relation
        self._full = quote_table(options.table)
        self.columns: set[str] | None = None
        """The published columns, if the publication selects columns."""

    def result(self) -> CheckResult:
        publication, relation_id = self._options.publication, self._relation[-1]
        rows = self._link.query(
            "SELECT pubinsert, pubdelete, pubupdate OR pubtruncate, pubviaroot, "  # noqa: S608 - ours
            f"(SELECT {PUBLISHES} FROM pg_class c WHERE c.oid = $2::oid), "
            f"(SELECT count(*) FROM pg_class c WHERE c.oid >= {FIRST_OID} AND {PUBLISHES}) "
            "FROM pg_publication p WHERE pubname = $1",
            [publication, relation_id],
        )
        if not rows:
            return self._to_create()
        inserts, deletes, more, via_root, contains, tables = rows[0]
        alter, found, remedy = f"ALTER PUBLICATION {quote(publication)}", "", ""
        moves = self._relation[0] == "p" and rows_move(self._link, self._options)
        needed, only_it = set_publish(publication, moves=moves), f"{alter} SET TABLE {self._full};"
        if self._relation[0] == "p" and via_root != "t":
            found = f"publishes the partitions of {self._full} instead of the table"
            remedy = f"{alter} SET (publish_via_partition_root = true);"
        elif contains != "t":
            found, remedy = f"does not contain {self._full}", f"{alter} ADD TABLE {self._full};"
        elif inserts != "t":
            found, remedy = "does not publish inserts", needed
        elif moves and deletes != "t":
            found, remedy = "does not publish deletes, which reveal rows that move between partitions", needed
        elif self._filters_rows():
            found, remedy = "filters rows: it has a WHERE clause", only_it
        if found:
            return fail("publication", f"{publication} {found}", remedy + AFTERWARDS)
        if more == "t" or (deletes == "t" and not moves):
            found, remedy = "publishes updates, deletes or truncates, which are not events", needed
        elif int(tables or 0) > 1:
            found, remedy = f"publishes {tables} tables: the rows of the others are read for nothing", only_it
        if found:
            return warn("publication", f"{publication} {found}", remedy + AFTERWARDS)
        also = " (and deletes, to recognise rows that move between partitions)" if moves else ""
        return ok("publication", f"{publication}, inserts of {self._full} only{also}")

    def _filters_rows(self) -> bool:
        """Whether rows are filtered; also sets `columns`. Postgres 14 and older can do neither."""
        if self._link.server_version < 150000:
            return False
        rows = self._link.query(
            "SELECT r.prqual IS NOT NULL, (SELECT to_json(array_agg(a.attname)) FROM pg_attribute a "
            "WHERE a.attrelid = r.prrelid AND a.attnum = ANY (r.prattrs)) FROM pg_publication_rel r "
            "JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = $1 AND r.prrelid = $2::oid",
            [self._options.publication, self._relation[-1]],
        )
        if not rows:
            return False
        filtered, names = rows[0]
        self.columns = set(json.loads(names)) if names else None
        return filtered == "t"

    def _to_create(self) -> CheckResult:
        publication, owner, may_create = self._options.publication, self._relation[2], self._relation[5]
        moves = rows_move(self._link, self._options)
        statement = f"{create_publication(publication, self._options.table, moves=moves)};"
        if not self._options.create:
            return fail("publication", f"there is no {publication}, and source.create is false", statement)
        if "f" in (owner, may_create):
            return fail("publication", f"there is no {publication}, and this role may not create it", statement)
        return ok("publication", f"{publication}: will be created on the first start")
