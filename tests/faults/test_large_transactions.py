"""Row 28 of the fault matrix: transactions and rows far larger than a batch, in bounded memory (I9)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from helpers.shop import Connector, Shop
from helpers.tiers import mostly_slow
from tailrace import failpoints
from tailrace.positions.postgres import parse_lsn
from tailrace.testkit.oracle import WriteOutcome, WrittenEvent
from tailrace.testkit.stack import wait_until

ROWS = 300_000
KEYS = 50
LARGEST_RSS_MB = 145
"""The process itself takes about half of it; the transaction alone is larger."""

EVENTS = """
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
SELECT ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'order', 'order-' || n % %(keys)s,
       'OrderChanged',
       jsonb_build_object('order', 'order-' || n % %(keys)s, 'revision', n, 'amount', 1, 'currency', 'EUR',
                          'note', repeat('x', %(bytes)s))
FROM generate_series(1, %(rows)s) n
"""


def write(shop: Shop, rows: int, note: int) -> int:
    """Writes one transaction of `rows` rows with notes of `note` bytes; returns the LSN behind it."""
    statement = EVENTS
    for name, value in {"keys": KEYS, "bytes": note, "rows": rows}.items():
        statement = statement.replace(f"%({name})s", str(value))
    shop.execute(statement)
    shop.writer().written.extend(
        WrittenEvent(f"00000000-0000-4000-8000-{n:012x}", f"order-{n % KEYS}", n, True, WriteOutcome.COMMITTED)
        for n in range(1, rows + 1)
    )
    return parse_lsn(str(shop.execute("SELECT pg_current_wal_lsn()")[0][0]))


def peak_mb(connector: Connector) -> int:
    status = Path(f"/proc/{connector.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found, status
    return int(found[1]) // 1024


def published(connector: Connector) -> int:
    """Returns how many events the process has published according to its log."""
    lines = [json.loads(line) for line in connector.log.splitlines()]
    return sum(line["events"] for line in lines if line["event"] == "published")


def passes(shop: Shop, connector: Connector, lsn: int) -> None:
    """Waits until a position behind the transaction is stored, then checks memory and the oracle's verdict."""
    wait_until(
        lambda: (shop.positions()[-1].progress >= (2, lsn, 0)) or not connector.running,
        120,
        what=f"the end of the transaction; the log:\n{connector.log}",
    )
    assert peak_mb(connector) <= LARGEST_RSS_MB
    assert connector.stop() == 0
    verdict = shop.verdict()
    assert verdict.ok, verdict


@pytest.mark.slow
def test_a_large_transaction_killed_in_the_middle(shop: Shop) -> None:
    """It is published in pieces, each with its ordinal; the second run begins with the first unpublished row."""
    shop.start().stop()
    lsn = write(shop, ROWS, note=80)
    size = shop.execute("SELECT sum(pg_column_size(payload)) FROM outbox")[0][0]
    assert int(size) > 50_000_000
    assert shop.start(kill=f"{failpoints.AFTER_COMMIT}:7").ended(60) == -9
    stored = shop.positions()[-1]
    assert stored.cut is not None
    assert 0 < stored.cut.rows < ROWS
    connector = shop.start()
    passes(shop, connector, lsn)
    assert published(connector) == ROWS - stored.cut.rows


@pytest.mark.parametrize("start", mostly_slow(["now", "beginning"], ["now"]))
def test_batches_of_large_rows_are_limited_by_bytes(shop: Shop, start: str) -> None:
    """Few rows, each half as large as allowed: batches are limited by bytes, from the log and from the table."""
    shop.configure(source={"start": start})
    if start == "now":
        connector = shop.start()
        lsn = write(shop, 200, note=500_000)
    else:
        lsn = write(shop, 200, note=500_000)
        connector = shop.start()
    passes(shop, connector, lsn)
