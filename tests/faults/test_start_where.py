"""`source.start_where` on Postgres: a table with rows that an earlier publisher has published.

The connector is killed during its first read, while rows are inserted, changed and marked. Exactly the pending rows are
published, each once and in order, and no command takes the others for missing ones.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import recovery as recovering
from helpers.command import Tailrace
from helpers.service import Service
from helpers.shop import Shop, close_shop, open_shop
from tailrace import failpoints
from tailrace.errors import StartWhereInvalid
from tailrace.positions.base import first_read_of
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.start_where import require_valid
from tailrace.testkit.stack import KafkaBroker, PostgresServer, wait_until
from tailrace.testkit.topic_reader import stored_positions

PAYLOAD = '{"order": "o", "revision": 1, "amount": 1, "currency": "EUR"}'
PENDING = "processed IS NOT TRUE"
FILL = """
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, created_at, processed)
SELECT gen_random_uuid(), 'order', 'k' || n %% 7, 'OrderPlaced', %s,
       now() - interval '100 days' + n * interval '1 ms', n %% %s <> 0
FROM generate_series(1, %s) AS n
"""
KILLS = (
    f"{failpoints.TABLE_ROWS_READ}:4",
    f"{failpoints.AFTER_PRODUCE}:2",
    f"{failpoints.AFTER_COMMIT}:2",
    f"{failpoints.TABLE_ROWS_READ}:1",
)


def fill(shop: Shop, rows: int, *, one_in: int) -> None:
    """Creates the table of a polling publisher, in which one row of `one_in` is pending."""
    shop.execute("ALTER TABLE outbox ADD COLUMN processed boolean DEFAULT false, ADD COLUMN attempts int")
    shop.execute(FILL, PAYLOAD, one_in, rows)
    shop.configure(source={"start": "beginning", "start_where": PENDING}, limits={"batch_records": 10})


def ids(shop: Shop, condition: str) -> list[tuple[str, str]]:
    """Returns keys and ids of the rows in the order of their creation."""
    return shop.execute(f"SELECT aggregateid, id::text FROM outbox WHERE {condition} ORDER BY created_at, id")


def insert(shop: Shop, *, processed: bool = False) -> tuple[str, str]:
    """Inserts a row while the first read is under way; the stream sends it with any status."""
    event = shop.insert(PAYLOAD, key="k1")
    if processed:
        shop.execute("UPDATE outbox SET processed = true WHERE id = %s", event)
    return "k1", event


def published(service: Service) -> list[tuple[str, str]]:
    return [(record.key, record.id) for record in service.published()]


def by_key(pairs: list[tuple[str, str]]) -> dict[str, list[str]]:
    return {key: [event for its, event in pairs if its == key] for key in dict(pairs)}


def killed(service: Service, at: str) -> None:
    assert service.start(kill=at).ended() == -signal.SIGKILL
    seen = published(service)
    assert len(seen) == len(set(seen))


def arrives(service: Service, expected: list[tuple[str, str]]) -> None:
    """Waits until these events are published, each once, and in this order for each key."""
    wait_until(lambda: len(published(service)) >= len(expected), 120, what=f"them:\n{service.connectors[-1].log}")
    assert by_key(published(service)) == by_key(expected)


@pytest.mark.slow
def test_exactly_the_pending_rows_are_published(shop: Shop, tailrace: Tailrace, tmp_path: Path) -> None:
    shop.configure(archive={"url": f"file://{tmp_path / 'archive'}"}, kafka={"offsets_topic": f"{shop.name}.offsets"})
    (tmp_path / "archive").mkdir()
    fill(shop, 600, one_in=10)
    pending = ids(shop, PENDING)
    assert len(pending) == 60
    check = {each["name"]: each for each in tailrace("check", shop.file)["checks"]}["start_where"]
    assert (check["state"], "publishes 60 rows and leaves out 540" in check["found"]) == ("OK", True), check
    killed(shop, failpoints.SLOT_CREATED)
    killed(shop, KILLS[0])
    done = published(shop)
    assert 0 < len(done) < 60
    later = [insert(shop), insert(shop, processed=True)]
    # Published rows that are marked, and pending ones that are touched: their transaction ids are new.
    shop.execute("UPDATE outbox SET processed = true WHERE id::text = ANY (%s)", [event for _, event in done])
    shop.execute("UPDATE outbox SET attempts = 1 WHERE id::text = ANY (%s)", [event for _, event in pending[-20:]])
    # A person marks two pending rows as done: they are not published.
    marked = pending[-2:]
    shop.execute("UPDATE outbox SET processed = true WHERE id::text = ANY (%s)", [event for _, event in marked])
    for kill in KILLS[1:3]:
        killed(shop, kill)
        later.append(insert(shop))
    shop.configure(source={"start_where": "processed = false"})
    shop.start(wait=False).failed("StartWhereChanged", exit_code=2)
    assert tailrace("check", shop.file, code=1)["checks"][-1]["name"] == "start"
    shop.configure(source={"start_where": PENDING})
    connector = shop.start()
    later.append(insert(shop))
    arrives(shop, [*pending[:-2], *later])
    # Now the setting has no effect any more; what the first read left out is known from the position.
    assert connector.stop() == 0
    del shop.settings["source"]["start_where"]
    shop.configure()
    connector = shop.start()
    last = insert(shop)
    arrives(shop, [*pending[:-2], *later, last])
    found = tailrace("verify", shop.file)
    assert (found["published"], found["before_start"], found["missing"]) == (58 + 6, 542, 0), found
    plan = tailrace("replay", "plan", shop.file, "--from", "oldest", "--from-table", "--output", tmp_path / "plan.json")
    # Two of them were changed since: by its transaction a changed row counts as new.
    assert plan["figures"]["events"] == 58 + 6 + 2
    assert any("start_where" in note for note in plan["notes"])
    assert tailrace("archive", "write", shop.file, "--before", "90d", "--dry-run")["rows"] == 58 + 2
    assert connector.stop() == 0
    shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
    missed = insert(shop)
    planned = recovering.plan(shop)
    assert (planned["missed"], planned["undecided"], planned["left_out"]["left_out"]) == (1, 0, 542), planned
    assert recovering.apply(shop)["published"] == 1
    shop.configure(source={"replay_window": "1 GiB"})
    connector = shop.start()
    arrives(shop, [*pending[:-2], *later, last, missed, insert(shop)])
    assert tailrace("verify", shop.file)["before_start"] == 542
    assert connector.stop() == 0
    tailrace("position", "reset", shop.file, "--to", "oldest", "--yes")
    assert first_read_of(stored_positions(shop.kafka.bootstrap, shop.name, f"{shop.name}.offsets")[-1]) is not None


@pytest.mark.parametrize("recovers", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rows_changed_during_a_read_in_transaction_order(shop: Shop, recovers: bool) -> None:
    """Without a time, rows are read in the order of their transactions, and a changed row has lost its place."""
    fill(shop, 400, one_in=5)
    shop.settings["outbox"] = {}
    shop.configure()
    pending = ids(shop, PENDING)
    killed(shop, KILLS[0])
    shop.execute(
        "UPDATE outbox SET processed = true WHERE id::text = ANY (%s)", [event for _, event in published(shop)]
    )
    later = insert(shop)
    killed(shop, KILLS[2])
    unpublished = sorted(set(pending) - set(published(shop)))
    shop.execute("UPDATE outbox SET attempts = 1 WHERE id = %s", unpublished[0][1])
    shop.start(wait=False).failed("TableRewritten")
    if not recovers:
        return
    planned = recovering.plan(shop)
    rest = 81 - len(published(shop))
    assert (planned["missed"], planned["undecided"], planned["left_out"]["left_out"]) == (rest, 0, 320), planned
    recovering.apply(shop)
    shop.start()
    wait_until(lambda: len(published(shop)) >= 81, 60, what="the rest")
    assert sorted(published(shop)) == sorted([*pending, later])


@pytest.mark.slow
def test_a_lost_position_publishes_nothing_that_was_processed(shop: Shop) -> None:
    """Then it is not known what the first read left out, and a person decides."""
    shop.configure(kafka={"offsets_topic": f"{shop.name}.offsets"})
    fill(shop, 40, one_in=4)
    connector = shop.start()
    arrives(shop, ids(shop, PENDING))
    assert connector.stop() == 0
    recovering.offsets_deleted(shop, writes=False)
    planned = recovering.plan(shop)
    assert (planned["missed"], planned["undecided"]) == (0, 30), planned
    planned = recovering.plan(shop, "--since", "1d")
    assert (planned["missed"], planned["undecided"]) == (0, 0), planned


@pytest.mark.parametrize("where", ["", "processed IS NOT TRUE AND attempts IS NULL"], ids=["default", "given"])
def test_row_marks_after_a_first_read_of_pending_rows(shop: Shop, where: str) -> None:
    """With row marks, pending rows are the default; a row that was left out is never marked as published.

    The first read is killed with marks on, too: none is written before it is complete.
    """
    fill(shop, 40, one_in=4)
    shop.execute("UPDATE outbox SET attempts = 9 WHERE id IN (SELECT id FROM outbox WHERE NOT processed LIMIT 3)")
    pending = ids(shop, where or PENDING)
    left = [] if not where else ids(shop, "attempts = 9")
    assert len(left) == (3 if where else 0)
    shop.configure(source={"start_where": where}, outbox={"mark_columns": {"processed": "processed"}})
    if where:
        # Marks that are switched on later are written for all rows that were published before.
        connector = shop.start()
        arrives(shop, pending)
        assert connector.stop() == 0
    shop.configure(marks="rows", limits={"batch_records": 3})
    if not where:
        for kill in (f"{failpoints.TABLE_ROWS_READ}:3", f"{failpoints.AFTER_COMMIT}:1"):
            killed(shop, kill)
            assert 0 < len(published(shop)) < len(pending)
            assert ids(shop, "NOT processed") == pending
    shop.start()
    arrives(shop, [*pending, insert(shop)])
    wait_until(lambda: len(ids(shop, "NOT processed")) <= len(left), 60, what="the marks")
    insert(shop)
    wait_until(lambda: len(ids(shop, "NOT processed")) <= len(left), 60, what="the mark of a later row")
    assert ids(shop, "NOT processed") == left


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("nothing = 1", 'column "nothing" does not exist'),
        ("attempts", "boolean"),
        ("payload = 'a' AND", "syntax error"),
        ("random() < 0.5", "the function random"),
        ("created_at > now()", "the function now"),
        ("outbox.processed", "FROM-clause"),
        ("processed = false", "NULL"),
        ("1 / attempts > 0", "division by zero"),
        ("unsteady(id)", "the function unsteady"),
    ],
)
def test_a_predicate_is_checked_before_anything_runs(table: Shop, where: str, why: str) -> None:
    with PgConnection(table.dsn, replication=False, timeout=30) as link:
        with pytest.raises(StartWhereInvalid) as caught:
            require_valid(link, "public.outbox", where, every_row=True)
        assert why.lower() in caught.value.why.lower()
        require_valid(link, "public.outbox", PENDING, every_row=True)


@pytest.fixture(scope="module")
def table(postgres: PostgresServer, kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One table for all predicates, in which a row has no status."""
    shop = open_shop(postgres, kafka, tmp_path_factory.mktemp("predicates"))
    fill(shop, 3, one_in=2)
    shop.execute("UPDATE outbox SET processed = NULL, attempts = 0")
    shop.execute("CREATE FUNCTION unsteady(uuid) RETURNS boolean LANGUAGE sql VOLATILE AS 'SELECT true'")
    yield shop
    close_shop(shop)


