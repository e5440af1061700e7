"""Row 11 of the fault matrix: the database was dumped and restored into another cluster."""

from __future__ import annotations

import subprocess

from helpers.recovery import apply, goes_on, plan, ran_before, work
from helpers.shop import Shop
from tailrace.testkit.stack import PostgresServer, ServerChoice


def move(shop: Shop, server: PostgresServer) -> None:
    """Copies the shop's database to another cluster; its service writes there from now on."""
    assert server.bin_dir is not None
    dump = subprocess.run([server.bin_dir / "pg_dump", shop.dsn], capture_output=True, check=True)
    shop.dsn = server.create_database(shop.name)
    restored = [server.bin_dir / "psql", "--quiet", "--set=ON_ERROR_STOP=1", shop.dsn]
    subprocess.run(restored, input=dump.stdout, capture_output=True, check=True)
    shop.configure(source={"postgres": shop.dsn})
    shop.writers[0].stop()
    # A new writer with other keys.
    shop.writer()
    shop.writers.reverse()


def test_another_cluster_with_the_same_rows(shop: Shop) -> None:
    """It is another log, even if its tables are the same: refused, and not recovered automatically."""
    shop.configure(source={"on_log_loss": "recover"})
    ran_before(shop)
    work(shop)
    with PostgresServer("16", choice=ServerChoice.LOCAL) as server:
        move(shop, server)
        work(shop)
        connector = shop.start(wait=False)
        connector.failed("WrongLog")
        assert "system_id" in connector.log
        assert '"recovering"' not in connector.log, "it may as well be a mistake in the settings"
        planned = plan(shop)
        assert planned["case"]["code"] == "WrongLog", planned
        assert (planned["missed"], planned["undecided"]) == (18, 0), planned
        assert any("another cluster" in note for note in planned["notes"]), planned
        apply(shop)
        goes_on(shop)
        for each in shop.writers:
            each.stop()
