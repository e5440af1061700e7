"""Translates errors of Postgres, libpq and psycopg to ours.

Errors about the connection string itself are not shown, because they quote parts of it. If a password is not
percent-encoded, libpq takes the part behind an `@`, `/` or `:` for a host, port or option, and quotes that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import psycopg

from tailrace.connection_causes import certificate_error, out_of_files
from tailrace.errors import (
    AccessRefused,
    PublicationBroken,
    SlotBusy,
    SlotLost,
    SourceError,
    SourceReadOnly,
    SourceUnavailable,
    TailraceError,
)

_MISREAD = re.compile(r"connection is bad: invalid|failed to resolve host '[^']*@|Servname not supported|invalid port")

MALFORMED_WHY = (
    "A part has no `=`, an option is not known, or a password holds a character that ends it early. "
    "The connection string is not shown, because it may hold a password."
)
MALFORMED_REMEDY = (
    "Correct it: postgresql://user@host:5432/database, or host=… dbname=…. In an address write special characters of a "
    "password as %XX (@ is %40, / is %2F, % is %25); in host=… form put a password with spaces in single quotes."
)

POSTGRES_TLS = "sslmode, sslrootcert, sslcert and sslkey of the connection string"
"""The settings that decide which certificates are trusted and which one is presented."""


def is_malformed(error: psycopg.Error) -> bool:
    """Whether the error is about the connection string and not about the server."""
    if isinstance(error, psycopg.ProgrammingError):
        return error.sqlstate is None
    return error.sqlstate is None and _MISREAD.search(str(error)) is not None


# SQLSTATEs, or their first two characters, that are retried. Everything else halts the pipeline.
RETRIED = ("08", "57P01", "57P02", "57P03", "57P05", "53300", "53400", "55P03", "40001", "40P01", "25P03", "25P04")
RIGHTS = ("28", "42501")
_NO_DATABASE = re.compile(r'database "[^"]*" does not exist')
# A failed login has no SQLSTATE, only a text.
LOGIN_TEXTS = ("authentication failed", "no password supplied", "pg_hba.conf", "does not exist", "permission denied")


def is_login_refused(text: str, texts: Sequence[str]) -> bool:
    """Whether an error without SQLSTATE has one of `texts`, and is not about a server that starts or stops."""
    return any(each in text for each in texts) and "the database system" not in text


def translate_error(sqlstate: str | None, text: str) -> TailraceError:
    """Returns our error for an error of Postgres."""
    text = " ".join(text.split()).removeprefix("ERROR: ").removeprefix("FATAL: ")
    named = _slot_or_publication(sqlstate, text)
    if named is not None:
        return named
    if sqlstate == "3D000" or (sqlstate is None and _NO_DATABASE.search(text)):
        return AccessRefused(
            text,
            why="The server has no database of this name.",
            remedy="Correct the database in source.postgres, or create it. `psql -l` lists the databases.",
        )
    if "row-level security" in text:
        return AccessRefused(
            text,
            why="Row security hides rows of the table from this role: they would be missing.",
            remedy="As a superuser: ALTER ROLE … BYPASSRLS; for the role in source.postgres.",
        )
    if sqlstate is not None and sqlstate.startswith(RIGHTS):
        return _rights(text)
    if sqlstate == "25006":
        return SourceReadOnly(
            text,
            why="The server is a standby, or read-only for another reason (default_transaction_read_only).",
            remedy="Name the primary in source.postgres; with several hosts, target_session_attrs=read-write finds it.",
        )
    if sqlstate is not None and not sqlstate.startswith(RETRIED):
        return SourceError(
            f"{text} [{sqlstate}]",
            why="Postgres refused the statement.",
            remedy="Fix the reported problem and restart. No events were lost.",
        )
    if sqlstate is None and (invalid := certificate_error(text, "Postgres", POSTGRES_TLS)) is not None:
        return invalid
    if sqlstate is None and is_login_refused(text, (*LOGIN_TEXTS, "must be superuser")):
        return _rights(text)
    return SourceUnavailable(
        text or "Postgres closed the connection", why=out_of_files(), remedy="Tailrace reconnects by itself."
    )


def _slot_or_publication(sqlstate: str | None, text: str) -> TailraceError | None:
    if sqlstate == "55006":
        return SlotBusy(
            text,
            why="Another session streams from it: an older instance, or one whose end the server has not noticed yet.",
            remedy="Tailrace waits and tries again. If it stays, look for the process in pg_stat_replication.",
        )
    if sqlstate == "58P01" or (sqlstate == "55000" and "replication slot" in text and "no longer" in text):
        return SlotLost(
            text,
            why="The server has removed WAL that the slot still needed (max_slot_wal_keep_size, idle timeout).",
            remedy="The rows are still in the outbox table: `tailrace recover plan FILE` finds what was missed, "
            "`recover apply` publishes it and re-creates the slot.",
        )
    if sqlstate == "42704" and text.startswith("publication "):
        return PublicationBroken(
            text,
            why="The server decodes with the catalog of the time a row was written, and then there was no publication.",
            remedy="`tailrace recover plan FILE` finds in the table what was missed, `recover apply` publishes it and "
            "repairs publication and slot. To continue without it: the slot cannot get past that time, so create the "
            "publication, re-create the slot, then start once with --adopt.",
        )
    return None


def _rights(text: str) -> AccessRefused:
    return AccessRefused(
        text,
        why="The role does not exist, its password is wrong, or it lacks privileges.",
        remedy="Check source.postgres; the role needs LOGIN and REPLICATION, a pg_hba.conf line, and SELECT on the "
        "outbox table. `tailrace init` prints the grants.",
    )
