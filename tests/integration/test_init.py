"""Runs what `tailrace init` writes: its SQL, then check and run with the role of few rights."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from helpers.shop import Connector
from tailrace.cli import main
from tailrace.sql_names import quote_table
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, wait_until
from tailrace.testkit.topic_reader import header, read_all

PASSWORD = "init-run-s3cret"
ORDER = {"order_id": "o-1", "customer": "c-1", "total_cents": 995}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A separate server: the role has the same name in every case, for the whole cluster."""
    with PostgresServer("16", choice=ServerChoice.LOCAL) as server:
        with server.connect() as connection:
            # The administrator of a managed database: not a superuser, but allowed to create replication roles.
            connection.execute(f"CREATE ROLE app LOGIN CREATEROLE REPLICATION PASSWORD '{PASSWORD}'")
        yield server


def edited(folder: Path, name: str, server: PostgresServer, kafka: KafkaBroker, database: str) -> Path:
    """Replaces the addresses, as the file asks, and nothing else."""
    file = folder / f"{name}.yaml"
    text = file.read_text()
    for before, after in (
        ("@localhost:5432/shop", f"@{server.host}:{server.port}/{database}"),
        ("bootstrap: localhost:9092", f"bootstrap: {kafka.bootstrap}"),
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("owner", "table", "start"),
    [
        ("postgres", "public.outbox", "now"),
        ("app", "sales.outbox", "beginning"),
        ("app", 'sales."Out.Box"', "beginning"),
    ],
)
def test_the_files_publish_a_first_event(
    server: PostgresServer,
    kafka: KafkaBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    owner: str,
    table: str,
    start: str,
) -> None:
    name = f"init_{uuid.uuid4().hex[:8]}"
    with pytest.raises(SystemExit):
        main(["init", str(tmp_path), "--name", name, "--table", table])
    server.create_database(name)
    file = edited(tmp_path, name, server, kafka, name)
    file.write_text(file.read_text().replace("start: beginning ", f"start: {start} "))
    monkeypatch.setenv(f"{name.upper()}_DB_PASSWORD", PASSWORD)
    insert = sql.SQL("INSERT INTO {} (id, aggregatetype, aggregateid, type, payload) VALUES (%s, 'order', %s, %s, %s)")

    with server.connect(name) as superuser:
        superuser.execute(f'ALTER DATABASE "{name}" OWNER TO {owner}')
        superuser.execute(f"CREATE SCHEMA sales AUTHORIZATION {owner}")
    login = server.dsn(name) if owner == "postgres" else server.dsn(name, owner, PASSWORD)
    connector: Connector | None = None
    with psycopg.connect(login, autocommit=True) as connection:
        for _ in range(2):  # it may run again
            connection.execute((tmp_path / f"{name}.sql").read_text())
        connection.execute(f"ALTER ROLE tailrace PASSWORD '{PASSWORD}'")

        def write() -> str:
            event = str(uuid.uuid4())
            connection.execute(
                insert.format(sql.SQL(quote_table(table))), (event, "o-1", "OrderPlaced", json.dumps(ORDER))
            )
            return event

        before = write()
        expected = [before] if start == "beginning" else []
        try:
            capsys.readouterr()
            with pytest.raises(SystemExit) as caught:
                main(["check", str(file), "--json"])
            output = capsys.readouterr().out
            assert caught.value.code == 0, output
            assert PASSWORD not in output
            states = {check["name"]: check["state"] for check in json.loads(output)["checks"]}
            assert states.pop("wal kept for slots") == "WARN"
            # This server does not have the lines for pg_hba.conf that init writes.
            assert states.pop("cluster copy") == "WARN"
            assert set(states.values()) == {"OK"}, output

            connector = Connector(file, tmp_path / "log")
            connector.says('"running"')
            expected.append(write())
            topic = f"shop.{name}"
            wait_until(
                lambda: [header(m, "id") for m in read_all(kafka.bootstrap, [topic])] == expected,
                20,
                what=f"the events; the log:\n{connector.log}",
            )
            capsys.readouterr()
            with pytest.raises(SystemExit) as caught:
                main(["verify", str(file), "--json"])
            output = capsys.readouterr().out
            assert (caught.value.code, json.loads(output)["clean"]) == (0, True), output
            assert connector.stop() == 0
        finally:
            if connector is not None and connector.running:
                connector.kill()
            _forget(server, name)


def _forget(server: PostgresServer, name: str) -> None:
    """Drops slot and role: the next case creates a role of the same name."""
    with server.connect(name) as superuser:

        def gone() -> bool:
            return not superuser.execute("SELECT FROM pg_replication_slots WHERE active").fetchall()

        wait_until(gone, what="the end of the session")
        superuser.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        superuser.execute("DROP OWNED BY tailrace")
        superuser.execute("DROP ROLE tailrace")
