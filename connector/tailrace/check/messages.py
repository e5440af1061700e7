"""Checks a pipeline whose events are messages: the encoding of the database, and a publication without tables."""

from __future__ import annotations

from tailrace.check.result import CheckResult, fail, ok
from tailrace.sources.postgres import catalog
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.publication import empty_publication, require_empty


def check_messages(link: PgConnection, options: PostgresOptions) -> CheckResult:
    catalog.require_utf8(link)
    prefix = options.messages.prefix if options.messages else ""
    return ok("messages", f"prefix {prefix}; without a table, events cannot be verified, recovered or archived")


def check_empty_publication(link: PgConnection, options: PostgresOptions) -> CheckResult:
    publication = options.publication
    if link.query("SELECT 1 FROM pg_publication WHERE pubname = $1", [publication]):
        require_empty(link, publication)
        return ok("publication", f"{publication}, without tables")
    statement = f"{empty_publication(publication)};"
    ((may,),) = link.query("SELECT has_database_privilege(current_database(), 'CREATE')")
    if not options.create:
        return fail("publication", f"there is no {publication}, and source.create is false", statement)
    if may != "t":
        return fail("publication", f"there is no {publication}, and this role may not create it", statement)
    return ok("publication", f"{publication}: will be created on the first start")
