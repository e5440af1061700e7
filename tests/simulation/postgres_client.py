"""A stand-in for `sources.postgres.connection.PgConnection`: sessions with the simulated server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import tailrace.sources.postgres.feedback
import tailrace.sources.postgres.options
import tailrace.sources.postgres.probes
import tailrace.sources.postgres.publication
import tailrace.sources.postgres.session
import tailrace.sources.postgres.source
import tailrace.sources.postgres.unpublished_rows
from simulation.network import RESTART, Lost, Network
from simulation.postgres import PostgresServer, Session, Walsender
from simulation.scheduler import Simulation
from simulation.stdlib import simulated_select, simulated_time
from tailrace.errors import SourceError, SourceUnavailable
from tailrace.positions.base import Position
from tailrace.positions.postgres import LsnPosition, format_lsn, parse_lsn
from tailrace.sources.postgres.publication import Published

Rows = list[tuple[str | None, ...]]


def unavailable(what: str = "Postgres closed the connection") -> SourceUnavailable:
    return SourceUnavailable(what, remedy="Tailrace reconnects by itself.")


class PostgresDatabase(PostgresServer):
    """The server as the database of a pipeline, with what replaces the driver."""

    source: ClassVar[dict[str, Any]] = {
        "postgres": "postgresql://u@db/shop", "table": "public.outbox", "start": "now", "slot": "shop",
    }  # fmt: skip

    def committed_rows(self) -> list[str]:
        begin = self.slot.created_at if self.slot else self.end
        return [row for each in self.written if each.commit_lsn >= begin for row in each.rows]

    def covered(self, position: Position) -> int | None:
        assert isinstance(position, LsnPosition)
        if position.creating or self.slot is None:
            return None
        rows = 0
        for each in self.written:
            if each.commit_lsn < self.slot.created_at:
                continue
            if each.end_lsn <= position.lsn:
                rows += len(each.rows)
            elif position.cut is not None and position.cut.commit_lsn == each.commit_lsn:
                rows += position.cut.rows
        return rows

    def written_to(self) -> None:
        if self.simulation.random.random() < 0.2:
            self.persist()

    def fault(self, kind: str) -> None:
        if kind == RESTART:
            self.kill(self.simulation.random.choice((0.3, 4.0)))
        else:
            self.end_sessions()

    def edges(self, simulation: Simulation, network: Network) -> list[tuple[Any, str, Any]]:
        def connect(options: Any, *, replication: bool = False) -> PgSession:
            return PgSession(simulation, self, network, options.link_timeout)

        pg, clock = tailrace.sources.postgres, simulated_time(simulation)
        published = Published("1/2/3", 16384, direct=True, moved=0, moves=False)
        return [
            (pg.source, "time", clock),
            (pg.source, "select", simulated_select(simulation)),
            (pg.feedback, "time", clock),
            (pg.probes, "time", clock),
            (pg.session, "time", clock),
            (pg.options.PostgresOptions, "connect", connect),
            # The catalog is not simulated: the publication is as it should be.
            (pg.publication, "ensure_publication", lambda *_, **__: None),
            (pg.publication, "require_columns", lambda *_, **__: None),
            (pg.publication, "read_published", lambda *_, **__: published),
            (pg.unpublished_rows.UnpublishedRowsCheck, "verify", lambda *_, **__: True),
            (pg.unpublished_rows.UnpublishedRowsCheck, "advance", lambda *_, **__: None),
        ]


class PgSession:
    """One connection, with the methods of PgConnection that a source calls."""

    text = None
    codec = "utf-8"
    server_version = 160000

    def __init__(self, simulation: Simulation, server: PostgresServer, network: Network, timeout: float) -> None:
        self._simulation, self._server, self._network = simulation, server, network
        self.timeout = timeout
        self._session = self._request("pg.connect", self._accept)
        self.pgconn: Any = SimpleNamespace(socket=self._session, server_version=self.server_version)
        process = simulation.current().process
        session = self._session

        def watch() -> None:
            """The kernel of the client closes the connections of a killed process."""
            if session.broken:
                return
            if process.alive:
                simulation.at(1.0, watch)
            else:
                session.leave(noticed=simulation.random.choice((0.0, 0.3, 5.0)))

        watch()

    def _accept(self) -> Session:
        if not self._server.up:
            raise unavailable("the server does not accept connections")
        return Session(self._server)

    def query(self, sql: str, parameters: Sequence[str | None] | None = None, *, timeout: float | None = None) -> Rows:
        return self._request("pg.query", lambda: self._answer(sql, parameters or ()))

    def begin_copy(self, sql: str) -> None:
        found = re.search(r"LOGICAL ([0-9A-F]+/[0-9A-F]+)", sql)
        assert found is not None
        self._request("pg.start", lambda: self._start(parse_lsn(found[1])))

    def frames(self) -> Iterator[bytes]:
        self._simulation.current()
        session = self._session
        while session.arrived:
            yield session.arrived.pop(0)
        if session.broken:
            raise unavailable("Postgres ended the replication stream")

    def send(self, frame: bytes) -> None:
        self._simulation.current()
        if self._session.broken:
            raise unavailable()
        self._session.post(frame)

    def end_copy(self, seconds: float) -> None:
        self._simulation.sleep(min(seconds, 0.01))

    def close(self) -> None:
        self._simulation.current()
        if not self._session.broken:
            self._session.leave(noticed=0.001)

    def _request(self, label: str, effect: Any) -> Any:
        try:
            return self._network.request(label, effect, self.timeout)
        except Lost:
            raise unavailable("Postgres did not answer") from None

    def _start(self, start: int) -> None:
        slot = self._server.slot
        if self._session.broken:
            raise unavailable()
        if slot is None:
            raise SourceError("the slot does not exist", why="", remedy="")
        if slot.active is not None:
            raise unavailable("the slot is active")
        Walsender(self._session, slot, start)

    def _answer(self, sql: str, parameters: Sequence[str | None]) -> Rows:
        server = self._server
        if self._session.broken:
            raise unavailable()
        if sql == "IDENTIFY_SYSTEM":
            return [("7", "1", format_lsn(server.end), "shop")]
        if "wal_sender_timeout" in sql:
            return [("60000",)]
        if sql == "SHOW wal_level":
            return [("logical",)]
        if sql.startswith("CREATE_REPLICATION_SLOT"):
            if server.slot is not None:
                raise SourceError("the slot exists", why="", remedy="")
            return [("slot", format_lsn(server.create_slot("shop")), "00000003-1", "pgoutput")]
        if "pg_drop_replication_slot" in sql:
            if server.slot is None or format_lsn(server.slot.confirmed) != parameters[1]:
                return []
            if server.slot.active is not None:
                raise unavailable("the slot is active")
            server.slot = None
            return [("",)]
        if "pg_current_wal_insert_lsn" in sql:
            return [(f"{server.xid}:{server.xid}:", format_lsn(server.end), None, "-1")]
        if sql == "SELECT pg_current_snapshot()":
            return [(f"{server.xid}:{server.xid}:",)]
        if "FROM pg_replication_slots" in sql:
            slot = server.slot
            if slot is None:
                return []
            pid = "77" if slot.active is not None else None
            return [(slot.name, "pgoutput", "shop", pid, format_lsn(slot.confirmed), "reserved", None, "0", None)]
        if sql.startswith(("BEGIN", "SET", "COMMIT")):
            return []
        raise AssertionError(f"the simulator does not know this query: {sql}")
