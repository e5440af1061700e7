"""The examples as their READMEs describe them: each runs to its end with one command, and its tests pass."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.projections import ProjectionTester
from tailrace.testkit.stack import KafkaBroker, PostgresServer

ROOT = Path(__file__).parents[2]
TIMEOUT = 170.0
OVERLOOKING = """
import sys
from examples import run
from examples.order_summary.oracle import OrderSummary

seen = OrderSummary.rows
OrderSummary.rows = lambda self: dict(list(seen(self).items())[1:])
run.CATCH_UP_TIMEOUT = 15
sys.exit(run.main(["order_summary", "--seconds", "1"]))
"""


def python(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "seen"),
    [
        ("order_summary", ["worker killed", r"order-7-\d+ .* EUR, changed \d+ times"]),
        ("user_cards", ["3 users deleted", r"user-7-\d+ .* Oslo, changed \d+ times", r"user-7-\d+ +is gone"]),
        ("streams_outbox", ["connector and worker killed", r"team-\d .* payouts, .* EUR"]),
        ("storage_outbox", ["8 writers at once", r"store-7-\d+ .* numbers up to \d+, 0 wrong"]),
        (
            "user_outbox",
            [
                r"connector and worker killed",
                r"\d+ events committed, \d+ rolled back; on Kafka \d+ records, 1 dead letters, .*: as it must be",
                r"statuses: \d+ published, 1 failed: as it must be",
                r"\d+ users, 2 deleted, with an event for each revision: as it must be",
                r"processed_events: \d+ applied, 4 skipped as stale: as it must be",
                r"\d+ published documents deleted, and nothing published by that: as it must be",
            ],
        ),
    ],
)
def test_runs_to_its_end_with_one_command(example: str, seen: list[str]) -> None:
    ended = python("-m", "examples.run", example, "--seconds", "4", "--seed", "7")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for pattern in seen:
        assert re.search(pattern, ended.stdout), ended.stdout
    verdict = re.search(r"(\d+) events, (\d+) rows: the projection is what the outbox says", ended.stdout)
    assert verdict, ended.stdout
    assert int(verdict[1]) > int(verdict[2]) > 0


@pytest.mark.slow
def test_the_chain_indexer_runs_to_its_end_with_one_command() -> None:
    ended = python("-m", "examples.run", "chain_indexer", "--seconds", "4", "--seed", "7")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "worker killed before the commit of a block" in ended.stdout
    assert "worker killed after the commit of a block" in ended.stdout
    assert re.search(r"120 events, \d+ blocks, \d tokens: every byte is that of a fold from the start", ended.stdout)


@pytest.mark.slow
def test_the_transaction_mirror_runs_to_its_end_with_one_command() -> None:
    ended = python("-m", "examples.run", "transaction_mirror", "--seconds", "3", "--seed", "7")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "node killed (SIGKILL)" in ended.stdout
    assert re.search(r"MongoDB is away: transactions are accepted, [1-9]\d* wait in the outbox", ended.stdout)
    assert "all fields and raw bytes compared; 5 indexes" in ended.stdout
    assert re.search(r"[1-9]\d* confirmed and deleted after 2 s; [1-9]\d* stay", ended.stdout)
    assert "transactions: accepted, mirrored, confirmed, deleted: as it must be" in ended.stdout


@pytest.mark.slow
def test_a_projection_that_lost_a_row_is_reported(postgres: PostgresServer, kafka: KafkaBroker) -> None:
    """A row that the comparison skips simulates a lost one."""
    theirs = {PostgresServer.VARIABLE: postgres.dsn(), KafkaBroker.VARIABLE: kafka.bootstrap}
    ended = python("-c", OVERLOOKING, **theirs)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert re.search(r"order-\d+-\d+: missing; by the outbox: .* EUR", ended.stdout), ended.stdout
    assert "1 differ" in ended.stdout


def test_without_a_broker(database: str) -> None:
    """Runs the tests of the example as its README describes."""
    ended = python("-m", "pytest", "examples/order_summary", "-q", SHOP_DB=database)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 passed" in ended.stdout


@pytest.mark.parametrize("page", ["README.md", "docs/projections.md"])
def test_the_projection_of_the_docs_works(page: str, database: str) -> None:
    """Runs the first code block with a projection unchanged, except for the database."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    source = next(block for block in blocks if "projection_app(" in block)
    assert source.count("postgresql://localhost/shop") == 1
    shown: dict[str, Any] = {}
    exec(source.replace("postgresql://localhost/shop", database), shown)
    # Names that both pages use.
    order = {"order": "o-1", "amount": 12, "order_id": "o-1", "total_cents": 1200}

    async def send_events() -> None:
        async with ProjectionTester(shown["orders"]) as tester:
            await tester.send("OrderPlaced", order, key="o-1")
            for _ in range(2):
                await tester.send("OrderChanged", order, key="o-1", event_id="change")
            assert tester.dead_letters == []

    asyncio.run(send_events())
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT id, changes FROM order_summary.orders").fetchall() == [("o-1", 1)]
