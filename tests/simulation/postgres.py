"""Postgres as the connector sees it: a log, a replication slot, and walsenders that decode the log with pgoutput.

Modelled behaviour (slot.c, logical.c, walsender.c, snapbuild.c of Postgres 15 to 17):
- A transaction is sent whole and in commit order, if its commit record begins at or after the start of the stream.
- A start before `confirmed_flush` is silently moved forward to it.
- `confirmed_flush` follows the flush position of status updates, and never goes back while the server runs. It is
  persisted only now and then: after kill -9 the slot is where it was persisted last.
- A slot has one walsender. That of a client that is gone stays active until the server notices.
- Aborted transactions take up log and are never sent. When nothing is left to send, keepalives carry the end of the
  log; never a place behind the commit record of a transaction that is still to be sent.
- A walsender without a status update within `wal_sender_timeout` ends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from simulation import pgoutput_bytes
from simulation.scheduler import Simulation
from tailrace.positions.postgres import format_lsn

SENDER_TIMEOUT = 60.0
KEEPALIVE_SECONDS = 2.0
COMMIT_BYTES = 48
_STATUS = struct.Struct(">cQQQqB")


@dataclass(frozen=True, slots=True)
class Written:
    """A committed transaction of the log."""

    xid: int
    commit_lsn: int
    end_lsn: int
    rows: tuple[str, ...]
    """The ids of its outbox rows; the key is the part before the dash."""


@dataclass(slots=True)
class Slot:
    name: str
    created_at: int
    confirmed: int
    persisted: int
    active: Walsender | None = None


@dataclass
class PostgresServer:
    simulation: Simulation
    end: int = 0x1000
    written: list[Written] = field(default_factory=list)
    slot: Slot | None = None
    up: bool = True
    xid: int = 100
    rolled_back: set[str] = field(default_factory=set)
    confirmed: Callable[[int], None] = lambda _: None
    """Called with each flush position that a client confirms, before it takes effect."""

    def __post_init__(self) -> None:
        self.idle: list[Callable[[], None]] = []
        self.sessions: list[Session] = []

    def commit(self, rows: list[str]) -> None:
        """One transaction of the service."""
        self.xid += 1
        commit_lsn = self.end + 64 * (len(rows) + 1)
        self.end = commit_lsn + COMMIT_BYTES
        self.written.append(Written(self.xid, commit_lsn, self.end, tuple(rows)))
        self.simulation.note(f"{format_lsn(commit_lsn)} commits {rows}")
        self._wake()

    def roll_back(self, rows: list[str]) -> None:
        self.xid += 1
        self.end += 64 * (len(rows) + 1)
        self.rolled_back.update(rows)
        self._wake()

    def create_slot(self, name: str) -> int:
        self.end += 64
        self.slot = Slot(name, self.end, self.end, self.end)
        return self.end

    def persist(self) -> None:
        """A checkpoint writes the slot to disk."""
        if self.slot is not None:
            self.slot.persisted = self.slot.confirmed

    def kill(self, seconds: float) -> None:
        """Kill -9 of the server, and its start after some seconds."""
        self.end_sessions()
        if self.slot is not None:
            self.simulation.note(f"slot goes back from {self.slot.confirmed:X} to {self.slot.persisted:X}")
            self.slot.confirmed, self.slot.active = self.slot.persisted, None
        self.up = False

        def start() -> None:
            self.up = True

        self.simulation.at(seconds, start)

    def end_sessions(self) -> None:
        """pg_terminate_backend of every session."""
        for session in self.sessions:
            session.broken = True
            session.heard()
            if session.sender is not None:
                session.sender.end()
        self.sessions.clear()

    def _wake(self) -> None:
        """Walsenders go on a moment after the log has grown."""
        idle, self.idle = self.idle, []
        for beat in idle:
            self.simulation.at(self.simulation.delay(), beat)

    def confirm(self, slot: Slot, flush: int) -> None:
        """A flush position arrives in a status update."""
        if flush and slot is self.slot and flush > slot.confirmed:
            self.confirmed(flush)
            slot.confirmed = flush


class Session:
    """A connection to the server, also the socket that is polled."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.broken = False
        self.arrived: list[bytes] = []
        self.heard: Callable[[], None] = lambda: None
        self.sender: Walsender | None = None
        self._busy_until = 0.0
        server.sessions.append(self)

    @property
    def is_set(self) -> bool:
        """Whether a poll reports the socket."""
        return bool(self.arrived) or self.broken

    def post(self, frame: bytes) -> None:
        """A frame of the client travels to the walsender, behind earlier ones."""
        simulation = self.server.simulation
        at = max(self._busy_until + 1e-6, simulation.now + simulation.delay())
        self._busy_until = at
        simulation.at(at - simulation.now, lambda: self.sender and self.sender.handle(frame))

    def leave(self, *, noticed: float) -> None:
        """The client is gone; the server notices after some seconds."""
        self.broken = True
        if self in self.server.sessions:
            self.server.sessions.remove(self)
        if self.sender is not None:
            sender = self.sender
            at = max(noticed, self._busy_until - self.server.simulation.now)
            self.server.simulation.at(at, sender.end)


