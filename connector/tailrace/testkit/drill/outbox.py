"""The scratch outbox of a drill: created next to the user's, written by a workload, removed at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tailrace.config.model import PipelineSettings
from tailrace.errors import AccessRefused, SourceUnavailable
from tailrace.sql_names import quote, quote_table, split_table
from tailrace.testkit.drill.plan import DrillPlan
from tailrace.testkit.stack.waiting import wait_until
from tailrace.testkit.workload.orders import OrdersWriter, ids_in_table
from tailrace.testkit.workload.writer import Mix, WorkloadWriter

MIX = Mix(rollback=0.15, invalid=0.0, savepoint=0.1)
"""Bad payloads are a step of their own: they are written by another writer."""
BAD = Mix(rollback=0.0, invalid=1.0)
END_SECONDS = 60.0
CONNECT_SECONDS = 10


class ScratchOutbox(ABC):
    """What a drill does in the database. `server` names it for a person, without a secret."""

    server: str

    @abstractmethod
    def create(self) -> None:
        """Creates the outbox; nothing of an earlier drill may be left."""

    @abstractmethod
    def remove(self) -> list[str]:
        """Removes what this or an earlier drill has created; returns what was removed."""

    @abstractmethod
    def writer(self, seed: int, mix: Mix) -> WorkloadWriter:
        """Returns a writer of events only."""

    @abstractmethod
    def in_outbox(self) -> set[str]:
        """Returns the ids in the outbox, which decide outcomes that a writer does not know."""

    def end_sessions(self) -> int | None:
        """Ends the session that reads the log, as an administrator does; None if the database has no such session."""
        return None

    def confirmed(self) -> int | None:
        """Returns the LSN up to which the database may discard its log; None if it has no slot."""
        return None


def open_outbox(settings: PipelineSettings, plan: DrillPlan) -> ScratchOutbox:
    source = settings.source
    if source.mongo is not None:
        from tailrace.testkit.drill.mongo_outbox import MongoScratch

        return MongoScratch(source.mongo.reveal(), plan)
    return PostgresScratch(source.postgres.reveal() if source.postgres else "", plan)


DDL = """
CREATE TABLE {table} (
    id uuid PRIMARY KEY,
    aggregatetype text NOT NULL,
    aggregateid text NOT NULL,
    type text NOT NULL,
    payload jsonb,
    traceparent text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""
COMMENT = "Made by tailrace drill; `tailrace drill --clean` removes it."


class PostgresScratch(ScratchOutbox):
    """A table, and the slot and publication that the scratch pipeline creates."""

    def __init__(self, dsn: str, plan: DrillPlan) -> None:
        self._dsn = dsn
        self._plan = plan
        self._table = quote_table(plan.outbox)
        parts: dict[str, Any] = conninfo_to_dict(dsn)
        self.server = f"Postgres {parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"

    def create(self) -> None:
        with self._connect() as connection:
            try:
                connection.execute(DDL.format(table=self._table))
            except psycopg.errors.InsufficientPrivilege as error:
                schema = split_table(self._plan.outbox)[0]
                raise AccessRefused(
                    f"the scratch outbox {self._plan.outbox} cannot be created",
                    why=str(error).strip(),
                    remedy=f"GRANT CREATE ON SCHEMA {quote(schema)} to the pipeline's role in staging, or run the "
                    "drill with settings of a role that may create tables.",
                ) from None
            connection.execute(f"COMMENT ON TABLE {self._table} IS '{COMMENT}'")

    def remove(self) -> list[str]:
        removed = []
        with self._connect() as connection:
            if wait_until(lambda: self._drop_slot(connection), END_SECONDS, what=f"the end of {self._plan.slot}") > 1:
                removed.append(f"slot {self._plan.slot}")
            known = connection.execute("SELECT FROM pg_publication WHERE pubname = %s", (self._plan.slot,)).fetchone()
            if known is not None:
                connection.execute(f"DROP PUBLICATION {quote(self._plan.slot)}")
                removed.append(f"publication {self._plan.slot}")
            if connection.execute("SELECT to_regclass(%s)", (self._table,)).fetchone() != (None,):
                connection.execute(f"DROP TABLE {self._table}")
                removed.append(f"table {self._plan.outbox}")
        return removed

    def _drop_slot(self, connection: psycopg.Connection) -> int:
        """Returns 0 while the slot is in use, 1 if there was none, 2 if it was dropped."""
        name = (self._plan.slot,)
        found = connection.execute("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", name).fetchone()
        if found is None:
            return 1
        if found[0] is not None:
            # A session of a killed drill: the server has not noticed yet that its client is gone.
            connection.execute("SELECT pg_terminate_backend(%s)", (found[0],))
            return 0
        connection.execute("SELECT pg_drop_replication_slot(%s)", name)
        return 2

    def writer(self, seed: int, mix: Mix) -> WorkloadWriter:
        return OrdersWriter(self._dsn, table=self._table, entities=False, seed=seed, mix=mix)

    def in_outbox(self) -> set[str]:
        return ids_in_table(self._dsn, self._table)

    def end_sessions(self) -> int:
        with self._connect() as connection:
            rows = connection.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
                "WHERE slot_name = %s AND active_pid IS NOT NULL", (self._plan.slot,),
            ).fetchall()  # fmt: skip
        return sum(bool(row[0]) for row in rows)

    def confirmed(self) -> int | None:
        with self._connect() as connection:
            row = connection.execute(
                "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s", (self._plan.slot,)
            ).fetchone()
        return int(row[0]) if row and row[0] is not None else None

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        try:
            return psycopg.connect(self._dsn, autocommit=True, connect_timeout=CONNECT_SECONDS)
        except psycopg.OperationalError as error:
            raise SourceUnavailable(
                f"{self.server} cannot be reached", why=str(error).strip(), remedy="Check it with `tailrace check`."
            ) from None
