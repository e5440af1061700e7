"""`tailrace check` on real servers: it finds what would stop a pipeline, shows the fix, and changes nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer

from helpers.shop import Shop, close_shop, open_shop
from tailrace.check import health
from tailrace.check import postgres as preflight_postgres
from tailrace.cli import main
from tailrace.positions.base import to_stored
from tailrace.positions.mongo import ClusterTime, StreamIdentity, TokenPosition
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, wait_until

VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'
PASSWORD = "check-s3cret"


class Report:
    """The checks by name."""

    def __init__(self, code: object, output: dict[str, Any]) -> None:
        self.code = code
        self.ok = output["ok"]
        self.checks = {check["name"]: check for check in output["checks"]}

    def state(self, name: str) -> str:
        return str(self.checks[name]["state"])

    def failures(self) -> list[str]:
        return [name for name, check in self.checks.items() if check["state"] == "FAIL"]


Run = Callable[..., Report]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(file: Path, *arguments: str) -> Report:
        with pytest.raises(SystemExit) as caught:
            main(["check", str(file), "--json", *arguments])
        output = capsys.readouterr()
        assert PASSWORD not in output.out + output.err
        assert output.err == ""
        return Report(caught.value.code, json.loads(output.out))

    return run


def as_role(shop: Shop, *options: str, grant: bool = True) -> str:
    """Lets the pipeline log in as a separate role that does not own the table."""
    role = f"r_{shop.name}"
    shop.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}' {' '.join(options)}")
    if grant:
        shop.execute(f"GRANT SELECT ON outbox TO {role}")
    shop.configure(source={"postgres": shop.postgres.dsn(shop.name, role, PASSWORD)})
    return role


def test_before_a_first_start_nothing_is_created(shop: Shop, run: Run) -> None:
    report = run(shop.file)
    assert (report.code, report.ok, report.failures()) == (0, True, [])
    assert "first start" in report.checks["start"]["found"]
    assert report.state("role") == "WARN"
    assert "50GB" in report.checks["wal kept for slots"]["remedy"]
    assert shop.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]
    assert shop.execute("SELECT count(*) FROM pg_publication") == [(0,)]
    assert shop.topic not in shop.kafka.admin().list_topics(timeout=10).topics


def test_a_role_that_may_copy_the_whole_cluster(shop: Shop, run: Run) -> None:
    """The default lines of pg_hba.conf allow it; only the lines that `check` shows prevent it."""
    role = as_role(shop, "REPLICATION")
    shop.execute(f"CREATE PUBLICATION {shop.slot} FOR TABLE outbox WITH (publish = 'insert')")
    report = run(shop.file)
    assert report.state("cluster copy") == "WARN"
    lines = report.checks["cluster copy"]["remedy"].partition("(): ")[2].split(" ; ")
    assert role in lines[0]
    file = Path(str(shop.execute("SHOW hba_file")[0][0]))
    before = file.read_text()
    try:
        file.write_text("\n".join([*lines[:2], before]))
        shop.execute("SELECT pg_reload_conf()")
        wait_until(
            lambda: run(shop.file).state("cluster copy") == "OK", 30, what="the new lines of pg_hba.conf to apply"
        )
        report = run(shop.file)
        assert (report.code, report.state("role")) == (0, "OK")
        assert shop.start().stop() == 0
    finally:
        file.write_text(before)
        shop.execute("SELECT pg_reload_conf()")


def test_does_not_disturb_a_running_pipeline(shop: Shop, run: Run) -> None:
    connector = shop.start()
    for _ in range(3):
        report = run(shop.file)
        assert report.code == 0
        assert "runs now" in report.checks["start"]["found"]
    event = shop.insert(VALID)
    wait_until(lambda: [seen.id for seen in shop.published()] == [event], 60, what="the event")
    assert connector.running


def test_postgres_18(shop18: Shop, run: Run) -> None:
    report = run(shop18.file)
    assert report.failures() == []
    assert report.checks["idle slots"]["found"] == "are kept"
    assert report.state("postgres version") == report.state("slot failover") == "OK"


def test_a_missing_publication_and_a_role_that_may_not_create_it(shop: Shop, run: Run) -> None:
    as_role(shop, "REPLICATION")
    report = run(shop.file)
    assert (report.code, report.failures()) == (1, ["publication"])
    shop.execute(report.checks["publication"]["remedy"])
    report = run(shop.file)
    assert (report.code, report.state("publication"), report.state("role")) == (0, "OK", "OK")


@pytest.mark.parametrize(
    ("publication", "state", "expected"),
    [
        ("FOR TABLE orders WITH (publish = 'insert')", "FAIL", "does not contain"),
        ("FOR TABLE outbox WITH (publish = 'update')", "FAIL", "does not publish inserts"),
        ("FOR TABLE outbox WHERE (type = 'x') WITH (publish = 'insert')", "FAIL", "WHERE"),
        ("FOR TABLE outbox", "WARN", "updates"),
        ("FOR TABLE outbox, orders WITH (publish = 'insert')", "WARN", "2 tables"),
    ],
)
def test_publications_that_do_not_fit(shop: Shop, run: Run, publication: str, state: str, expected: str) -> None:
    """The test runs the remedy as printed; afterwards the same result does not appear again."""
    shop.execute(f"CREATE PUBLICATION {shop.slot} {publication}")
    found = run(shop.file).checks["publication"]
    assert found["state"] == state
    assert expected in found["found"]
    shop.execute(found["remedy"])
    assert expected not in run(shop.file).checks["publication"]["found"]


def test_a_publication_that_leaves_out_a_column(shop: Shop, run: Run) -> None:
    shop.execute(f"CREATE PUBLICATION {shop.slot} FOR TABLE outbox (id, type) WITH (publish = 'insert')")
    report = run(shop.file)
    assert report.failures() == ["columns"]
    assert "aggregatetype" in report.checks["columns"]["found"]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [({"payload": "body"}, "no column 'body'"), ({"payload": "created_at"}, "cannot hold payloads")],
)
def test_a_column_map_that_does_not_fit(shop: Shop, run: Run, columns: dict[str, str], expected: str) -> None:
    shop.configure(outbox={"columns": columns})
    report = run(shop.file)
    assert (report.code, report.failures()) == (1, ["columns"])
    assert expected in report.checks["columns"]["found"]
    assert "outbox.columns.payload" in report.checks["columns"]["remedy"]


def test_reading_rows_in_the_order_of_a_random_id_is_a_warning(shop: Shop, run: Run) -> None:
    assert "order of rows" not in run(shop.file).checks
    shop.settings["outbox"] = {}
    shop.configure()
    report = run(shop.file)
    assert (report.failures(), report.state("order of rows")) == ([], "WARN")
    assert "(xmin), then of id" in report.checks["order of rows"]["found"]


def test_a_rule_on_a_missing_column(shop: Shop, run: Run) -> None:
    rule = {"topic": shop.topic, "match": {"aggregate": "order", "column": {"tenant": "acme"}}}
    (shop.folder / "topics" / "orders.yaml").write_text(json.dumps(rule))
    report = run(shop.file)
    assert (report.failures(), report.state("rules")) == ([], "WARN")
    assert "match.column.tenant uses tenant" in report.checks["rules"]["found"]
    shop.execute("ALTER TABLE outbox ADD COLUMN tenant text")
    assert "rules" not in run(shop.file).checks


def test_a_position_of_another_kind_of_database(shop: Shop, run: Run) -> None:
    shop.start().stop()  # creates the offsets topic
    position = TokenPosition(StreamIdentity("rs0", "shop", {"outbox": ""}, "x"), {"_data": "82"}, ClusterTime(1, 1), 1)
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    producer.produce("tailrace-offsets", json.dumps(to_stored(position)), shop.name)
    assert producer.flush(30) == 0
    report = run(shop.file)
    assert report.failures() == ["start"]
    assert "is not a position of Postgres" in report.checks["start"]["found"]


def test_tables_that_cannot_be_tailed(shop: Shop, run: Run) -> None:
    shop.execute("CREATE VIEW view AS SELECT * FROM outbox")
    shop.execute("CREATE UNLOGGED TABLE quick (LIKE outbox)")
    for table, expected in (
        ("public.none", "there is no"),
        ("public.view", "not a table"),
        ("public.quick", "UNLOGGED"),
    ):
        shop.configure(source={"table": table})
        report = run(shop.file)
        assert report.failures() == ["table"]
        assert expected in report.checks["table"]["found"]


def test_missing_privileges(shop: Shop, run: Run) -> None:
    role = as_role(shop, grant=False)
    shop.execute(f"CREATE PUBLICATION {shop.slot} FOR TABLE outbox WITH (publish = 'insert')")
    report = run(shop.file)
    assert report.failures() == ["role"]
    assert report.state("table rights") == "WARN"
    shop.configure(source={"start": "beginning"})
    assert run(shop.file).failures() == ["role", "table rights"]
    shop.execute(report.checks["table rights"]["remedy"])
    shop.execute(f"ALTER ROLE {role} REPLICATION")
    assert run(shop.file).failures() == []


def test_row_security_that_hides_rows_is_a_failure(shop: Shop, run: Run) -> None:
    as_role(shop, "REPLICATION")
    shop.configure(source={"start": "beginning"})
    shop.execute(f"CREATE PUBLICATION {shop.slot} FOR TABLE outbox WITH (publish = 'insert')")
    shop.execute("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
    assert run(shop.file).failures() == ["table rights"]


def test_a_wrong_password_is_one_failure_and_kafka_is_still_checked(shop: Shop, run: Run) -> None:
    shop.configure(source={"postgres": shop.postgres.dsn(shop.name, "postgres", PASSWORD)})
    report = run(shop.file)
    assert (report.code, report.failures()) == (1, ["postgres"])
    assert "authentication failed" in report.checks["postgres"]["found"]
    assert report.state("kafka") == "OK"
    assert "start" not in report.checks


def test_unavailable_servers(shop: Shop, run: Run) -> None:
    shop.configure(source={"postgres": "postgresql://tailrace@127.0.0.1:1/shop"})
    report = run(shop.file)
    assert report.failures() == ["postgres"]
    assert "Start Postgres" in report.checks["postgres"]["remedy"]
    assert report.state("offsets topic") == "OK"
    shop.configure(source={"postgres": shop.dsn}, kafka={"bootstrap": "127.0.0.1:1"})
    report = run(shop.file)
    assert report.failures() == ["kafka"]
    assert "refused" in report.checks["kafka"]["found"]
    assert "kafka.bootstrap" in report.checks["kafka"]["remedy"]
    assert report.state("slot") == "OK"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"no.such.setting": 1}, "no.such.setting"), ({"compression.type": "tight"}, "tight")],
)
def test_kafka_settings_that_do_not_exist(shop: Shop, run: Run, settings: dict[str, Any], expected: str) -> None:
    shop.configure(kafka={"settings": settings})
    report = run(shop.file)
    assert report.failures() == ["kafka"]
    assert expected in report.checks["kafka"]["found"]


def test_topics_that_do_not_fit(shop: Shop, run: Run, make_topic: Callable[..., None]) -> None:
    offsets = f"{shop.name}-offsets"
    make_topic(offsets, cleanup_policy="delete")
    make_topic(shop.topic, 2)
    make_topic(shop.letters, max_message_bytes="1000")
    shop.configure(kafka={"offsets_topic": offsets})
    report = run(shop.file)
    assert report.failures() == ["offsets topic"]
    assert "cleanup.policy=compact" in report.checks["offsets topic"]["remedy"]
    assert "has 2 partitions, but its spec declares 3" in report.checks[f"topic {shop.topic}"]["found"]
    assert report.state(f"topic {shop.topic}") == report.state("dead-letter topic") == "WARN"


def test_topics_that_cannot_be_created(shop: Shop, run: Run) -> None:
    spec = {"topic": shop.topic, "match": {"aggregate": "order"}, "partitions": 3, "replication": 3}
    (shop.folder / "topics" / "orders.yaml").write_text(json.dumps(spec))
    shop.configure(kafka={"offsets_topic": f"{shop.name}-offsets", "internal_replication": 3})
    shop.configure(topics={"template": "t.{type}", "replication": 2})
    report = run(shop.file)
    assert report.failures() == ["offsets topic", "dead-letter topic", f"topic {shop.topic}", "topics by template"]
    assert "Lower kafka.internal_replication to 1" in report.checks["offsets topic"]["remedy"]
    shop.configure(topics={"create": False}, kafka={"internal_replication": 1})
    assert f"--create --topic {shop.letters}" in run(shop.file).checks["dead-letter topic"]["remedy"]


def test_topic_settings_that_kafka_refuses(shop: Shop, run: Run, make_topic: Callable[..., None]) -> None:
    """For a new topic and for an existing one, with the texts of `tailrace topics plan`."""
    spec = {"topic": shop.topic, "match": {"aggregate": "order"}, "config": {"retention.ms": "soon"}}
    (shop.folder / "topics" / "orders.yaml").write_text(json.dumps(spec))
    for exists in (False, True):
        if exists:
            make_topic(shop.topic, 3)
        report = run(shop.file)
        assert (report.code, report.failures()) == (1, [f"topic {shop.topic}"])
        found = report.checks[f"topic {shop.topic}"]
        assert "Kafka rejects retention.ms = soon" in found["found"]
        assert "orders.yaml" in found["remedy"]
        assert (shop.topic in shop.kafka.admin().list_topics(timeout=10).topics) == exists


def test_a_dropped_slot_and_a_slot_of_another_database(shop: Shop, run: Run) -> None:
    shop.start().stop()
    shop.execute(f"SELECT pg_drop_replication_slot('{shop.slot}')")
    report = run(shop.file)
    assert report.failures() == ["start"]
    assert "SlotMissing" in report.checks["start"]["found"]
    shop.execute("SELECT pg_create_logical_replication_slot('other_" + shop.name + "', 'pgoutput')")
    shop.configure(pipeline=f"{shop.name}x", source={"slot": f"other_{shop.name}", "publication": shop.slot})
    assert "SlotUnclaimed" in run(shop.file).checks["start"]["found"]


def test_an_invalidated_slot(kafka: KafkaBroker, tmp_path: Path, run: Run) -> None:
    settings = {"max_slot_wal_keep_size": "16MB", "max_replication_slots": "1", "max_wal_senders": "1"}
    with PostgresServer("16", settings=settings, choice=ServerChoice.LOCAL) as postgres:
        shop = open_shop(postgres, kafka, tmp_path)
        shop.start().stop()
        assert run(shop.file).failures() == []
        for _ in range(4):
            shop.execute("CREATE TABLE junk AS SELECT 1; DROP TABLE junk")
            shop.execute("SELECT pg_switch_wal()")
        shop.execute("CHECKPOINT")
        report = run(shop.file)
        assert report.failures() == ["slot"]
        assert "invalidated" in report.checks["slot"]["found"]
        assert "pg_drop_replication_slot" in report.checks["slot"]["remedy"]
        assert "16.0 MB" in report.checks["wal kept for slots"]["found"]
        shop.configure(source={"slot": "another"})
        assert run(shop.file).state("free slots") == "FAIL"
        close_shop(shop)


def test_offline(shop: Shop, run: Run) -> None:
    """Checks settings, schemas and topics; the servers do not exist."""
    shop.configure(source={"postgres": "postgresql://127.0.0.1:1/shop"}, kafka={"bootstrap": "127.0.0.1:1"})
    report = run(shop.file, "--offline")
    assert (report.code, list(report.checks)) == (0, ["settings", "schemas", "topics"])
    (shop.folder / "schemas" / "OrderPlaced" / "1.json").write_text("{")
    (shop.folder / "topics" / "orders.yaml").write_text("topic: 1")
    report = run(shop.file, "--offline")
    assert (report.code, report.failures()) == (1, ["schemas", "topics"])
    shop.configure(pipeline="Bad Name")
    report = run(shop.file, "--offline")
    assert (report.code, report.failures()) == (1, ["settings"])


def test_output_as_a_table(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    as_role(shop, "REPLICATION")
    with pytest.raises(SystemExit) as caught:
        main(["check", str(shop.file)])
    output = capsys.readouterr().out
    assert caught.value.code == 1
    assert PASSWORD not in output
    assert '  remedy: CREATE PUBLICATION "' in output
    assert "1 failed" in output.splitlines()[-1]


def test_a_wrong_clock(
    shop: Shop, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The clocks of the database and of this machine differ; `status` reports it, too."""
    assert run(shop.file).state("clock") == "OK"
    late = SimpleNamespace(**{**vars(time), "time": lambda: time.time() - 7300})
    monkeypatch.setattr(preflight_postgres, "time", late)
    monkeypatch.setattr(health, "time", late)
    report = run(shop.file)
    assert (report.state("clock"), report.ok) == ("WARN", True)
    assert "2 h ahead of this machine's" in report.checks["clock"]["found"]
    with pytest.raises(SystemExit):
        main(["status", str(shop.file)])
    assert "the database's is 2 h ahead of this machine's" in capsys.readouterr().out
