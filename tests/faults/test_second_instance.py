"""Rows 79 and 87 of the fault matrix: a second instance waits for the first one to end, or fails alone (Postgres)."""

from __future__ import annotations

from pathlib import Path

from psycopg.conninfo import make_conninfo

from helpers.command import Tailrace
from helpers.second_instance import broken_seconds_are_harmless, copy_of, healthy, publishes, take_turns, undisturbed
from helpers.shop import Shop
from helpers.standby import open_pair
from tailrace.testkit.stack import KafkaBroker
from tailrace.testkit.stack.ports import free_port


def slot_is_free(shop: Shop) -> bool:
    return not shop.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s AND active", shop.slot)


def test_a_second_instance_takes_over_when_the_first_ends(shop: Shop, tailrace: Tailrace) -> None:
    take_turns(shop, tailrace)


def test_a_second_instance_that_cannot_work_does_not_affect_the_first(shop: Shop, tailrace: Tailrace) -> None:
    shop.execute("CREATE TABLE elsewhere (LIKE outbox INCLUDING ALL)")
    broken_seconds_are_harmless(
        shop,
        tailrace,
        {
            "dead port": ("SourceUnavailable", {"postgres": make_conninfo(shop.dsn, port=free_port())}),
            "other database": (
                "WrongLog",
                {"postgres": make_conninfo(shop.dsn, dbname="postgres"), "slot": shop.slot},
            ),
            "no such database": ("AccessRefused", {"postgres": make_conninfo(shop.dsn, dbname="nowhere")}),
            "unpublished table": ("PublicationBroken", {"table": "public.elsewhere"}),
        },
    )


def test_a_second_instance_on_the_old_primary_does_not_affect_the_first(
    kafka: KafkaBroker, tmp_path: Path, tailrace: Tailrace
) -> None:
    """Its settings still name the old primary, which was started again after the failover."""
    with open_pair("16", kafka, tmp_path) as pair:
        shop = pair.shop
        old = make_conninfo(shop.dsn, host=pair.primary.host, port=pair.primary.port)
        healthy(shop).stop()
        pair.standby.caught_up()
        pair.fail_over()
        shop.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", shop.slot)
        first = shop.start("--adopt")
        publishes(shop)
        pair.primary.start()
        second = copy_of(shop, "demoted", postgres=old)
        assert second.ended() == 3, second.log
        assert '"WrongLog"' in second.log
        undisturbed(shop, first)


READS_SLOWLY = """
import time
from pathlib import Path
from tailrace.sources.postgres.source import PostgresSource
read = PostgresSource._read_table
def slow(self, *limits):
    while not Path({go!r}).exists():
        time.sleep(0.05)
    return read(self, *limits)
PostgresSource._read_table = slow
from tailrace.cli import main
main()
"""


def test_no_instance_takes_over_during_the_snapshot(shop: Shop) -> None:
    """The slot is not in use yet: only Kafka shows that the first instance is alive."""
    shop.configure(source={"start": "beginning"})
    writer = shop.writer()
    writer.transaction(rollback=False)
    go, script = shop.folder / "go", shop.folder / "slow.py"
    script.write_text(READS_SLOWLY.format(go=str(go)))
    first = shop.start(program=[str(script)])
    assert slot_is_free(shop)
    second = shop.start(wait=False)
    second.says('"PipelineBusy"')
    go.touch()
    assert shop.caught_up().ok
    undisturbed(shop, first)
    assert second.running
    assert '"running"' not in second.log
