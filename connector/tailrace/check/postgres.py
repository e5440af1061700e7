"""The Postgres checks of `tailrace check`: rights of the role, the table, the publication, the slot and the WAL.

They only query the catalogue and create nothing. Rules that need no server are in `rules.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from tailrace.check.failover import enable_failover
from tailrace.check.marks import check_marks
from tailrace.check.messages import check_empty_publication, check_messages
from tailrace.check.publication import PublicationCheck
from tailrace.check.result import CheckResult, fail, failed, gather, ok, warn
from tailrace.check.rules import (
    check_clock,
    check_delivery_columns,
    check_encryption,
    check_free,
    check_kept,
    check_order,
    check_slot,
    check_standby,
    check_synchronous,
    check_tables_beside,
    check_version,
    check_window,
)
from tailrace.errors import TailraceError, Unavailable
from tailrace.event import Column
from tailrace.outbox.ddl import hba_lines, storage_tables
from tailrace.outbox.layouts import ColumnMap
from tailrace.outbox.specs import reader
from tailrace.positions.base import Position, other_kind
from tailrace.positions.postgres import LsnPosition
from tailrace.sources.postgres import catalog
from tailrace.sources.postgres.connection import APPLICATION, PgConnection, may_copy_cluster
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.probes import free_bytes, log_folder
from tailrace.sources.postgres.publication import read_published
from tailrace.sources.postgres.resume_check import ResumeAction, ServerIdentity, SlotState, check_resume
from tailrace.sources.postgres.snapshot import require_whole
from tailrace.sources.postgres.start_where import count_rows, require_unchanged, require_valid
from tailrace.sources.postgres.table_rescan import require_same_log
from tailrace.sources.postgres.timelines import follow
from tailrace.sources.postgres.unpublished_rows import read_partitions, require_logged
from tailrace.sql_names import quote, quote_table, split_table

TIMES = {1082, 1114, 1184}
"""date, timestamp, timestamptz: the types of a column with a row's time."""


