"""A Postgres restored from a copy of its files: the same cluster and timeline, but another history after the copy."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from helpers.command import Tailrace
from helpers.recovery import apply, passed_all, plan, recover
from helpers.second_instance import copy_of
from helpers.shop import Shop, close_shop, open_shop
from tailrace import failpoints
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, wait_until

PAYLOAD = json.dumps({"order": "o", "revision": 1, "amount": 1, "currency": "EUR"})
INSERT = (
    "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
    "SELECT gen_random_uuid(), 'order', 'k' || n, 'OrderPlaced', %s FROM generate_series(1, %s) n"
)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer("16", choice=ServerChoice.LOCAL) as server:
        yield server


@pytest.fixture
def own(server: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Shop]:
    shop = open_shop(server, kafka, tmp_path)
    yield shop
    close_shop(shop)


def write(shop: Shop, rows: int, transactions: int = 1) -> None:
    for _ in range(transactions):
        shop.execute(INSERT, PAYLOAD, rows)


def published(shop: Shop) -> list[str]:
    return sorted(seen.id for seen in shop.published())


def all_published(shop: Shop) -> None:
    """Checks that each row of the table is published exactly once."""
    wait_until(lambda: shop.in_outbox() <= set(published(shop)), 60, what="the rows to be published")
    found = published(shop)
    assert len(found) == len(set(found))


def keep_copy(shop: Shop) -> Path:
    """Stops the server and copies its files; the server runs again afterwards."""
    shop.postgres.stop()
    copy = shop.postgres.data_dir.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    subprocess.run(["cp", "-a", str(shop.postgres.data_dir), str(copy)], check=True)
    shop.postgres.start()
    return copy


def put_back(shop: Shop, copy: Path) -> None:
    shop.postgres.stop()
    shutil.rmtree(shop.postgres.data_dir)
    subprocess.run(["cp", "-a", str(copy), str(shop.postgres.data_dir)], check=True)
    shop.postgres.start()


def next_xid(connection: psycopg.Connection[tuple[object, ...]]) -> int:
    found = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    assert found is not None
    return int(str(found[0]))


def pass_by(shop: Shop, lsn: int, xid: int) -> None:
    """Makes the server's log grow beyond `lsn`, and its transaction ids beyond `xid`."""
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        while next_xid(connection) <= xid:
            pass
    while int(shop.execute("SELECT pg_current_wal_lsn() - '0/0'")[0][0]) <= lsn:
        write(shop, 500)


@pytest.mark.slow
@pytest.mark.parametrize("window", ["", "1 GiB"])
def test_rows_behind_the_copy_are_not_skipped(own: Shop, window: str) -> None:
    """The log has grown beyond the stored position by the time of the start: only its content has changed."""
    own.configure(source={"start": "beginning", "replay_window": window} if window else {"start": "beginning"})
    connector = own.start()
    write(own, 1, 5)
    all_published(own)
    assert connector.stop() == 0
    copy = keep_copy(own)
    connector = own.start()
    write(own, 1, 100)
    all_published(own)
    # The position history has a snapshot that would contain the rows written after the restore.
    passed_all(own)
    assert connector.stop() == 0
    stored, before = own.positions()[-1].lsn, len(published(own))
    with psycopg.connect(own.dsn, autocommit=True) as connection:
        xid = next_xid(connection)
    put_back(own, copy)
    assert len(own.in_outbox()) == 5
    write(own, 1, 20)
    result = plan(own)
    assert result["case"]["code"] == "PositionAhead", result
    pass_by(own, stored, xid)
    missed = len(own.in_outbox()) - 5
    # Before any start has detected it.
    confirmed = own.confirmed_lsn()
    result = plan(own)
    assert result["case"] is not None, "the plan does not see that rows are missing"
    assert (result["case"]["code"], result["missed"], result["undecided"]) == ("LogDiverged", missed, 0), result
    if window:
        own.start(wait=False).failed("LogDiverged")
        own.start(wait=False).failed("LogDiverged")
    assert (own.confirmed_lsn(), len(published(own))) == (confirmed, before)
    # The new slot of a killed recovery begins after everything, and proves nothing about the old position.
    killed = recover(own, "apply", "--yes", kill=failpoints.SLOT_CREATED)
    assert killed.returncode == -9, killed.stderr
    apply(own)
    assert len(published(own)) == before + missed
    connector = own.start()
    write(own, 1)
    all_published(own)
    assert connector.stop() == 0
    # From now on it is proven: a start finds the last transaction at its position.
    connector = own.start()
    write(own, 1)
    all_published(own)
    assert connector.stop() == 0


def test_a_rewound_pipeline(own: Shop, tailrace: Tailrace) -> None:
    """The rewind target is before the copy, the old position is not. Both remedies of the error work."""
    own.configure(source={"start": "beginning", "replay_window": "1 GiB"})
    connector = own.start()
    write(own, 1, 5)
    all_published(own)
    assert connector.stop() == 0
    copy, back = keep_copy(own), own.published()[2].id
    connector = own.start()
    write(own, 1, 20)
    all_published(own)
    assert connector.stop() == 0
    stored = own.positions()[-1].lsn
    tailrace("position", "reset", str(own.file), "--to", f"event:{back}", "--yes")
    put_back(own, copy)
    pass_by(own, stored, 0)
    own.start(wait=False).failed("LogDiverged")
    result = plan(own)
    assert result["case"] is not None, "the plan does not see what the start stops at"
    assert result["case"]["code"] == "LogDiverged", result
    connector = own.start("--adopt")
    write(own, 1)
    wait_until(lambda: own.in_outbox() <= set(published(own)), 60, what="the rows to be published")
    assert connector.stop() == 0


def test_a_second_instance_on_a_copy_of_the_server(own: Shop) -> None:
    """The copy runs next to the server, and was written to: an instance that reads it must not wait to take over."""
    connector = own.start()
    write(own, 1, 5)
    all_published(own)
    assert connector.stop() == 0
    copy = keep_copy(own)
    first = own.start()
    write(own, 1, 5)
    all_published(own)
    with PostgresServer("16", choice=ServerChoice.LOCAL) as other:
        other.stop()
        settings = (other.data_dir / "tailrace.conf").read_text()
        shutil.rmtree(other.data_dir)
        subprocess.run(["cp", "-a", str(copy), str(other.data_dir)], check=True)
        (other.data_dir / "tailrace.conf").write_text(settings)
        other._parameters["password"] = conninfo_to_dict(own.dsn)["password"]
        other.start()
        dsn = make_conninfo(own.dsn, host=other.host, port=other.port)
        with psycopg.connect(dsn) as connection:
            connection.execute(INSERT, (PAYLOAD, 5000))
        second = copy_of(own, "copied", postgres=dsn)
        assert second.ended() == 3, second.log
        assert '"LogDiverged"' in second.log
        write(own, 1)
        all_published(own)
        assert first.running
        assert "Fenced" not in first.log
        assert first.stop() == 0