class Walsender:
    """Decodes the log for one client."""

    def __init__(self, session: Session, slot: Slot, start: int) -> None:
        self._session = session
        self._server = server = session.server
        self._simulation = server.simulation
        self.slot = slot
        self.start = max(start, slot.confirmed)
        self._next = next((at for at, each in enumerate(server.written) if each.commit_lsn >= self.start), None)
        self._at = len(server.written) if self._next is None else self._next
        self._parts: list[bytes] = []
        self._described = False
        self._heard_at = self._simulation.now
        self.ended = False
        slot.active = self
        session.sender = self
        self._beat()
        self._keep_alive()

    def end(self) -> None:
        self.ended = True
        if self.slot.active is self:
            self.slot.active = None

    def handle(self, frame: bytes) -> None:
        """A status update of the client."""
        if self.ended:
            return
        _, _, flush, _, _, reply = _STATUS.unpack(frame)
        self._heard_at = self._simulation.now
        self._server.confirm(self.slot, flush)
        if reply:
            self._send_keepalive(reply=False)

    def _beat(self) -> None:
        """Sends what the log has, in portions of any size, with pauses of any length between them."""
        if self.ended:
            return
        simulation, session = self._simulation, self._session
        if not self._parts and self._at < len(self._server.written):
            self._decode(self._server.written[self._at])
            self._at += 1
        if self._parts:
            size = simulation.random.randint(1, 6)
            session.arrived += self._parts[:size]
            del self._parts[:size]
            session.heard()
            simulation.at(simulation.delay(0.001), self._beat)
        else:
            self._server.idle.append(self._beat)

    def _decode(self, transaction: Written) -> None:
        clock = pgoutput_bytes.micros(self._simulation.now)
        messages = [pgoutput_bytes.begin(transaction.commit_lsn, transaction.xid)]
        if transaction.rows and not self._described:
            self._described = True
            messages.append(pgoutput_bytes.relation())
        messages += [pgoutput_bytes.insert(row) for row in transaction.rows]
        messages.append(pgoutput_bytes.commit(transaction.commit_lsn, transaction.end_lsn))
        self._parts = [
            pgoutput_bytes.xlog_data(transaction.commit_lsn, self._server.end, clock, message) for message in messages
        ]

    def _keep_alive(self) -> None:
        if self.ended:
            return
        if self._simulation.now - self._heard_at > SENDER_TIMEOUT:
            self.end()
            self._session.broken = True
            self._session.heard()
        else:
            self._send_keepalive(reply=self._simulation.random.random() < 0.1)
            self._simulation.at(KEEPALIVE_SECONDS * self._simulation.random.random() * 2, self._keep_alive)

    def _send_keepalive(self, *, reply: bool) -> None:
        if self.ended:
            return
        server = self._server
        if self._parts:
            # Inside a transaction the walsender is at one of its changes.
            end = server.written[self._at - 1].commit_lsn - 1
        elif self._at < len(server.written):
            end = server.written[self._at].commit_lsn - 64
        else:
            end = server.end
        clock = pgoutput_bytes.micros(self._simulation.now)
        self._session.arrived.append(pgoutput_bytes.keepalive(end, clock, reply=reply))
        self._session.heard()
