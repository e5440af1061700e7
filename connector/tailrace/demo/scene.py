"""The scene: a shop's database, the files a user would write, and the connector as a process of its own.

The files lie in a folder of their own that goes when the demo ends. The connector runs as a user would run it,
`tailrace run orders.yaml`, under a guardian: it cannot outlive the demo.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tailrace.demo.servers import Servers
from tailrace.proof.workload import SHOP_DDL
from tailrace.stack import wait_until
from tailrace.stack.kafka import quiet_admin
from tailrace.stack.places import new_run_dir, private_file
from tailrace.stack.process import LocalProcess

ASSETS = Path(__file__).parent
TOPIC = "shop.orders"
STOP_TIMEOUT = 15.0

_PIPELINE = """\
# The demo's pipeline: one outbox table to Kafka, exactly once and in order.
pipeline: {pipeline}

source:
  postgres: {postgres}
  table: public.outbox

outbox:
  layout: debezium          # columns id, aggregatetype, aggregateid, type, payload
  columns: {{timestamp: created_at}}

schemas: {{folder: schemas}}  # every payload is checked; what breaks its schema goes to the dead letters
topics: {{folder: topics}}    # which events go to which topic

kafka:
  bootstrap: {bootstrap}
  dead_letter_topic: {letters}
  offsets_topic: {offsets}
"""


class Scene:
    """Everything the play needs, made on `open` and gone after `close`."""

    def __init__(self, version: str = "16") -> None:
        self.servers = Servers(version)
        # On servers of somebody else's there may be a shop, or another demo, already.
        self._suffix = "" if self.servers.ours else f"_{secrets.token_hex(3)}"
        self.pipeline = f"orders{self._suffix}"
        self.database = f"shop{self._suffix}"
        self.topic = TOPIC + self._suffix
        self.letters = f"{self.pipeline}.dead-letters"
        self.offsets = f"tailrace-offsets{self._suffix}"
        self.dsn = ""
        self.url = ""
        self._connector: LocalProcess | None = None
        self._heard = 0
        self._created = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        return self.servers.kafka.bootstrap

    @property
    def postgres_version(self) -> int:
        """As the server says; one named by its address has the version it has."""
        return self.servers.postgres.version_num // 10_000

    @property
    def slot(self) -> str:
        return f"tailrace_{self.pipeline}"

    @property
    def connector(self) -> LocalProcess:
        if self._connector is None:
            raise RuntimeError("the scene is not open")
        return self._connector

    @property
    def folder(self) -> Path:
        return self.connector.run_dir

    @property
    def file(self) -> Path:
        return self.folder / "orders.yaml"

    def open(self, busy: Callable[[str], None]) -> None:
        """Servers, database, tables and files; the connector is not started yet."""
        self.servers.start(busy)
        self._connector = LocalProcess("connector", new_run_dir("demo", None), stop_signal=signal.SIGTERM)
        self.dsn = self.servers.postgres.create_database(self.database)
        self._created = True
        self.url = as_url(self.dsn) if self.servers.ours else self.dsn
        with psycopg.connect(self.dsn) as connection:
            connection.execute(SHOP_DDL)
        self._write_files()

    def start_connector(self) -> None:
        """Launches it; it works once `connector_ready` says so."""
        self._heard = self.connector.log.stat().st_size if self.connector.log.exists() else 0
        # Settings may come from the environment, too; here only the file is to speak.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
        self.connector.launch(
            [sys.executable, "-m", "tailrace", "run", str(self.file), "--log-json"],
            environment,
        )

    @property
    def connector_ready(self) -> bool:
        """Whether the connector, as launched last, follows the log; an error if it ended."""
        if not self.connector.running:
            raise self.connector.failure(f"the connector ended by itself (exit code {self.connector.exit_code})")
        with self.connector.log.open("rb") as log:
            log.seek(self._heard)
            return b'"event": "running"' in log.read()

    def kill_connector(self) -> None:
        """SIGKILL: no last word, no clean-up, as if the machine had lost power."""
        self.connector.kill()

    def stop_connector(self) -> None:
        self.connector.stop(STOP_TIMEOUT)

    def confirmed_lsn(self) -> int | None:
        """How far Postgres was told that it may forget."""
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute(
                "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s", (self.slot,)
            ).fetchone()
        return int(row[0]) if row and row[0] is not None else None

    def close(self) -> None:
        """Ends the connector, then the servers; on servers of somebody else's, removes what the demo made."""
        with ExitStack() as last:
            last.callback(self.servers.close)
            if self._created and not self.servers.ours:
                last.callback(self._remove_traces)
            if self._connector is not None:
                last.callback(self._connector.close)

    def _write_files(self) -> None:
        for name in ("schemas", "topics"):
            shutil.copytree(ASSETS / name, self.folder / name)
        rule = self.folder / "topics" / "orders.yaml"
        rule.write_text(rule.read_text(encoding="utf-8").replace(TOPIC, self.topic), encoding="utf-8")
        text = pipeline_text(
            pipeline=self.pipeline,
            postgres=self.url,
            bootstrap=self.bootstrap,
            letters=self.letters,
            offsets=self.offsets,
        )
        private_file(self.file, text, None)

    def _remove_traces(self) -> None:
        with self.servers.postgres.connect() as connection:

            def dropped() -> bool:
                rows = connection.execute(
                    "SELECT active FROM pg_replication_slots WHERE slot_name = %s", (self.slot,)
                ).fetchall()
                if rows == [(False,)]:
                    connection.execute("SELECT pg_drop_replication_slot(%s)", (self.slot,))
                return not rows

            wait_until(dropped, STOP_TIMEOUT, what=f"the end of the slot {self.slot}")
            connection.execute(f'DROP DATABASE "{self.database}" WITH (FORCE)')
        admin = quiet_admin(self.bootstrap)
        for deleted in admin.delete_topics([self.topic, self.letters, self.offsets]).values():
            # A topic that was never made is as gone as one that is deleted.
            deleted.exception(STOP_TIMEOUT)


def pipeline_text(*, pipeline: str, postgres: str, bootstrap: str, letters: str, offsets: str) -> str:
    """The settings file, as a user would write it."""
    return _PIPELINE.format(
        pipeline=pipeline,
        postgres=json.dumps(postgres),
        bootstrap=bootstrap,
        letters=letters,
        offsets=offsets,
    )


def as_url(dsn: str) -> str:
    """The connection as a URL: what people paste into psql and files."""
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    user = quote(parts.get("user", "postgres"), safe="")
    password = f":{quote(parts['password'], safe='')}" if "password" in parts else ""
    host, port = parts.get("host", "localhost"), parts.get("port", "5432")
    return f"postgresql://{user}{password}@{host}:{port}/{parts['dbname']}"
