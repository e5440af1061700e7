"""A service as its users write it: business rows and outbox rows in one transaction, with a ledger of outcomes.

Each writer owns its keys, so the order in which it commits is the order per key that consumers must see. Some
transactions roll back, some payloads break their schema, some events are written inside savepoints; all of it from a
seed. The ledger is kept in memory before and after each commit, as the oracle needs it.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from tailrace.proof.oracle import Entry, Outcome

SHOP_DDL = """
CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, amount numeric NOT NULL, revision int NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (
    id uuid PRIMARY KEY,
    aggregatetype text NOT NULL,
    aggregateid text NOT NULL,
    type text NOT NULL,
    payload jsonb,
    traceparent text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""

_INSERT = """
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, traceparent) VALUES (%s, 'order', %s, %s, %s, %s)
"""


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of what a workload does, each between 0 and 1."""

    rollback: float = 0.1
    invalid: float = 0.02
    savepoint: float = 0.1
    events_per_transaction: int = 3
    """At most; each transaction writes 1 to this many."""


class Writer:
    """Commits transactions one after another on its own connection; call `transaction` or run it as a thread."""

    def __init__(self, dsn: str, *, seed: int = 0, keys: int = 20, mix: Mix | None = None) -> None:
        self.ledger: list[Entry] = []
        self._dsn = dsn
        self._random = random.Random(seed)  # noqa: S311 - a workload, not a secret
        self._mix = mix or Mix()
        self._keys = [f"order-{seed}-{number}" for number in range(keys)]
        self._seq = dict.fromkeys(self._keys, 0)
        self._connection: psycopg.Connection | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def transaction(self, events: int | None = None, *, rollback: bool | None = None) -> list[Entry]:
        """One transaction; its events, with their outcome, are in the ledger and returned."""
        count = events if events is not None else self._random.randint(1, self._mix.events_per_transaction)
        rolled_back = self._random.random() < self._mix.rollback if rollback is None else rollback
        entries: list[Entry] = []
        outcome = Outcome.ROLLED_BACK
        try:
            connection = self._connected()
            for _ in range(count):
                entries.append(self._event(connection, entries))
            if rolled_back:
                connection.rollback()
            else:
                # From here until the answer the outcome is not ours to know.
                outcome = Outcome.UNKNOWN
                connection.commit()
                outcome = Outcome.COMMITTED
        except psycopg.OperationalError:
            self._disconnect()
        finally:
            entries = [entry._replace(outcome=outcome) for entry in entries]
            if outcome is not Outcome.ROLLED_BACK:
                for entry in entries:
                    self._seq[entry.key] = entry.seq
            self.ledger += entries
        return entries

    def start(self, *, rate: float, until: Callable[[], bool] = lambda: False) -> None:
        """Writes about `rate` transactions a second in a thread, until `stop` or `until`."""

        def run() -> None:
            due = time.monotonic()
            try:
                while not self._stop.is_set() and not until():
                    self.transaction()
                    due += 1 / rate
                    self._stop.wait(max(0.0, due - time.monotonic()))
            except BaseException as error:  # noqa: BLE001 - shown by whoever joins
                self.error = error
            finally:
                self._disconnect()

        self._thread = threading.Thread(target=run, name="writer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and raises what went wrong in it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._disconnect()
        if self.error is not None:
            raise self.error

    def _event(self, connection: psycopg.Connection, before: list[Entry]) -> Entry:
        key = self._random.choice(self._keys)
        seq = max([self._seq[key], *(entry.seq for entry in before if entry.key == key)]) + 1
        valid = self._random.random() >= self._mix.invalid
        event_id = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        amount = self._random.randint(1, 99_999) / 100
        payload = {"order": key, "revision": seq, "amount": amount if valid else "a lot", "currency": "EUR"}
        traceparent = f"00-{self._random.getrandbits(128):032x}-{self._random.getrandbits(64):016x}-01"
        if self._random.random() < self._mix.savepoint:
            # Rows of a subtransaction carry another transaction id than their parent's.
            connection.execute("SAVEPOINT part")
            self._write(connection, event_id, key, seq, payload, traceparent)
            connection.execute("RELEASE part")
        else:
            self._write(connection, event_id, key, seq, payload, traceparent)
        return Entry(event_id, key, seq, valid, Outcome.UNKNOWN)

    def _write(
        self,
        connection: psycopg.Connection,
        event_id: str,
        key: str,
        seq: int,
        payload: object,
        traceparent: str,
    ) -> None:
        connection.execute(
            "INSERT INTO orders VALUES (%s, 0, %s) ON CONFLICT (id) DO UPDATE SET revision = excluded.revision",
            (key, seq),
        )
        kind = "OrderPlaced" if seq == 1 else "OrderChanged"
        connection.execute(_INSERT, (event_id, key, kind, json.dumps(payload), traceparent))

    def _connected(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = psycopg.connect(self._dsn, connect_timeout=5)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def ids_in_table(dsn: str, table: str = "outbox") -> set[str]:
    """What the outbox holds in the end: it settles outcomes the writer could not learn."""
    with psycopg.connect(dsn) as connection:
        return {str(row[0]) for row in connection.execute(f"SELECT id FROM {table}")}  # noqa: S608 - a name of ours
