"""How soon a pipeline continues after an outage: row 47 of the fault matrix and similar ones.

No clock is read: where a wait must be cut short, waits are made so long that the test would fail otherwise.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from helpers.broken_kafka import HASTY, IMPATIENT
from helpers.shop import Shop, close_shop, open_shop
from helpers.users import close_users, open_users
from tailrace.testkit.stack import KafkaBroker, MongoServer, PostgresServer, ServerChoice, wait_until
from tailrace.testkit.stack.ports import free_port

# Makes every delay before an attempt ten minutes long, as after an outage of hours.
PATIENT = """
from tailrace import backoff
backoff.delay = lambda attempt, **_: 600.0
from tailrace.cli import main
main()
"""


@pytest.fixture
def patient(tmp_path: Path) -> list[str]:
    script = tmp_path / "patient.py"
    script.write_text(PATIENT)
    return [str(script)]


@pytest.mark.slow
def test_a_pipeline_continues_at_once_when_kafka_is_back(
    postgres: PostgresServer, tmp_path: Path, patient: list[str]
) -> None:
    with KafkaBroker(properties=HASTY, choice=ServerChoice.LOCAL) as kafka:
        shop = open_shop(postgres, kafka, tmp_path)
        try:
            shop.configure(kafka={"settings": IMPATIENT})
            connector = shop.start(program=patient)
            shop.writer().transaction(rollback=False)
            assert shop.caught_up().ok
            kafka.kill()
            shop.writers[0].transaction(rollback=False)
            connector.says('"no answer"')
            kafka.start()
            verdict = shop.caught_up()
            assert verdict.ok, (verdict, connector.log)
            assert connector.running, connector.log
        finally:
            close_shop(shop)


def test_a_pipeline_continues_at_once_when_postgres_is_back(
    kafka: KafkaBroker, tmp_path: Path, patient: list[str]
) -> None:
    with PostgresServer("16", choice=ServerChoice.LOCAL) as postgres:
        shop = open_shop(postgres, kafka, tmp_path)
        try:
            connector = shop.start(program=patient)
            postgres.kill()
            connector.says('"no answer"')
            postgres.start()
            shop.writer().transaction(rollback=False)
            verdict = shop.caught_up()
            assert verdict.ok, (verdict, connector.log)
        finally:
            close_shop(shop)


@pytest.mark.slow
def test_a_pipeline_continues_at_once_when_mongodb_is_back(
    kafka: KafkaBroker, tmp_path: Path, patient: list[str]
) -> None:
    with MongoServer(choice=ServerChoice.LOCAL) as mongo:
        users = open_users(mongo, kafka, tmp_path)
        users.configure(source={"link_timeout": 2})
        try:
            connector = users.start(program=patient)
            mongo.kill()
            connector.says('"no answer"')
            mongo.start()
            users.writer().transaction(rollback=False)
            verdict = users.caught_up()
            assert verdict.ok, (verdict, connector.log)
        finally:
            close_users(users)


def test_delays_do_not_grow_while_attempts_make_progress(shop: Shop) -> None:
    """Each attempt publishes something before it fails."""
    connector = shop.start()
    writer = shop.writer()
    for round_ in range(1, 5):
        writer.transaction(rollback=False)
        assert shop.caught_up().ok
        shop.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", shop.slot
        )
        wait_until(lambda before=round_: len(connector.waits) == before, 60, what=f"a wait:\n{connector.log}")  # type: ignore[misc]
    assert [each["attempt"] for each in connector.waits] == [1, 1, 1, 1]
    writer.transaction(rollback=False)
    assert shop.caught_up().ok


def test_delays_grow_during_a_long_outage(shop: Shop) -> None:
    """A stop also ends a delay."""
    shop.start().stop()
    shop.configure(source={"postgres": make_conninfo(shop.dsn, host="127.0.0.1", port=free_port())})
    connector = shop.start(wait=False)
    wait_until(lambda: len(connector.waits) == 3, 60, what=f"three waits:\n{connector.log}")
    assert [each["attempt"] for each in connector.waits] == [1, 2, 3]
    assert connector.stop() == 0
