"""A consumer that is killed (SIGKILL) between two steps: the event is delivered again, and applied exactly once."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator

import psycopg
import pytest

from tailrace.inbox import Inbox
from tailrace.testkit.stack import MongoServer, ServerChoice

POINTS = ["before the marker", "after the marker", "after the effects", "in the commit", "after the commit"]
COMMITTED = POINTS[-1]
KILLED = -9

CONSUMER = """
import os, signal, sys

point, event = sys.argv[2:4]

def at(name):
    if name == point:
        os.kill(os.getpid(), signal.SIGKILL)
"""
POSTGRES = f"""{CONSUMER}
import psycopg
from tailrace.inbox import Inbox

with psycopg.connect(sys.argv[1]) as connection:
    at("before the marker")
    with Inbox().once(connection, event, "g") as first:
        at("after the marker")
        if first:
            connection.execute("INSERT INTO effects VALUES (%s)", [event])
            at("after the effects")
    if point == "in the commit":
        connection.pgconn.send_query(b"COMMIT")  # sent, and the answer not read
        at("in the commit")
at("after the commit")
"""
MONGO = f"""{CONSUMER}
from pymongo import MongoClient
from tailrace.inbox import Inbox

client = MongoClient(sys.argv[1])
name = sys.argv[4]
inbox = Inbox(f"{{name}}.processed_events")

def apply(session):
    at("before the marker")
    with inbox.once(session, event, "g") as first:
        at("after the marker")
        if first:
            client[name]["effects"].insert_one({{"event": event}}, session=session)
            at("after the effects")

with client.start_session() as session:
    session.with_transaction(apply)
at("after the commit")
"""


def consume(script: str, *arguments: str) -> int:
    return subprocess.run([sys.executable, "-c", script, *arguments], check=False, timeout=60).returncode


@pytest.mark.parametrize("point", POINTS)
def test_postgres(point: str, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE effects (event text NOT NULL)")
        Inbox().create(connection)

        def stored() -> tuple[int, int]:
            row = connection.execute(
                "SELECT (SELECT count(*) FROM processed_events), (SELECT count(*) FROM effects)"
            ).fetchone()
            assert row
            return row[0], row[1]

        assert consume(POSTGRES, database, point, "e") == KILLED
        # What was sent may still be executed: both, or neither.
        assert stored() in {"in the commit": [(0, 0), (1, 1)], COMMITTED: [(1, 1)]}.get(point, [(0, 0)])
        for _ in range(2):
            assert consume(POSTGRES, database, "", "e") == 0
            assert stored() == (1, 1)


@pytest.fixture(scope="module")
def impatient() -> Iterator[MongoServer]:
    """A server that soon aborts the transactions of a client that is gone; by default after a minute."""
    with MongoServer(choice=ServerChoice.LOCAL, settings={"transactionLifetimeLimitSeconds": "2"}) as server:
        yield server


@pytest.mark.parametrize("point", [point for point in POINTS if point != "in the commit"])
def test_mongo(point: str, impatient: MongoServer) -> None:
    """The killed client's transaction stays open for a while: `with_transaction` tries again until it is aborted."""
    name = f"inbox_{uuid.uuid4().hex[:8]}"
    with impatient.client() as client:
        client[name].create_collection("effects")
        with client.start_session() as session:
            Inbox(f"{name}.processed_events").create(session)

        def stored() -> tuple[int, int]:
            return client[name]["processed_events"].count_documents({}), client[name]["effects"].count_documents({})

        assert consume(MONGO, impatient.uri, point, "e", name) == KILLED
        assert stored() == ((1, 1) if point == COMMITTED else (0, 0))
        for _ in range(2):
            assert consume(MONGO, impatient.uri, "", "e", name) == 0
            assert stored() == (1, 1)
