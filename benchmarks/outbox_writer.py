"""Part of `make bench`: what `outbox.add` costs next to the bare INSERT that a service would write by hand.

Both write the same columns with the same driver and connection, in turns, one statement per event and 100 events per
transaction. The bare statement includes what it cannot do without: a new id and the payload as JSON. Each call is
timed; the lower quartiles are compared, because other work on the machine only adds time. The asyncio drivers are in
`outbox_writer_async.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import django
import django.conf
import django.db
import django.db.transaction
import psycopg
import sqlalchemy
from psycopg.types.json import Jsonb
from pymongo import MongoClient
from sqlalchemy.orm import Session

from benchmarks.outbox_writer_async import async_rows
from benchmarks.writer_events import (
    COLUMNS,
    EVENTS,
    ORDER,
    PAYLOAD,
    PLACED,
    SCHEMA,
    TABLE,
    compared,
    document,
    sqlalchemy_insert,
    sqlalchemy_url,
    sqlalchemy_values,
)  # fmt: skip
from tailrace.outbox import Outbox
from tailrace.outbox.mongosh import collection_commands
from tailrace.testkit.stack import MongoServer, PostgresServer

ROUNDS = 40
LIMIT = 1.2
RESULTS = Path(__file__).parent / "results" / "outbox_writer.json"

Write = Callable[[], Any]
"""Writes one event."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1, help="share of the rounds, for a quick run (not saved)")
    scale = parser.parse_args().scale
    rounds = max(3, int(ROUNDS * scale))
    with tempfile.TemporaryDirectory() as folder, PostgresServer("16") as postgres, MongoServer() as mongo:
        Path(folder, f"{PLACED}.json").write_text(json.dumps(SCHEMA))
        dsn = postgres.create_database("writer")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(TABLE)
        plain, validating = Outbox(table="outbox"), Outbox(table="outbox", schemas=folder)
        rows = [
            *_psycopg(dsn, plain, validating, rounds),
            _sqlalchemy(dsn, plain, rounds),
            _django(dsn, plain, rounds),
            _pymongo(mongo, rounds),
            *asyncio.run(async_rows(dsn, mongo.uri, plain, rounds)),
        ]
    print(f"\n{'':28}{'INSERT µs':>12}{'add µs':>10}{'ratio':>8}{'limit':>8}")
    for row in rows:
        print(f"{row['driver']:28}{row['insert_us']:>12.0f}{row['add_us']:>10.0f}{row['ratio']:>8.2f}{LIMIT:>8.2f}")
    if scale == 1:
        result = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "calls": rounds * EVENTS, "writer": rows}
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")


def _in_turns(ways: list[Write], rounds: int, commit: Callable[[], Any]) -> list[list[float]]:
    """Returns the times of all calls of each way; the first round is not counted."""
    times: list[list[float]] = [[] for _ in ways]
    for number in range(rounds + 1):
        for _ in range(EVENTS):
            for way, found in zip(ways, times, strict=True):
                began = time.perf_counter()
                way()
                if number:
                    found.append(time.perf_counter() - began)
        commit()
    return times


def _psycopg(dsn: str, plain: Outbox, validating: Outbox, rounds: int) -> list[dict[str, Any]]:
    with psycopg.connect(dsn) as connection:
        insert = f"INSERT INTO outbox ({COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s)"

        def bare() -> None:
            values = (uuid.uuid4(), *ORDER, PLACED, Jsonb(PAYLOAD), datetime.now(UTC))
            connection.execute(insert, values)

        def add() -> None:
            plain.add(connection, PLACED, PAYLOAD, aggregate=ORDER)

        def add_valid() -> None:
            validating.add(connection, PLACED, PAYLOAD, aggregate=ORDER)

        times = _in_turns([bare, add, add_valid], rounds, connection.commit)
    return [compared("psycopg", times[0], times[1]), compared("psycopg, with a schema", times[0], times[2])]


def _sqlalchemy(dsn: str, outbox: Outbox, rounds: int) -> dict[str, Any]:
    insert = sqlalchemy_insert()
    with Session(sqlalchemy.create_engine(sqlalchemy_url(dsn))) as session:

        def bare() -> None:
            session.execute(insert, sqlalchemy_values())

        def add() -> None:
            outbox.add(session, PLACED, PAYLOAD, aggregate=ORDER)

        return compared("SQLAlchemy", *_in_turns([bare, add], rounds, session.commit))


def _django(dsn: str, outbox: Outbox, rounds: int) -> dict[str, Any]:
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    database = {
        "ENGINE": "django.db.backends.postgresql", "NAME": given["dbname"], "USER": given["user"],
        "PASSWORD": given.get("password") or "", "HOST": given["host"], "PORT": given["port"],
    }  # fmt: skip
    django.conf.settings.configure(DATABASES={"default": database})
    django.setup()
    connection = django.db.connection
    insert = f"INSERT INTO outbox ({COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s)"

    def bare() -> None:
        with connection.cursor() as cursor:
            cursor.execute(insert, (uuid.uuid4(), *ORDER, PLACED, json.dumps(PAYLOAD), datetime.now(UTC)))

    def add() -> None:
        outbox.add(connection, PLACED, PAYLOAD, aggregate=ORDER)

    django.db.transaction.set_autocommit(False)
    times = _in_turns([bare, add], rounds, django.db.transaction.commit)
    connection.close()
    return compared("Django", *times)


def _pymongo(mongo: MongoServer, rounds: int) -> dict[str, Any]:
    client: MongoClient[dict[str, Any]] = mongo.client()
    with client, client.start_session() as session:
        for command in collection_commands("writer", "outbox"):
            client["writer"].command(command.body)
        collection = client["writer"]["outbox"]
        outbox = Outbox(layout="document", table="writer.outbox", topic="orders")

        def bare() -> None:
            collection.insert_one(document(), session=session)

        def add() -> None:
            outbox.add(session, PLACED, PAYLOAD, aggregate=ORDER)

        def commit() -> None:
            session.commit_transaction()
            session.start_transaction()

        session.start_transaction()
        times = _in_turns([bare, add], rounds, commit)
        session.abort_transaction()
        return compared("pymongo", *times)


if __name__ == "__main__":
    main()