def test_a_predicate_that_cannot_be_used_creates_nothing(table: Shop, tailrace: Tailrace) -> None:
    table.configure(source={"start_where": "processed = false"})
    table.start(wait=False).failed("StartWhereInvalid", exit_code=2)
    assert table.confirmed_lsn() is None
    failed = [each["name"] for each in tailrace("check", table.file, code=1)["checks"] if each["state"] == "FAIL"]
    assert failed == ["start_where"]


@pytest.mark.slow
def test_a_hundred_thousand_processed_rows(shop: Shop, tailrace: Tailrace) -> None:
    """The first read is killed at every step while a service writes, and its rows are marked."""
    fill(shop, 101_000, one_in=101)
    shop.configure(limits={"batch_records": 50})
    pending = ids(shop, PENDING)
    assert len(pending) == 1000
    later = []
    killed(shop, failpoints.SLOT_CREATED)
    for number, kill in enumerate(KILLS * 2):
        killed(shop, kill)
        later += [insert(shop, processed=n == 1) for n in range(5)]
        done = [event for _, event in published(shop)]
        shop.execute("UPDATE outbox SET processed = true WHERE id::text = ANY (%s)", done)
        shop.execute("UPDATE outbox SET attempts = %s WHERE id::text = %s", number, pending[-1 - number][1])
    assert shop.positions()[-1].table_read is not None
    shop.start()
    later += [insert(shop) for _ in range(5)]
    arrives(shop, [*pending, *later])
    found = tailrace("verify", shop.file)
    assert (found["published"], found["before_start"], found["missing"]) == (1045, 100_000, 0), found
