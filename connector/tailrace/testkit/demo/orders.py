"""The orders service: Postgres, a slot, and the pipeline that reads its outbox table."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tailrace.positions.base import Position
from tailrace.positions.postgres import LsnPosition
from tailrace.testkit.demo.process import STOP_TIMEOUT
from tailrace.testkit.demo.service import Service
from tailrace.testkit.stack import KafkaBroker, PostgresServer, wait_until
from tailrace.testkit.workload.orders import SHOP_DDL, OrdersWriter, ids_in_table
from tailrace.testkit.workload.writer import Mix, WorkloadWriter

_SOURCE = """\
# The orders' pipeline: one outbox table in Postgres to Kafka, exactly once and in order.
pipeline: {pipeline}

source:
  postgres: {url}
  table: public.outbox

outbox:
  layout: debezium          # columns id, aggregatetype, aggregateid, type, payload
  columns: {{timestamp: created_at}}
"""


class Orders(Service):
    NAME = "orders"
    DATABASE = "Postgres"

    dsn = ""
    url = ""

    def __init__(self, kafka: KafkaBroker, suffix: str, postgres: PostgresServer, *, ours: bool) -> None:
        super().__init__(kafka, suffix, ours=ours)
        self._postgres = postgres

    @property
    def slot(self) -> str:
        return f"tailrace_{self.pipeline}"

    def create(self) -> None:
        self.dsn = self._postgres.create_database(self.database)
        self.url = as_url(self.dsn) if self._postgres.local else self.dsn
        with psycopg.connect(self.dsn) as connection:
            connection.execute(SHOP_DDL)

    def remove(self) -> None:
        with self._postgres.connect() as connection:

            def dropped() -> bool:
                rows = connection.execute(
                    "SELECT active FROM pg_replication_slots WHERE slot_name = %s", (self.slot,)
                ).fetchall()
                if rows == [(False,)]:
                    connection.execute("SELECT pg_drop_replication_slot(%s)", (self.slot,))
                return not rows

            wait_until(dropped, STOP_TIMEOUT, what=f"the end of the slot {self.slot}")
            connection.execute(f'DROP DATABASE IF EXISTS "{self.database}" WITH (FORCE)')

    def source_text(self) -> str:
        return _SOURCE.format(pipeline=self.pipeline, url=json.dumps(self.url))

    def writer(self, *, seed: int, keys: int, mix: Mix) -> WorkloadWriter:
        return OrdersWriter(self.dsn, seed=seed, keys=keys, mix=mix)

    def in_outbox(self) -> set[str]:
        return ids_in_table(self.dsn)

    def confirmed_too_early(self, last: Position) -> list[str]:
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute(
                "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s", (self.slot,)
            ).fetchone()
        confirmed = int(row[0]) if row and row[0] is not None else 0
        if isinstance(last, LsnPosition) and confirmed > last.lsn:
            return [f"the slot is confirmed to {confirmed}, stored is {last.lsn}"]
        return []

    def describe(self, payload: Mapping[str, Any]) -> str:
        return f"revision {payload.get('revision')}, {payload.get('amount')} {payload.get('currency')}"

    @property
    def outbox(self) -> str:
        return "public.outbox"

    @property
    def client(self) -> str:
        """The user's psql, or else the one of our server."""
        programs = self._postgres.bin_dir
        use_ours = shutil.which("psql") is None and programs is not None and (programs / "psql").exists()
        return f"{shlex.quote(str(programs / 'psql')) if programs and use_ours else 'psql'} {shlex.quote(self.url)}"


def as_url(dsn: str) -> str:
    """Returns the connection string as a URL, which is easier to paste."""
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    user = quote(parts.get("user", "postgres"), safe="")
    password = f":{quote(parts['password'], safe='')}" if "password" in parts else ""
    host, port = parts.get("host", "localhost"), parts.get("port", "5432")
    return f"postgresql://{user}{password}@{host}:{port}/{parts['dbname']}"
