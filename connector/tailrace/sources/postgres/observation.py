"""Observes a Postgres source while a pipeline reads it: its slot, the WAL behind it, and the size of the outbox.

It has its own session with short timeouts. Nothing here changes anything or waits for a lock.
"""

from __future__ import annotations

from tailrace.errors import TailraceError
from tailrace.positions.base import Position
from tailrace.positions.postgres import LsnPosition, parse_lsn
from tailrace.sources.observation import SourceObservation
from tailrace.sources.postgres import catalog
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.resume_check import SlotState
from tailrace.sql_names import quote_table

NOISE_BYTES = 64 * 1024
"""WAL of checkpoints and vacuum, which an idle pipeline skips only every few seconds. It is not a lag."""
PROBE_APPLICATION = "tailrace (probe)"
TIMEOUT = 5.0
STATEMENT_MS, LOCK_MS = 3000, 200


class PostgresObserver:
    """Keeps one session open; after an error, the next call opens another."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._link: PgConnection | None = None

    def observe(self, position: Position | None) -> SourceObservation:
        """Reads the state of the source; raises if the server does not answer."""
        try:
            return self._observe(position)
        except BaseException:
            self.close()
            raise

    def parameter(self, name: str) -> str:
        """Returns a parameter of the connection as libpq uses it; empty without a session."""
        return self._link.parameter(name) if self._link is not None else ""

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _observe(self, position: Position | None) -> SourceObservation:
        link = self._session()
        slot = catalog.read_slot(link, self._options.slot)
        now, end, limit, busy = link.query(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, "
            "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, "
            "(SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'), "
            # A walsender that has nothing to decode waits for its client, or for new WAL.
            "(SELECT wait_event_type IS NULL OR wait_event_type NOT IN ('Client', 'Activity') FROM pg_stat_activity "
            "WHERE pid = $1::int)",
            [str(slot.active_pid) if slot is not None and slot.active_pid else None],
        )[0]
        size, inserted = self._table(link)
        log_end = parse_lsn(str(end))
        stored = position if isinstance(position, LsnPosition) and not position.creating else None
        behind = max(0, log_end - stored.lsn) if stored is not None else None
        far = behind is not None and behind > NOISE_BYTES
        return SourceObservation(
            now_ms=int(now or 0),
            behind=far,
            busy=busy == "t",
            lag_bytes=behind,
            lag_seconds=None if stored is None else max(0.0, (int(now or 0) - stored.at_ms) / 1000) if far else 0.0,
            inserted=inserted,
            table_bytes=size,
            retained_bytes=slot.retained_bytes if slot is not None else 0,
            safe_bytes=slot.safe_bytes if slot is not None else None,
            limit_bytes=int(limit) << 20 if limit is not None and int(limit) > 0 else None,
            log_end=log_end,
            status=slot.wal_status if slot is not None else "",
            lost=_lost(slot, self._options.slot, stored),
            reading_existing=stored is not None and stored.table_read is not None,
        )

    def _session(self) -> PgConnection:
        if self._link is None:
            timeout = min(self._options.link_timeout, TIMEOUT)
            self._link = PgConnection(
                self._options.address, replication=False, timeout=timeout, application=PROBE_APPLICATION
            )
            self._link.query(f"SET statement_timeout = {STATEMENT_MS}; SET lock_timeout = {LOCK_MS}")
        return self._link

    def _table(self, link: PgConnection) -> tuple[int | None, int | None]:
        """Returns the size of the outbox with its partitions, and how many rows were ever inserted."""
        if self._options.messages is not None:
            return None, None
        try:
            size, inserted = link.query(
                "WITH parts AS (SELECT relid FROM pg_partition_tree(to_regclass($1)) UNION SELECT to_regclass($1)) "
                "SELECT sum(pg_total_relation_size(relid)), sum(pg_stat_get_tuples_inserted(relid)) FROM parts",
                [quote_table(self._options.table)],
            )[0]
        except TailraceError:
            return None, None  # somebody holds an exclusive lock on it, as a rewrite of the table does
        return int(size) if size is not None else None, int(inserted) if inserted is not None else None


def _lost(slot: SlotState | None, name: str, stored: LsnPosition | None) -> str:
    if stored is None:
        return ""
    if slot is None:
        return f"there is no slot {name}"
    if slot.invalidation or slot.wal_status == "lost":
        return f"the server has invalidated the slot {name} ({slot.invalidation or slot.wal_status})"
    if slot.confirmed_lsn > stored.lsn:
        return f"the slot {name} is ahead of the stored position"
    return ""