class PostgresChecks:
    """Checks one server; implements `preflight.DatabaseChecks`."""

    needed_checks = frozenset({"wal_level", "role", "table", "messages", "publication", "slot", "primary"})
    stores_position = True

    def __init__(self, options: PostgresOptions, columns: ColumnMap, layout: str = "debezium") -> None:
        self._options = options
        self._layout = layout
        self._map = columns
        self._schema, self._table = ("", "") if options.messages else split_table(options.table)
        self._full = "" if options.messages else quote_table(options.table)
        self._relation: tuple[str | None, ...] = ()
        self._published: set[str] | None = None
        self._seen_slot: SlotState | None = None
        self._server: ServerIdentity | None = None
        self.reachable = False
        self.columns: frozenset[str] = frozenset()
        self._kinds: dict[str, int] = {}

    def checks(self) -> list[CheckResult]:
        options = self._options
        try:
            self._link = PgConnection(options.address, replication=False, timeout=min(options.link_timeout, 10))
        except TailraceError as error:
            remedy = (
                "Start Postgres, or correct host and port in source.postgres." if isinstance(error, Unavailable) else ""
            )
            return [failed("postgres", error, remedy)]
        with self._link:
            self.reachable = True
            outbox: list[tuple[str, Callable[[], CheckResult | None]]] = [
                ("table", self._table_there),
                ("table rights", self._table_rights),
                ("publication", self._publication),
                ("columns", self._columns),
                ("delivery columns", self._delivery_columns),
                ("tables beside", self._tables_beside),
                ("order of rows", self._order),
                ("marks", lambda: check_marks(self._link, options) if self._relation else None),
                ("start_where", self._start_where),
            ]
            if options.messages is not None:
                outbox = [
                    ("messages", lambda: check_messages(self._link, options)),
                    ("publication", lambda: check_empty_publication(self._link, options)),
                ]
            return gather(
                [
                    ("postgres", self._connected),
                    ("postgres encryption", self._encryption),
                    ("postgres version", lambda: check_version(self._link.server_version)),
                    ("clock", self._clock),
                    ("wal_level", self._wal_level),
                    ("role", self._role),
                    ("cluster copy", self._cluster_copy),
                    *outbox,
                    ("slot", self._slot),
                    ("primary", self._primary),
                    ("synchronous standbys", self._synchronous),
                    ("slot failover", self._failover),
                    ("wal kept for slots", self._kept),
                    ("replay window", self._window),
                    ("idle slots", self._idle),
                    ("free slots", self._free_slots),
                    ("free wal senders", self._free_senders),
                ]
            )

    def is_read_at(self, position: Position) -> bool:
        server = self._server
        if server is None or not isinstance(position, LsnPosition):
            return False
        log = position.log
        return (log.system_id, log.database, log.table) == (server.system_id, server.database, self._options.table)

    def start(self, stored: Position | None) -> CheckResult:
        """Compares the stored position with the slot as read before, and with the end of the log now."""
        if stored is not None and not isinstance(stored, LsnPosition):
            raise other_kind(stored, "Postgres")
        options, slot = self._options, self._seen_slot
        timeout = min(options.link_timeout, 10)
        with (
            PgConnection(options.address, replication=True, timeout=timeout) as replication,
            PgConnection(options.address, replication=False, timeout=timeout) as control,
        ):
            server = self._server = catalog.identify(replication)
            require_unchanged(stored, options)
            if stored is None and slot is None:
                return ok("start", "a first start: no position is stored, and the slot will be created")
            published = read_published(control, options)
            stored = stored and follow(replication, stored, server)
            require_whole(control, options.table, published, stored)
        found = server.log(options.slot, options.table, published.fingerprint)
        busy = slot is not None and slot.active_pid is not None
        if slot is not None and stored is not None:
            # A running pipeline is fine here: the question is whether it could start again.
            slot = replace(slot, active_pid=None)
        decision = check_resume(stored, found, slot, server_lsn=server.lsn, adopt=False)
        if stored is not None and not busy:
            require_same_log(options, stored, patience=timeout)
        if decision.step is not ResumeAction.STREAM:
            return ok("start", f"an interrupted first start: Tailrace will {decision.step.value}")
        return ok("start", f"{'runs now' if busy else 'resumes'} at the stored position {stored}")

    def _connected(self) -> CheckResult:
        pgconn = self._link.pgconn
        host, port, user, database = (part.decode() for part in (pgconn.host, pgconn.port, pgconn.user, pgconn.db))
        return ok("postgres", f"database {database} at {host}:{port} as {user}")

    def _encryption(self) -> CheckResult:
        pgconn = self._link.pgconn
        # The resolved address, if there is one: a Unix socket has none.
        host, mode = (pgconn.hostaddr or pgconn.host).decode(), self._link.parameter("sslmode")
        return check_encryption(host, encrypted=bool(pgconn.ssl_in_use), sslmode=mode)

    def _clock(self) -> CheckResult:
        before = time.time()
        now = self._link.query("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")[0][0]
        return check_clock(int(now or 0), (before + time.time()) * 500)

    def _wal_level(self) -> CheckResult:
        catalog.require_able(self._link)
        return ok("wal_level", "logical")

    def _role(self) -> CheckResult:
        # On RDS no role has REPLICATION itself; membership of rds_replication replaces it.
        role, superuser, replication, member = self._link.query(
            "SELECT rolname, rolsuper, rolreplication, EXISTS (SELECT FROM pg_roles g WHERE g.rolname = "
            "'rds_replication' AND pg_has_role(current_user, g.oid, 'MEMBER')) "
            "FROM pg_roles WHERE rolname = current_user"
        )[0]
        who = quote(str(role))
        if superuser == "t":
            grant = f" GRANT SELECT ON {self._full} TO tailrace;" if self._full else ""
            remedy = f"CREATE ROLE tailrace LOGIN REPLICATION;{grant} -- then use this role in source.postgres"
            return warn("role", f"{role} is a superuser: reading the log needs fewer rights", remedy)
        if "t" not in (replication, member):
            return fail("role", f"{role} may not read the log", f"ALTER ROLE {who} REPLICATION; -- as a superuser")
        return ok("role", f"{role}, with REPLICATION and not a superuser")

    def _cluster_copy(self) -> CheckResult | None:
        """Only pg_hba.conf restricts physical replication, and its default lines allow it on this machine."""
        if self._link.query("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")[0][0] == "t":
            return None  # the check `role` reports superusers
        if not may_copy_cluster(self._options.address, min(self._options.link_timeout, 10)):
            return ok("cluster copy", "not allowed for this role, as recommended")
        lines = " ; ".join(hba_lines(self._link.pgconn.user.decode(), prefix="").splitlines())
        remedy = f"Insert these lines at the top of pg_hba.conf, then SELECT pg_reload_conf(): {lines}"
        return warn("cluster copy", "this role may copy the whole cluster (pg_basebackup)", remedy)

    def _table_there(self) -> CheckResult:
        rows = self._link.query(
            "SELECT c.relkind, c.relpersistence, pg_has_role(c.relowner, 'USAGE'), "
            "has_table_privilege(c.oid, 'SELECT'), has_schema_privilege(n.oid, 'USAGE'), "
            "has_database_privilege(current_database(), 'CREATE'), row_security_active(c.oid), c.oid "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2",
            [self._schema, self._table],
        )
        if not rows:
            remedy = (
                f"Correct source.table, or create it: `tailrace init --table {self._options.table}` writes the SQL."
            )
            return fail("table", f"there is no {self._full}", remedy)
        kind, persistence, *_, relation_id = rows[0]
        if kind not in ("r", "p"):
            return fail("table", f"{self._full} is not a table", "Name the table itself in source.table.")
        if persistence != "p":
            remedy = f"ALTER TABLE {self._full} SET LOGGED;"
            return fail("table", f"{self._full} is UNLOGGED: its rows are not written to the WAL", remedy)
        require_logged(read_partitions(self._link, int(relation_id or 0)))
        self._relation = rows[0]
        return ok("table", self._full)

    def _table_rights(self) -> CheckResult | None:
        if not self._relation:
            return None
        _, _, _, select, usage, _, filtered, _ = self._relation
        who = quote(self._link.pgconn.user.decode())
        report = fail if self._options.beginning else warn
        if "f" in (select, usage):
            remedy = f"GRANT USAGE ON SCHEMA {quote(self._schema)} TO {who}; GRANT SELECT ON {self._full} TO {who};"
            return report("table rights", f"no SELECT on {self._full}: existing rows cannot be read", remedy)
        if filtered == "t":
            remedy = f"ALTER ROLE {who} BYPASSRLS; -- as a superuser"
            return report("table rights", f"row security hides rows of {self._full} when the table is read", remedy)
        return ok("table rights", "SELECT")

    def _publication(self) -> CheckResult | None:
        if not self._relation:
            return None
        check = PublicationCheck(self._link, self._options, self._relation)
        result = check.result()
        self._published = check.columns
        return result

    def _columns(self) -> CheckResult | None:
        """Compares the columns with those of the layout, to find what would stop the pipeline at its first row."""
        if not self._relation:
            return None
        found = self._link.query(
            "SELECT attname, atttypid FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 "
            "AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
            [self._full],
        )
        columns = tuple(Column(str(name), int(oid or 0)) for name, oid in found)
        sent = tuple(column for column in columns if self._published is None or column.name in self._published)
        reader(self._layout, self._map).require(sent)
        self._kinds = kinds = dict(columns)
        self.columns = frozenset(column.name for column in sent)
        if missing := [column for column in self._options.order_by if column not in kinds]:
            report = fail if self._options.beginning else warn
            remedy = "Set source.order_by to columns that order the rows; the last one is the unique id."
            return report("columns", f"source.order_by names {missing[0]}, which {self._full} does not have", remedy)
        if self._map.timestamp is not None and kinds[self._map.timestamp] not in TIMES:
            remedy = "Name a timestamp column in outbox.columns.timestamp, or leave it out."
            return fail("columns", f"column {self._map.timestamp} is not a date or timestamp", remedy)
        return ok("columns", ", ".join(f"{part}={column}" for part, column in self._map.parts()))

    def _delivery_columns(self) -> CheckResult | None:
        return check_delivery_columns(self._layout, self._kinds, self._full) if self._kinds else None

    def _tables_beside(self) -> CheckResult | None:
        if self._layout != "storage" or not self._relation:
            return None
        wanted = storage_tables(self._options.table)
        missing = [name for name in wanted if self._link.query("SELECT to_regclass($1)", [name])[0][0] is None]
        return check_tables_beside(self._options.table, wanted, missing)

    def _order(self) -> CheckResult | None:
        known = all(column in self._kinds for column in self._options.order_by)
        return check_order(self._options.order_by, self._kinds) if known else None

    def _start_where(self) -> CheckResult | None:
        """Whether the first read can select its rows; how many those are, if they can be counted in time."""
        where = self._options.start_where
        if not where or not self._options.beginning or not self._relation:
            return None
        require_valid(self._link, self._options.table, where, every_row=False)
        counted = count_rows(self._link, self._options.table, where, self._link.timeout)
        if counted is None:
            return ok("start_where", f"{where} (the table is too large to count the rows here)")
        selected, left_out, unknown = counted
        if unknown:
            found = f"{where} is neither true nor false (NULL) for {unknown:,} rows"
            return fail("start_where", found, "Say what NULL means, such as `processed IS NOT TRUE`.")
        return ok("start_where", f"{where}: a first read publishes {selected:,} rows and leaves out {left_out:,}")

    def _primary(self) -> CheckResult | None:
        in_recovery = self._link.query("SELECT pg_is_in_recovery()")[0][0] == "t"
        return check_standby(in_recovery=in_recovery, has_slot=self._seen_slot is not None)

    def _synchronous(self) -> CheckResult | None:
        return check_synchronous(str(self._link.query("SHOW synchronous_standby_names")[0][0]), APPLICATION)

    def _slot(self) -> CheckResult:
        self._seen_slot = catalog.read_slot(self._link, self._options.slot)
        return check_slot(self._seen_slot, self._options.slot, self._link.pgconn.db.decode())

    def _failover(self) -> CheckResult | None:
        wanted, version = self._options.failover, self._link.server_version
        if version < 170000:
            if not wanted:
                return None
            remedy = "Set source.failover: false, or upgrade the server."
            return fail("slot failover", "source.failover is true, but failover slots need Postgres 17", remedy)
        rows = self._link.query("SELECT failover FROM pg_replication_slots WHERE slot_name = $1", [self._options.slot])
        if wanted and rows and rows[0][0] != "t":
            found = "source.failover is true, but the slot was created without it"
            return warn("slot failover", found, enable_failover(self._link, self._options.slot))
        return ok("slot failover", "on" if wanted else "off (with source.failover: true the slot survives a failover)")

    def _kept(self) -> CheckResult:
        return check_kept(self._most_kept())

    def _window(self) -> CheckResult | None:
        folder = log_folder(self._link)
        disk = None if folder is None else free_bytes(folder)
        return check_window(self._options.replay_window, self._most_kept(), disk)

    def _most_kept(self) -> int:
        setting = self._link.query(
            "SELECT CASE WHEN setting = '-1' THEN -1 ELSE setting::bigint * 1024 * 1024 END "
            "FROM pg_settings WHERE name = 'max_slot_wal_keep_size'"
        )[0][0]
        return int(setting or -1)

    def _idle(self) -> CheckResult | None:
        if self._link.server_version < 180000:
            return None
        limit = self._link.query("SHOW idle_replication_slot_timeout")[0][0]
        if limit == "0":
            return ok("idle slots", "are kept")
        remedy = "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();"
        return warn(
            "idle slots", f"are invalidated after {limit}: a connector that is down for longer loses its slot", remedy
        )

    def _free_slots(self) -> CheckResult:
        used, most = self._link.query(
            "SELECT (SELECT count(*) FROM pg_replication_slots), current_setting('max_replication_slots')"
        )[0]
        return check_free("slots", int(used or 0), int(most or 0), needed=self._seen_slot is None)

    def _free_senders(self) -> CheckResult:
        used, most = self._link.query(
            "SELECT (SELECT count(*) FROM pg_stat_replication), current_setting('max_wal_senders')"
        )[0]
        active = self._seen_slot is not None and self._seen_slot.active_pid is not None
        return check_free("wal senders", int(used or 0), int(most or 0), needed=not active)
