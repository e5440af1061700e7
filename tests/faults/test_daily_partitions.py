"""An outbox partitioned by day: partitions are created ahead and dropped behind, under load and across kills.

The service takes its day from a sequence, so that a test makes days pass without waiting.
"""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta

import pytest

from helpers.command import Tailrace
from helpers.recovery import apply, goes_on, plan, slot_dropped, work
from helpers.shop import Shop
from tailrace import failpoints
from tailrace.testkit.stack import wait_until
from tailrace.testkit.workload.writer import Mix

DAILY = (
    "DROP TABLE outbox",
    "CREATE SEQUENCE today",
    "CREATE FUNCTION written_at() RETURNS timestamptz LANGUAGE sql AS "
    "$$ SELECT clock_timestamp() + (last_value - {back}) * interval '1 day' FROM today $$",
    "CREATE TABLE outbox (id uuid, aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, "
    "payload jsonb, traceparent text, created_at timestamptz NOT NULL DEFAULT written_at(), "
    "PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at)",
)


class Days:
    """The partitions of a shop's outbox, one for each day."""

    def __init__(self, shop: Shop, back: int) -> None:
        """The first day was `back` days ago."""
        self._shop = shop
        self._start = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=back + 1)
        for statement in DAILY:
            shop.execute(statement.format(back=back + 1))
        self.first = self.today = 1
        self._create(1)

    def pass_one(self) -> None:
        """The next day begins, in a partition that was created before it."""
        self._create(self.today + 1)
        self.today += 1
        self._shop.execute("SELECT setval('today', %s)", self.today)

    def drop(self, detach: str = "") -> None:
        """Drops the oldest partition, perhaps after it was detached."""
        name = f"outbox_{self.first}"
        if detach:
            self._shop.execute(f"ALTER TABLE outbox DETACH PARTITION {name} {detach.replace('plainly', '')}")
        self._shop.execute(f"DROP TABLE {name}")
        self.first += 1

    def start_of(self, day: int) -> str:
        return (self._start + timedelta(days=day)).isoformat()

    def _create(self, day: int) -> None:
        within = " TO ".join(f"('{self.start_of(each)}')" for each in (day, day + 1))
        if day % 2:
            self._shop.execute(f"CREATE TABLE outbox_{day} PARTITION OF outbox FOR VALUES FROM {within}")
            return
        # As tools do it that want no lock on the outbox.
        self._shop.execute(f"CREATE TABLE outbox_{day} (LIKE outbox INCLUDING ALL)")
        self._shop.execute(f"ALTER TABLE outbox ATTACH PARTITION outbox_{day} FOR VALUES FROM {within}")


@pytest.fixture
def days(shop: Shop) -> Days:
    return Days(shop, back=30)


def wait_for_writes(shop: Shop, more: int = 12) -> None:
    """Waits until the writers have written some more, into the partition of today."""
    before = sum(len(writer.written) for writer in shop.writers)
    wait_until(lambda: sum(len(writer.written) for writer in shop.writers) >= before + more, 60, what="writes")


def right(shop: Shop) -> None:
    verdict = shop.caught_up()
    assert verdict.ok, verdict


@pytest.mark.slow
def test_days_pass_under_load(shop: Shop, days: Days, tailrace: Tailrace) -> None:
    """Old partitions are dropped in each way, also before their rows are published, and across a kill -9."""
    connector = shop.start()
    for seed in range(2):
        shop.writer(seed, mix=Mix(savepoint=0.3)).start(rate=100)
    for detach in ("", "plainly", "CONCURRENTLY"):
        wait_for_writes(shop)
        days.pass_one()
        wait_for_writes(shop)
        days.drop(detach)
    connector.process.send_signal(signal.SIGSTOP)
    wait_for_writes(shop)
    days.pass_one()
    days.drop("plainly")
    connector.process.send_signal(signal.SIGCONT)
    wait_for_writes(shop)
    connector.kill()
    wait_for_writes(shop)
    days.pass_one()
    days.drop()
    assert shop.start(kill=f"{failpoints.AFTER_PRODUCE}:2").ended() == -9
    wait_for_writes(shop)
    days.pass_one()
    days.drop()
    connector = shop.start()
    wait_for_writes(shop)
    for writer in shop.writers:
        writer.stop()
    right(shop)
    assert days.first == days.today
    assert "waiting" not in connector.log, connector.log
    verified = tailrace("verify", shop.file)
    assert verified["clean"], verified
    assert all(each["state"] != "FAIL" for each in tailrace("check", shop.file)["checks"])


@pytest.mark.slow
def test_the_first_read_of_many_days(shop: Shop, days: Days) -> None:
    """Killed in between; partitions whose rows are published are dropped, and new ones are created, before it ends."""
    shop.configure(source={"start": "beginning"}, limits={"batch_records": 10})
    writer = shop.writer()
    for _ in range(5):
        for _ in range(12):
            writer.transaction(rollback=False)
        days.pass_one()
    assert shop.start(kill=f"{failpoints.TABLE_ROWS_READ}:6").ended() == -9
    published = {seen.id for seen in shop.published()} | {seen.id for seen in shop.dead_lettered()}
    ((oldest,),) = shop.execute("SELECT array_agg(id::text) FROM outbox_1")
    assert published >= set(oldest), "the rows of the first day are read first"
    days.drop("plainly")
    writer.transaction(rollback=False)
    days.pass_one()
    writer.transaction(rollback=False)
    shop.start()
    days.pass_one()
    writer.transaction(rollback=False)
    right(shop)


@pytest.mark.slow
def test_recovery_of_a_partitioned_outbox(shop: Shop) -> None:
    """The slot is lost, with rows in two partitions; a third, with published rows, was dropped meanwhile."""
    days = Days(shop, back=0)
    connector = shop.start()
    shop.writer(mix=Mix(savepoint=0.3, rollback=0.2))
    work(shop)
    days.pass_one()
    work(shop)
    right(shop)
    assert connector.stop() == 0
    days.drop()
    slot_dropped(shop)
    days.pass_one()
    work(shop)
    planned = plan(shop)
    assert (planned["missed"], planned["undecided"]) == (18, 0), planned
    assert apply(shop)["published"] == 18
    goes_on(shop)


@pytest.mark.slow
def test_archived_days_are_dropped(shop: Shop, days: Days, tailrace: Tailrace) -> None:
    """Rows are archived; then their partition is dropped instead of deleting them. Later runs and verify accept it."""
    (shop.folder / "cold").mkdir()
    shop.configure(archive={"url": f"file://{shop.folder}/cold"})
    shop.start()
    writer = shop.writer()
    for _ in range(3):
        for _ in range(4):
            writer.transaction(3, rollback=False)
        days.pass_one()
    right(shop)
    kept = tailrace("archive", "write", shop.file, "--before", days.start_of(3), "--keep")
    assert (kept["rows"], kept["deleted"]) == (24, 0), kept
    days.drop("plainly")
    done = tailrace("archive", "write", shop.file, "--before", days.start_of(4))
    assert (done["rows"], done["deleted"], done["finished"]) == (12, 12, 12), done
    assert tailrace("verify", shop.file)["clean"]
    assert tailrace("archive", "check", shop.file)["clean"]
    assert shop.connectors[-1].running
