"""A transaction that the server cannot decode is skipped by a person, and nothing else with it."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from helpers.command import Tailrace
from helpers.recovery import apply, plan, recover
from helpers.shop import Shop, close_shop, open_shop
from tailrace.testkit.stack import KafkaBroker, PostgresServer, wait_until
from tailrace.testkit.topic_reader import read_all

UNTRANSLATABLE = "convert_from('\\xa9a1', 'EUC_JP')"
"""A database in EUC_JP with a character that UTF-8 does not have."""
INSERT = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (%s, 'order', 'k', 'Free', '{}')"


@pytest.fixture
def japanese(postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Shop]:
    """A shop whose publication has a second table."""
    shop = open_shop(postgres, kafka, tmp_path, encoding="EUC_JP")
    shop.configure(schemas={"unknown": "pass"}, limits={"batch_records": 2})
    shop.execute(f"CREATE PUBLICATION {shop.slot} FOR TABLE outbox, orders WITH (publish = 'insert')")
    yield shop
    close_shop(shop)


@pytest.mark.slow
def test_a_transaction_that_cannot_be_decoded_is_skipped_by_command(japanese: Shop, tailrace: Tailrace) -> None:
    """Rows before it are published, then its other rows from the table, once, despite kills, then the rest."""
    shop = japanese
    connector = shop.start()
    names = [str(uuid.uuid4()) for _ in range(7)]
    before, first, last, under_savepoint, changed, deleted, after = names
    with psycopg.connect(shop.dsn) as connection:
        connection.execute(INSERT, [before])
        connection.commit()
        connection.execute(INSERT, [first])
        connection.execute(f"INSERT INTO orders VALUES ({UNTRANSLATABLE}, 1, 1)")  # type: ignore[arg-type]
        connection.execute(INSERT, [last])
        connection.execute(INSERT, [changed])
        with connection.transaction():
            connection.execute(INSERT, [under_savepoint])
        connection.commit()
        connection.execute("UPDATE outbox SET traceparent = 'x' WHERE id = %s", [changed])
        connection.execute(INSERT, [deleted])
        connection.commit()
        connection.execute("DELETE FROM outbox WHERE id = %s", [deleted])
        connection.execute(INSERT, [after])
        connection.commit()
    connector.failed("UndecodableTransaction")
    assert [seen.id for seen in shop.published()] == [before, first]
    xid = shop.execute("SELECT xmin::text::int FROM outbox WHERE id = %s", first)[0][0]

    result = plan(shop)
    assert (result["case"]["code"], result["missed"], result["undecided"]) == ("UndecodableTransaction", 3, 0), result
    assert f"skip the transaction {xid}" in result["steps"][0]
    assert recover(shop, "apply", "--yes", kill="skip-begun").returncode == -signal.SIGKILL
    shop.start(wait=False).failed("RecoveryUnfinished")
    assert recover(shop, "apply", "--yes", kill="after-commit").returncode == -signal.SIGKILL
    assert len(shop.published()) == 4, "the kill was to come between two batches"
    apply(shop)

    shop.start()
    wait_until(lambda: after in [seen.id for seen in shop.published()], 60, what="the row behind")
    published = [seen.id for seen in shop.published()]
    assert sorted(published) == sorted(names)
    assert (published[:2], published[-2:]) == ([before, first], [deleted, after])
    (letter,) = [json.loads(letter.value()) for letter in read_all(shop.kafka.bootstrap, [shop.letters])]
    assert json.loads(letter["document"])["transaction"] == xid
    assert "EUC_JP" in letter["why"]
    tailrace("verify", shop.file)
