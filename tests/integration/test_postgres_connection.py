"""Sessions with Postgres: their settings, and which side a failed connection is blamed on."""

from __future__ import annotations

import subprocess
import sys

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace.errors import AccessRefused
from tailrace.sources.postgres.connection import PgConnection


@pytest.mark.parametrize("replication", [False, True])
def test_an_idle_session_is_not_ended_by_the_server(database: str, replication: bool) -> None:
    name = conninfo_to_dict(database)["dbname"]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE \"{name}\" SET idle_session_timeout = '1s'")
    with PgConnection(database, replication=replication, timeout=10) as link:
        assert link.query("SHOW idle_session_timeout") == [("0",)]


def test_a_missing_database_is_reported_as_the_cause(database: str) -> None:
    with pytest.raises(AccessRefused, match='database "no_such" does not exist') as caught:
        PgConnection(make_conninfo(database, dbname="no_such"), replication=False, timeout=10)
    assert "no database of this name" in caught.value.why
    assert "Correct the database" in caught.value.remedy


def test_a_process_without_file_descriptors_reports_it(database: str) -> None:
    """Neither Postgres nor Kafka is down: this process cannot open a socket."""
    program = """
import os, resource, sys
from confluent_kafka import KafkaError
from tailrace.errors import TailraceError
from tailrace.kafka.client import translate
from tailrace.sources.postgres.connection import PgConnection
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
taken = []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
try:
    PgConnection(sys.argv[1], replication=False, timeout=5)
except TailraceError as error:
    print(error.code, error.why)
error = translate(KafkaError(KafkaError._TRANSPORT), "asking")
os.close(taken.pop())
print(error.code, error.why)
print(translate(KafkaError(KafkaError._TRANSPORT), "asking").why)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, database], capture_output=True, text=True, timeout=60, check=True
    )
    first, second, third = ran.stdout.splitlines()
    assert first.startswith("SourceUnavailable This process may open no more files")
    assert second.startswith("KafkaUnavailable This process may open no more files")
    assert third == "Kafka is unavailable or too slow."
