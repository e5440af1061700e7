"""The command that makes an existing slot a failover slot."""

from __future__ import annotations

import shlex

from tailrace.sources.postgres.connection import PgConnection
from tailrace.sql_names import quote


def enable_failover(link: PgConnection, slot: str) -> str:
    """Returns a command with the address of this server. There is no SQL for it, and the slot must not be in use."""
    pgconn = link.pgconn
    named = (("host", pgconn.host), ("port", pgconn.port), ("user", pgconn.user), ("dbname", pgconn.db))
    where = " ".join(f"{name}={_value(value.decode())}" for name, value in named)
    command = f"ALTER_REPLICATION_SLOT {quote(slot)} (FAILOVER true)"
    return shlex.join(["psql", f"{where} replication=database", "-c", command])


def _value(text: str) -> str:
    """Quotes a value of a connection string."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
